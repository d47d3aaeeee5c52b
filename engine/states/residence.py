"""Places in the pool: who may have one, who has to leave, and where a state goes that finds none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from engine.errors import OutOfMemoryError
from engine.kv_geometry import KvGeometry, pages_for
from engine.notices import Notice
from engine.states.lease import Lease
from engine.states.parking import Parking
from engine.states.state import Home, Live, RamCopy, State
from engine.wording import format_tokens

if TYPE_CHECKING:
    import torch

_Got = TypeVar("_Got")


class Residence:
    """Makes room in the home's pool by parking idle states, least recently used first. What can't be had
    there is had in a pool of the state's own; if not there either, nothing has changed.
    """

    def __init__(
        self,
        home: Home,
        *,
        slots: int,
        new_fallback: Callable[[], Home],
        parking: Parking,
        idle: Mapping[str, State],
        leases: Iterable[Lease],
    ) -> None:
        """idle, leases: the store's own, as they are at any time."""
        self._home = home
        self._slots = slots
        self._new_fallback = new_fallback
        self._parking = parking
        self._idle = idle
        self._leases = leases

    @property
    def geometry(self) -> KvGeometry:
        return self._home.ledger.pool.geometry

    @property
    def home(self) -> Home:
        return self._home

    def move(self, home: Home) -> None:
        """To another device. What states have in the old pool is the caller's to give up."""
        self._home = home

    def is_home(self, state: State) -> bool:
        return state.live is not None and state.live.home is self._home

    def fork(self, source: State, length: int) -> Live:
        """The first `length` tokens of a state that is in the pool, for another one. The source may be parked
        for it, but is not changed. Raises OutOfMemoryError.
        """
        assert source.live is not None
        assert source.live.home is self._home
        ledger = self._home.ledger
        sequence = ledger.fork(source.live.sequence, length)
        if self.free_slot():
            return Live(self._home, sequence)
        try:
            return self._fall_back(ledger.read(sequence), length)
        finally:
            ledger.release(sequence)

    def share(self, source: State, forked: State) -> None:
        """Gives an idle state the tokens that it has in common with one that is in a pool: on the same pages
        where it may be in the home's pool, else as copies in memory. The source may be parked for it, but is
        not changed. Raises OutOfMemoryError.
        """
        assert source.live is not None
        home = source.live.home
        sequence = home.ledger.fork(source.live.sequence, forked.length)
        try:
            if home is self._home and self.free_slot():
                forked.live = Live(home, sequence)
            else:
                forked.ram = RamCopy(self.geometry, forked.ids[:], tuple(home.ledger.read(sequence)))
        finally:
            if forked.live is None:
                home.ledger.release(sequence)

    def load(self, pages: Sequence[torch.Tensor], length: int) -> Live:
        """The first `length` tokens of some pages. Raises OutOfMemoryError."""
        if self.free_slot():
            sequence = self._with_room(lambda: self._home.ledger.load(pages, length))
            if sequence is not None:
                return Live(self._home, sequence)
        return self._fall_back(pages, length)

    def make_writable(self, lease: Lease, num_tokens: int, cancel: threading.Event | None = None) -> None:
        """See `PageLedger.make_writable`. If the pool has no room, the state leaves it. Raises
        OutOfMemoryError, and Cancelled while it waits for the disk to have memory.
        """
        live = lease.state.live
        assert live is not None
        ledger, sequence = live.home.ledger, live.sequence
        if ledger.make_writable(sequence, num_tokens):
            return
        if live.home is self._home:
            if self._with_room(lambda: ledger.make_writable(sequence, num_tokens) or None, cancel):
                return
            fallback = self._fall_back(ledger.read(sequence), sequence.length)
            if fallback.home.ledger.make_writable(fallback.sequence, num_tokens):
                self._move_out(lease, fallback)
                return
        raise _out_of_memory(sequence.length + num_tokens)

    def leave_pool(self, lease: Lease) -> bool:
        """Where a step is done on another device than the home's, the state goes there. Raises
        OutOfMemoryError.
        """
        live = lease.state.live
        assert live is not None
        if live.home is not self._home or self._home.backend.device == "cpu":
            return False
        fallback = self._fall_back(live.home.ledger.read(live.sequence), live.sequence.length)
        if fallback.home.backend is self._home.backend:
            fallback.home.ledger.release(fallback.sequence)
            return False
        self._move_out(lease, fallback)
        return True

    def _move_out(self, lease: Lease, fallback: Live) -> None:
        lease.state.move_to(fallback)
        lease.add_notice(self.fallback_notice(fallback.home))

    def fallback_notice(self, home: Home) -> Notice:
        """Why a state is in a pool of its own, in `home`."""
        device = "the CPU" if home.backend.device == "cpu" else home.backend.device
        if self._home.backend.device != "cpu" and self._num_residents() < self._slots:
            return Notice(
                "state-fallback",
                f"The graphics card has no memory left for this conversation; it is computed on {device} "
                "until there is.",
                "Close other programs that use the card, or choose a shorter context.",
            )
        return Notice(
            "state-fallback",
            f"The pool had no room for this conversation beside those that are being answered; it is "
            f"computed on {device}, in memory of its own, until a place is free.",
            "If this happens often, choose a shorter context, or fewer answers at the same time.",
        )

    def free_slot(self) -> bool:
        """Whether one more state may be in the pool; parks idle ones for it."""
        while self._num_residents() >= self._slots:
            if not self._park_one():
                return False
        return True

    def check(self, states: Iterable[State]) -> None:
        """For tests: the pool's pages are exactly those of `states`."""
        residents = [state.live.sequence for state in states if state.live and self.is_home(state)]
        assert len(residents) <= self._slots
        self._home.ledger.check(residents)

    def _num_residents(self) -> int:
        states = [*self._idle.values(), *(lease.state for lease in self._leases)]
        return sum(self.is_home(state) for state in states)

    def _with_room(
        self, attempt: Callable[[], _Got | None], cancel: threading.Event | None = None
    ) -> _Got | None:
        """What `attempt` gives, once idle states have made enough room for it."""
        while (got := attempt()) is None and (self._park_one() or self._relieve_memory(cancel)):
            pass
        return got

    def _relieve_memory(self, cancel: threading.Event | None) -> bool:
        """Where a pool that isn't full has no page to give, and lies in the same memory as parked copies."""
        ledger = self._home.ledger
        if self._home.backend.device != "cpu" or ledger.num_pages == ledger.pool.capacity:
            return False
        return self._parking.relieve(list(self._idle.values()), cancel)

    def _park_one(self) -> bool:
        idle = [state for state in self._idle.values() if self.is_home(state)]
        if not idle:
            return False
        self._parking.park(min(idle, key=lambda state: state.used_ns))
        self._parking.settle(self._idle.values())
        return True

    def _fall_back(self, pages: Sequence[torch.Tensor], length: int) -> Live:
        home = self._new_fallback()
        sequence = home.ledger.load(pages, length)
        if sequence is None:
            raise _out_of_memory(length)
        return Live(home, sequence)


def _out_of_memory(num_tokens: int) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"There is no memory for the keys and values of {format_tokens(num_tokens)} "
        f"({pages_for(num_tokens):,} pages).",
        "Close other programs, or choose a smaller model or a shorter context.",
    )
