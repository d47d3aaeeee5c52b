"""What keeping conversations is worth: time to first token with what was kept, beside reading all again.

    python benchmarks/states.py MODEL [--weights q8] [--tokens 4000] [--repeats 5] [--threads N]

A conversation of so many tokens of a text is read, and goes on with 20 new tokens: at once, in a fork, behind
eight others that had the pool meanwhile (from memory, and from its file, which the system's cache is asked to
drop first), and at the next start of the program. Time goes until the logits behind the prompt are there, all
that is read, copied and computed for it included; the medians of all repeats, and the best beside them. The
new tokens are others each time. Last comes the mean negative log-likelihood of 2,000 tokens, in nats, over
int8 rows of keys and values and over float32. The text is what Python's `pydoc_data.topics` holds, values in
the order of their keys, joined by blank lines. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from engine.calibration_text import calibration_text
from engine.checkpoints.model_folder import open_model
from engine.checkpoints.model_identity import model_identity
from engine.config import WeightFormat
from engine.kv_geometry import KvFormat, KvGeometry, pages_for
from engine.runtime import default_threads, prepare_runtime
from engine.tokenizers.tokenizer import load_tokenizer

if TYPE_CHECKING:  # torch is imported as the program does it: by prepare_runtime
    from engine.cpu.backend import CpuBackend
    from engine.states.kv_file import KvKey
    from engine.states.pages import PageLedger
    from engine.states.store import StateStore

SLOTS = 8
NEW_TOKENS = 20
OTHERS_TOKENS = 200  # of each of the eight that use the pool meanwhile
TEXT_CHARACTERS = 60_000
KV_FORMATS: tuple[KvFormat, ...] = ("int8", "native")
NLL_TOKENS = 2000
NLL_BLOCK = 250
PLENTY = 2**40  # bytes


@dataclass
class Row:
    """One way to a first token."""

    name: str
    seconds: list[float] = field(default_factory=list)
    reused: int = 0
    prefilled: int = 0

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "milliseconds": 1e3 * median(self.seconds),
            "milliseconds_best": 1e3 * min(self.seconds),
            "reused": self.reused,
            "prefilled": self.prefilled,
        }


class Bench:
    """Stores of states over one backend, whose files lie in `root`."""

    def __init__(
        self, backend: CpuBackend, key: KvKey, ids: Sequence[int], *, tokens: int, root: Path
    ) -> None:
        self.backend = backend
        self.key = key
        self.prompt = list(ids[:tokens])
        self.rest = list(ids[tokens:])
        self.root = root
        self.context = tokens + 4 * NEW_TOKENS
        self._next_new = 0

    def store(self, name: str, *, ram_budget: int = PLENTY) -> StateStore:
        from engine.states.kv_folder import KvFolder
        from engine.states.pages import PageLedger
        from engine.states.state import Home
        from engine.states.store import StateStore

        def new_home() -> Home:
            pool = self.backend.new_pool(self.key.geometry, SLOTS * pages_for(self.context))
            return Home(self.backend, PageLedger(pool))

        folder = KvFolder(self.root / name, self.key, context=self.context, limit_bytes=PLENTY)
        return StateStore(
            new_home(), slots=SLOTS, new_fallback=new_home, folder=folder, ram_budget=ram_budget
        )

    def new_ids(self) -> list[int]:
        """Tokens that no state has at this place: the first of them is another each time."""
        self._next_new += 1
        start = self._next_new * NEW_TOKENS % (len(self.rest) - NEW_TOKENS)
        vocab_size = self.backend.spec.vocab_size
        return [self._next_new % vocab_size, *self.rest[start : start + NEW_TOKENS - 1]]

    def turn(self, store: StateStore, conversation: str, ids: Sequence[int], row: Row | None = None) -> None:
        """Reads the prompt, timed into `row`."""
        began = time.perf_counter()
        lease = store.take(conversation, ids)
        int(lease.prefill(ids[lease.length :]).argmax())
        if row is not None:
            row.seconds.append(time.perf_counter() - began)
            row.reused, row.prefilled = lease.reused, len(ids) - lease.reused
        store.give_back(lease)

    def eight_others(self, store: StateStore) -> None:
        for number in range(SLOTS):
            ids = [number + 1, *self.rest[number * OTHERS_TOKENS : (number + 1) * OTHERS_TOKENS - 1]]
            self.turn(store, f"other {number}", ids)

    def place(self, store: StateStore) -> str:
        return next(row.place for row in store.table() if row.conversation == "chat")

    def drop_files_from_cache(self, name: str) -> None:
        """Asks the system for it, where it can be asked."""
        if not hasattr(os, "posix_fadvise") or not (self.root / name).exists():
            return
        for path in (self.root / name).iterdir():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(bench: Bench, repeats: int) -> tuple[list[Row], dict[str, float]]:
    full, second = Row("full prefill"), Row("second turn")
    store = bench.store("live")
    for _ in range(repeats // 2 + 1):
        store.forget("chat")
        bench.turn(store, "chat", [*bench.prompt, *bench.new_ids()], full)
    for _ in range(repeats):
        bench.turn(store, "chat", bench.prompt)  # taken back to the first turn
        bench.turn(store, "chat", [*bench.prompt, *bench.new_ids()], second)
    forks, fork = measure_forks(bench, store, repeats)
    rows = [full, second, forks]
    rows.append(measure_return(bench, "memory", repeats, ram_budget=PLENTY))
    rows.append(measure_return(bench, "disk", repeats, ram_budget=0))
    rows.append(measure_next_start(bench, repeats))
    return rows, fork


def measure_forks(bench: Bench, store: StateStore, repeats: int) -> tuple[Row, dict[str, float]]:
    """The fork alone, then its first tokens; and how many pages more there were after each."""
    row, seconds, pages = Row("fork, then its first turn"), [], []
    ledger = ledger_of(store)
    bench.turn(store, "chat", bench.prompt)
    for number in range(repeats):
        before = ledger.num_pages
        began = time.perf_counter()
        forked = store.fork("chat", f"fork {number}")
        seconds.append(time.perf_counter() - began)
        assert forked == len(bench.prompt)
        assert ledger.num_pages == before, "a fork alone takes no page"
        ids = [*bench.prompt, *bench.new_ids()]
        bench.turn(store, f"fork {number}", ids, row)
        fresh = pages_for(len(ids)) - pages_for(len(bench.prompt))
        pages.append(ledger.num_pages - before - fresh)
        store.forget(f"fork {number}")
    return row, {"milliseconds": 1e3 * max(seconds), "pages_copied": max(pages)}


def measure_return(bench: Bench, name: str, repeats: int, *, ram_budget: int) -> Row:
    """Behind eight others, each time."""
    row = Row(f"return from {name}")
    store = bench.store(name, ram_budget=ram_budget)
    for _ in range(repeats):
        bench.turn(store, "chat", bench.prompt)
        bench.eight_others(store)
        store.wait()
        assert bench.place(store) == ("ram" if ram_budget else "disk")
        bench.drop_files_from_cache(name)
        bench.turn(store, "chat", [*bench.prompt, *bench.new_ids()], row)
    return row


def measure_next_start(bench: Bench, repeats: int) -> Row:
    """In a store that knows of nothing yet; finding out what lies on disk is counted."""
    row, name = Row("next start"), "next start"
    store = bench.store(name)
    for _ in range(repeats):
        bench.turn(store, "chat", bench.prompt)
        store.close()
        store.wait()
        bench.drop_files_from_cache(name)
        store = bench.store(name)
        bench.turn(store, "chat", [*bench.prompt, *bench.new_ids()], row)
    return row


def ledger_of(store: StateStore) -> PageLedger:
    """Of the pool that the conversations of the store share."""
    lease = store.take("", [0])
    ledger = lease.home.ledger
    store.give_back(lease)
    return ledger


def mean_nll(backend: CpuBackend, ids: Sequence[int], kv: KvFormat) -> float:
    import torch

    cache, total = backend.new_cache(kv), 0.0
    for first in range(0, NLL_TOKENS, NLL_BLOCK):
        logits = backend.forward(ids[first : first + NLL_BLOCK], cache, all_logits=True).double()
        following = torch.tensor(ids[first + 1 : first + 1 + NLL_BLOCK])
        total -= float(logits.log_softmax(-1).gather(1, following[:, None]).sum())
    return total / NLL_TOKENS


def load(path: Path, weights: WeightFormat, threads: int) -> tuple[CpuBackend, KvKey, list[int]]:
    """The model, whose states they are, and the ids of the text."""
    from pydoc_data.topics import topics

    from engine.cpu.backend import CpuBackend
    from engine.states.kv_file import KvKey

    prepare_runtime(threads)
    folder = open_model(path)
    tokenizer = load_tokenizer(folder.tokenizer)
    identity = model_identity(folder)
    try:
        backend = CpuBackend.load(
            folder.spec,
            folder.parameters,
            folder.tensors,
            weights=weights,
            calibration_ids=tokenizer.encode(calibration_text(), parse_special=False),
        )
    finally:
        folder.tensors.close()
    text = "\n\n".join(topics[key] for key in sorted(topics))
    ids = tokenizer.encode(text[:TEXT_CHARACTERS], parse_special=False)
    return backend, KvKey(identity, weights, KvGeometry.of(folder.spec, "int8")), ids


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--weights", choices=["native", "q8", "q4"], default="q8")
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument(
        "--folder", type=Path, help="on which disk the files lie; else that of temporary files"
    )
    options = parser.parse_args()
    backend, key, ids = load(options.model, options.weights, options.threads)
    with tempfile.TemporaryDirectory(dir=options.folder) as root:
        bench = Bench(backend, key, ids, tokens=options.tokens, root=Path(root))
        rows, fork = measure(bench, options.repeats)
    nll = {kv: mean_nll(backend, ids, kv) for kv in KV_FORMATS}
    for row in rows:
        print(
            f"{row.name:28}{1e3 * median(row.seconds):10.1f} ms {1e3 * min(row.seconds):10.1f} ms"
            f"{row.reused:8} reused {row.prefilled:8} prefilled"
        )
    print(
        f"{'fork alone (slowest)':28}{fork['milliseconds']:10.3f} ms, {fork['pages_copied']:.0f} page copied"
    )
    print(f"nll: int8 {nll['int8']:.6f}, native {nll['native']:.6f}: {nll['int8'] / nll['native'] - 1:+.4%}")
    print(
        json.dumps(
            {
                "model": options.model.name,
                "weights": options.weights,
                "threads": options.threads,
                "tokens": options.tokens,
                "state_bytes": pages_for(options.tokens) * key.geometry.page_bytes,
                "torch": version("torch"),
                "first_token": [row.as_json() for row in rows],
                "fork": fork,
                "nll": nll,
            }
        )
    )


if __name__ == "__main__":
    main()
