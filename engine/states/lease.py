"""A state while an answer is computed with it: nobody else has it, and every step is all or nothing."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from engine.errors import DeviceFaultError, ModelUnloadedError, OutOfMemoryError, StepRefusedError
from engine.generation import ReuseReason
from engine.notices import Notice
from engine.states.state import Home, State, as_ids

if TYPE_CHECKING:
    import torch

    from engine.backend import Sequence as PageTable
    from engine.drawing import Drawings

_Got = TypeVar("_Got")

Run = Callable[[Home, "PageTable", list[int], int], _Got]
"""Runs ids behind what a page table holds. The first of them, as many as the number says, nobody asked for:
they were lost with their device.
"""


class StatesMoved(Exception):  # noqa: N818  (nothing is wrong any more)
    """The step was not done, for its device failed. All states have left that: the same step, asked for
    again, is done elsewhere, behind what has to be run anew of the tokens before it.
    """

    def __init__(self, notice: Notice) -> None:
        super().__init__(notice.message)
        self.notice = notice


class LeaseKeeper(Protocol):
    """What a lease asks of the store that it is from."""

    def make_writable(self, lease: Lease, num_tokens: int, cancel: threading.Event | None) -> None:
        """Sees to the pages of a step, wherever they can be had. Raises OutOfMemoryError, and Cancelled where
        it has to wait for the disk.
        """

    def leave_pool(self, lease: Lease) -> bool:
        """For a step that the pool's device has no memory for: whether it can be tried on another one.
        Raises OutOfMemoryError.
        """

    def leave_device(self, fault: DeviceFaultError) -> Notice:
        """Every state gives up what it has on a device that failed. Raises `fault` where there is no other
        device.
        """

    def reopen(self, lease: Lease) -> None:
        """Has the state in a pool again, with as many of the lease's ids as are kept anywhere. Raises
        OutOfMemoryError.
        """


class Lease:
    """`reused` of the prompt's `total` tokens are cached already; `reason` says why it isn't more, and
    `diverged_at` at which token the prompt left what was cached. None: only what is new has to be read.
    """

    def __init__(
        self,
        state: State,
        *,
        total: int,
        keeper: LeaseKeeper,
        reason: ReuseReason | None = None,
        diverged_at: int | None = None,
    ) -> None:
        self.state = state
        self.reused = state.length
        self.total = total
        self.reason = reason
        self.diverged_at = diverged_at
        self._keeper: LeaseKeeper | None = keeper
        self._owed = as_ids([])  # ids behind the state's: what was cached of them was lost with its device
        self._notices: list[Notice] = []

    @property
    def conversation(self) -> str:
        return self.state.conversation

    @property
    def ids(self) -> array[int]:
        """The tokens that the next step follows. All of them are cached, unless their device failed: then the
        next step runs anew what is missing.
        """
        return self.state.ids + self._owed if self._owed else self.state.ids

    @property
    def length(self) -> int:
        return self.state.length + len(self._owed)

    @property
    def home(self) -> Home:
        assert self.state.live is not None
        return self.state.live.home

    @property
    def device(self) -> str:
        """Where it is; "" while that is nowhere."""
        return "" if self.state.live is None else self.state.live.home.backend.device

    def prefill(
        self, ids: Sequence[int], *, all_logits: bool = False, cancel: threading.Event | None = None
    ) -> torch.Tensor:
        """Append `ids`; logits (V,) after the last, or (T, V). However it ends, `ids` are what is cached.
        Raises Cancelled, OutOfMemoryError, StatesMoved; DeviceFaultError where there is no other device.
        """

        def run(home: Home, table: PageTable, whole: list[int], lost: int) -> torch.Tensor:
            logits = home.backend.prefill(
                whole, table, home.ledger.pool, all_logits=all_logits, cancel=cancel
            )
            return logits[lost:] if all_logits else logits

        return self._step(ids, cancel, run, needs_all=all_logits)

    def decode(self, token: int, *, cancel: threading.Event | None = None) -> torch.Tensor:
        """`prefill` for one token, in the quickest way."""

        def run(home: Home, table: PageTable, whole: list[int], lost: int) -> torch.Tensor:
            if lost:
                return home.backend.prefill(whole, table, home.ledger.pool, cancel=cancel)
            return home.backend.decode(token, table, home.ledger.pool, cancel=cancel)

        return self._step([token], cancel, run)

    def draw(self, ids: Sequence[int], drawings: Drawings, *, cancel: threading.Event | None = None) -> int:
        """Append `ids`: the token that is drawn behind them. Raises what `prefill` does, and
        ComputeFaultError: then `ids` may be cached, and what is cached of them is of no use.
        """

        def run(home: Home, table: PageTable, whole: list[int], lost: int) -> int:
            return drawings.on(home.backend).prefill(whole, table, home.ledger.pool, cancel=cancel)

        return self._step(ids, cancel, run)

    def draw_next(
        self, token: int, drawings: Drawings, *, ahead: bool, cancel: threading.Event | None = None
    ) -> int:
        """`draw` for the token that was drawn last, in the quickest way. ahead: one more may follow, so that
        its step may begin where there is a page for it.
        """

        def run(home: Home, table: PageTable, whole: list[int], lost: int) -> int:
            drawing, ledger = drawings.on(home.backend), home.ledger
            if lost:
                return drawing.prefill(whole, table, ledger.pool, cancel=cancel)
            follows = ahead and drawing.runs_ahead and ledger.make_writable(table, 2)
            return drawing.decode(token, table, ledger.pool, ahead=follows, cancel=cancel)

        return self._step([token], cancel, run)

    def rewind(self, length: int) -> None:
        """Forget the tokens from `length` on."""
        assert self._keeper is not None, "the state is somebody else's"
        wanted = self.ids[:length]
        self.state.truncate(min(length, self.state.length))
        self._owed = wanted[self.state.length :]

    def lose_pages(self) -> None:
        """What the state has in a pool is gone."""
        wanted = self.ids[:]
        self.state.fall_back_to_disk()
        self._owed = wanted[self.state.length :]

    def drop_file(self) -> None:
        """What is written of the conversation is somebody else's from now on. Where the file was all that its
        device had left, the next step runs everything anew.
        """
        wanted = self.ids[:]
        if self.state.live is None:
            self.state.discard()
        else:
            self.state.drop_disk()
        self._owed = wanted[self.state.length :]

    def end(self) -> None:
        """The state was given back: what is asked for from now on raises ModelUnloadedError, for only a store
        that closes takes a state out of an answer's hands. Nothing of the pool is held any more, but for what
        the state's tokens take.
        """
        self._keeper = None
        if self.state.live is not None:
            live = self.state.live
            live.home.ledger.truncate(live.sequence, live.sequence.length)  # pages for steps that never came

    def add_notice(self, notice: Notice) -> None:
        self._notices.append(notice)

    def take_notices(self) -> tuple[Notice, ...]:
        """What happened since the last time this was asked."""
        found, self._notices = tuple(self._notices), []
        return found

    def _step(
        self,
        ids: Sequence[int],
        cancel: threading.Event | None,
        run: Run[_Got],
        *,
        needs_all: bool = False,
    ) -> _Got:
        """needs_all: what `run` gives is of no use where it didn't run all of the ids itself."""
        keeper = self._keeper
        if keeper is None:
            raise ModelUnloadedError
        before = self.length
        try:
            if self.state.live is None:
                self._reopen(keeper)
            keeper.make_writable(self, len(self._owed) + len(ids), cancel)
            try:
                return self._run(ids, run)
            except (OutOfMemoryError, StepRefusedError):
                if not keeper.leave_pool(self):
                    raise
            if needs_all:
                self.rewind(before)
            rest = ids[self.length - before :]
            keeper.make_writable(self, len(self._owed) + len(rest), cancel)
            return self._run(rest, run)
        except DeviceFaultError as fault:
            notice = keeper.leave_device(fault)
            self.rewind(before)
            raise StatesMoved(notice) from fault

    def _run(self, ids: Sequence[int], run: Run[_Got]) -> _Got:
        """In pages that are there and the state's own."""
        assert self.state.live is not None
        sequence, owed = self.state.live.sequence, self._owed
        whole = [*owed, *ids]
        try:
            return run(self.home, sequence, whole, len(owed))
        finally:
            grown = sequence.length - self.state.length
            self.state.ids.extend(as_ids(whole[:grown]))
            self._owed = owed[grown:]

    def _reopen(self, keeper: LeaseKeeper) -> None:
        wanted = self.ids[:]
        try:
            keeper.reopen(self)
        finally:
            self._owed = wanted[self.state.length :]
        if self.state.length < self.reused:
            self.reused, self.reason, self.diverged_at = self.state.length, ReuseReason.EVICTED, None
