"""The copy test and its relatives: does every shortcut compute what a cold run computes, bit for bit?

A text is read once from its beginning by a fresh state: that is the cold run. Then every way in which a
state can come to have some of it already is taken, the rest is read, and the logits are compared. What is
printed is the forced negative log-likelihood of both, and their difference must be 0.000e+00. The states,
pools, memory and files are those that conversations have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import EngineError
from engine.kv_geometry import PAGE, KvGeometry, pages_for
from engine.states.kv_file import KvKey
from engine.states.kv_folder import KvFolder
from engine.states.lease import Lease
from engine.states.pages import PageLedger
from engine.states.state import Home
from engine.states.store import StateStore
from engine.wording import format_tokens

if TYPE_CHECKING:
    import torch

    from engine.backend import Backend

TEXT_TOKENS = 3 * PAGE + 23
PIECES = (1, PAGE - 1, PAGE, PAGE + 1, 8 * PAGE)
CUTS = (1, 52, PAGE - 1, PAGE, PAGE + 1, 76, 2 * PAGE, 3 * PAGE - 12, 3 * PAGE + 1)
# A product with one row may round otherwise than one with many: in logits, in parts of the largest one. With
# an int8 cache that puts some numbers on the other side of a code's border, which moves logits by more than
# rounding does, and the text's likelihood by hardly anything: in parts of that.
DECODE_TOLERANCE = 1e-4
DECODE_NLL_TOLERANCE = 2e-3
_DECODED = 24  # tokens
_DECODED_BETWEEN = 5  # tokens of an answer, before the text goes on
_PLENTY = 2**40  # bytes of memory for parked states: as much as they take


@dataclass(frozen=True)
class Check:
    """a_nll: of the cold run; b_nll: of the shortcut, over the same tokens. ok: every logit has the same bits
    (or is near enough, where the name says so), and as much was reused as there was. apart: where the two
    first differ, "" where nobody looked or they don't.
    """

    name: str
    a_nll: float
    b_nll: float
    ok: bool
    apart: str = ""

    @property
    def diff(self) -> float:
        return self.b_nll - self.a_nll

    def as_json(self) -> dict[str, Any]:
        found = {
            "name": self.name,
            "a_nll": self.a_nll,
            "b_nll": self.b_nll,
            "diff": self.diff,
            "ok": self.ok,
        }
        return found | ({"apart": self.apart} if self.apart else {})


@dataclass(frozen=True)
class _Turn:
    """What reading a prompt gave: logits (T - reused, V) of what was read, and digests of the state's keys
    and values, layer by layer.
    """

    reused: int
    logits: torch.Tensor
    layers: tuple[str, ...]


class SelfTest:
    """Runs on a loaded model's backend, in pools of its own. `folder` is for files, and empty."""

    def __init__(
        self,
        backend: Backend,
        geometry: KvGeometry,
        ids: Sequence[int],
        *,
        folder: Path,
        cuts: Sequence[int] = CUTS,
        dump: bool = False,
    ) -> None:
        """ids: at least two tokens of some text; the first TEXT_TOKENS are used. cuts: how much of it a state
        has already; those within the text are tried. dump: look at the rows of all layers in every check.
        """
        assert len(ids) >= 2
        self._backend = backend
        self._geometry = geometry
        self._ids = list(ids[:TEXT_TOKENS])
        vocab_size = backend.spec.vocab_size
        self._other = [(token + 1) % vocab_size for token in self._ids]  # differs at every place
        self._folder = folder
        self._cuts = [cut for cut in cuts if cut < len(self._ids)]
        self._dump = dump
        self._num_folders = 0
        self._cold = self._turn(self._store(), "cold", self._ids)

    def run(self) -> Iterator[Check]:
        """All checks, each when it is done. Raises EngineError where no file can be written."""
        ids, other = self._ids, self._other
        for size in PIECES:
            yield self._check(f"pieces of {size}", self._turn(self._store(), "a", ids, piece=size), 0)
        for cut in self._cuts:
            for name, shortcut in self._shortcuts().items():
                yield self._check(f"{name} at {cut}", shortcut(cut), cut)
            yield from self._behind_an_answer(cut)
        store = self._store()
        self._turn(store, "a", ids)
        yield self._check("the same prompt again", self._turn(store, "a", ids), len(ids) - 1)
        yield self._check("two by turns", self._by_turns(ids, other), 0)
        yield self._decoded(len(ids) - min(_DECODED, len(ids) - 1))

    def _shortcuts(self) -> dict[str, Callable[[int], _Turn]]:
        return {
            "copied prefix": self._copied,
            "rewind": self._rewound,
            "fork": self._forked,
            "original of a fork": self._forked_from,
            "return from memory": self._from_memory,
            "return from disk": self._from_disk,
            "next start": self._after_restart,
            "no slot": self._without_slot,
        }

    def _copied(self, cut: int) -> _Turn:
        store = self._store()
        self._turn(store, "t", self._ids[:cut])
        return self._turn(store, "b", self._ids)

    def _rewound(self, cut: int) -> _Turn:
        store = self._store()
        self._turn(store, "a", self._ids[:cut] + self._other[cut:])
        return self._turn(store, "a", self._ids)

    def _forked(self, cut: int) -> _Turn:
        store = self._store()
        self._turn(store, "a", self._ids[:cut])
        store.fork("a", "b")
        return self._read_beside(store, "b", "a", cut)

    def _forked_from(self, cut: int) -> _Turn:
        store = self._store()
        self._turn(store, "a", self._ids[:cut])
        store.fork("a", "b")
        return self._read_beside(store, "a", "b", cut)

    def _read_beside(self, store: StateStore, conversation: str, twin: str, cut: int) -> _Turn:
        """The text for one of two states that share their first `cut` tokens. In the middle of it the other
        one writes into the same rows, and is gone.
        """
        with self._taken(store, conversation, self._ids) as lease:
            reused, middle = lease.length, min(len(self._ids), cut + 5)
            rows = [lease.prefill(self._ids[reused:middle], all_logits=True)]
            self._turn(store, twin, self._ids[:cut] + self._other[cut:])
            store.forget(twin)
            if middle < len(self._ids):
                rows.append(lease.prefill(self._ids[middle:], all_logits=True))
            return _Turn(reused, _joined(rows), self._digests(lease))

    def _from_memory(self, cut: int) -> _Turn:
        store = self._store(slots=1)
        self._turn(store, "a", self._ids[:cut])
        self._turn(store, "b", self._other)
        return self._turn(store, "a", self._ids)

    def _from_disk(self, cut: int) -> _Turn:
        store = self._store(slots=1, ram_budget=0, folder=self._new_folder())
        self._turn(store, "a", self._ids[:cut])
        self._turn(store, "b", self._other)
        _wait_for_files(store)
        return self._turn(store, "a", self._ids)

    def _after_restart(self, cut: int) -> _Turn:
        folder = self._new_folder()
        store = self._store(folder=folder)
        self._turn(store, "a", self._ids[:cut])
        store.close()
        _wait_for_files(store)
        return self._turn(self._store(folder=folder), "a", self._ids)

    def _without_slot(self, cut: int) -> _Turn:
        """The only slot is taken, so the state is computed in a pool of its own; its prefix comes from one
        that had to leave the slot.
        """
        store = self._store(slots=1)
        self._turn(store, "a", self._ids[:cut])
        with self._taken(store, "b", self._other) as lease:
            self._read(lease, self._other)
            return self._turn(store, "a", self._ids)

    def _behind_an_answer(self, cut: int) -> Iterator[Check]:
        """The same for rows that decoding made: the cold run is the one that nothing came between."""
        end = min(cut + _DECODED_BETWEEN, len(self._ids) - 1)
        cold = self._answered(self._store(), cut, end)
        shortcuts = {
            "fork": self._answered(self._store(), cut, end, fork=True),
            "return from memory": self._answered(self._store(slots=1), cut, end, park=True),
            "return from disk": self._answered(
                self._store(slots=1, ram_budget=0, folder=self._new_folder()), cut, end, park=True
            ),
        }
        for name, turn in shortcuts.items():
            yield self._check(f"{name} behind an answer at {cut}", turn, end, cold)

    def _answered(
        self, store: StateStore, cut: int, end: int, *, fork: bool = False, park: bool = False
    ) -> _Turn:
        """The text's tokens from `cut` to `end` as if they had been drawn, then what follows as a prompt."""
        with self._taken(store, "a", self._ids[:end]) as lease:
            lease.prefill(self._ids[:cut])
            for token in self._ids[cut:end]:
                lease.decode(token)
        if fork:
            store.fork("a", "b")
            self._turn(store, "a", self._ids[:cut] + self._other[cut:])
        if park:
            self._turn(store, "c", self._other)
            _wait_for_files(store)
        return self._turn(store, "b" if fork else "a", self._ids)

    def _by_turns(self, ids: Sequence[int], other: Sequence[int]) -> _Turn:
        """Two states that grow in turns, 37 tokens at a time: of the first what it gave."""
        store, step = self._store(), 37
        rows = []
        with self._taken(store, "a", ids) as first, self._taken(store, "b", other) as second:
            for start in range(0, len(ids), step):
                rows.append(first.prefill(ids[start : start + step], all_logits=True))
                second.prefill(other[start : start + step], all_logits=True)
            return _Turn(0, _joined(rows), self._digests(first))

    def _decoded(self, cut: int) -> Check:
        """Rows that decoding makes are those of a prefill but for rounding."""
        import torch

        with self._taken(self._store(), "a", self._ids) as lease:
            lease.prefill(self._ids[:cut], all_logits=True)
            logits = torch.stack([lease.decode(token) for token in self._ids[cut:]])
        cold = self._cold.logits[cut:]
        a_nll, b_nll = self._nll(cold), self._nll(logits)
        name = f"decoding {format_tokens(len(logits))}, within "
        if self._geometry.format == "native":
            near = float((logits - cold).abs().max()) <= DECODE_TOLERANCE * float(cold.abs().max())
            return Check(f"{name}{DECODE_TOLERANCE:g} of the logits", a_nll, b_nll, near)
        near = abs(b_nll - a_nll) <= DECODE_NLL_TOLERANCE * a_nll
        return Check(f"{name}{DECODE_NLL_TOLERANCE:g} of the nll", a_nll, b_nll, near)

    def _check(self, name: str, turn: _Turn, expected: int, cold: _Turn | None = None) -> Check:
        """expected: how many tokens it has reused. cold: what it is compared with; None is the cold run."""
        import torch

        cold = self._cold if cold is None else cold
        logits = cold.logits[turn.reused - cold.reused :]
        same = torch.equal(turn.logits, logits)
        apart = "" if same and not self._dump else _apart(cold, turn)
        ok = same and turn.reused == expected and not (self._dump and apart)
        return Check(name, self._nll(logits), self._nll(turn.logits), ok, apart)

    def _nll(self, logits: torch.Tensor) -> float:
        """Of the text's last tokens, and of what the cold run finds likeliest behind the last one."""
        import torch

        following = [*self._ids[1:], int(self._cold.logits[-1].argmax())][-len(logits) :]
        found = logits.double().log_softmax(-1)
        return -float(found.gather(1, torch.tensor(following)[:, None]).sum())

    def _turn(
        self, store: StateStore, conversation: str, ids: Sequence[int], *, piece: int | None = None
    ) -> _Turn:
        with self._taken(store, conversation, ids) as lease:
            return self._read(lease, ids, piece=piece)

    def _read(self, lease: Lease, ids: Sequence[int], *, piece: int | None = None) -> _Turn:
        reused = lease.length
        cuts = [*range(reused, len(ids), piece or len(ids)), len(ids)]
        rows = [lease.prefill(ids[start:end], all_logits=True) for start, end in pairwise(cuts)]
        return _Turn(reused, _joined(rows), self._digests(lease))

    def _digests(self, lease: Lease) -> tuple[str, ...]:
        """One of each layer's keys and values, in every page of the state."""
        assert lease.state.live is not None
        pages = lease.home.ledger.read(lease.state.live.sequence)
        borders = [*self._geometry.layer_offsets, self._geometry.page_bytes]
        return tuple(
            hashlib.blake2b(
                b"".join(page[start:end].numpy().tobytes() for page in pages), digest_size=8
            ).hexdigest()
            for start, end in pairwise(borders)
        )

    @contextmanager
    def _taken(self, store: StateStore, conversation: str, ids: Sequence[int]) -> Iterator[Lease]:
        lease = store.take(conversation, ids)
        try:
            yield lease
        finally:
            store.give_back(lease)

    def _store(
        self, *, slots: int = 4, ram_budget: int = _PLENTY, folder: KvFolder | None = None
    ) -> StateStore:
        def new_home() -> Home:
            capacity = slots * pages_for(TEXT_TOKENS)
            return Home(self._backend, PageLedger(self._backend.new_pool(self._geometry, capacity)))

        return StateStore(
            new_home(), slots=slots, new_fallback=new_home, folder=folder, ram_budget=ram_budget
        )

    def _new_folder(self) -> KvFolder:
        self._num_folders += 1
        key = KvKey("selftest", "selftest", self._geometry)
        return KvFolder(self._folder / str(self._num_folders), key, context=TEXT_TOKENS)


def _wait_for_files(store: StateStore) -> None:
    """Raises EngineError where nothing can be written: then there is nothing to compare."""
    store.wait()
    for notice in store.take_notices():
        if notice.code == "states-not-kept":
            raise EngineError(notice.message, notice.hint)


def _joined(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    import torch

    return torch.cat(list(rows))


def _apart(cold: _Turn, found: _Turn) -> str:
    """The first layer whose keys and values differ."""
    for layer, (a, b) in enumerate(zip(cold.layers, found.layers, strict=True)):
        if a != b:
            return f"keys or values of layer {layer}"
    return ""
