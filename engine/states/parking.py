"""Idle states out of the pool: as copies in memory within a budget, then as files; and back.

A copy in memory is let go only when its file is whole. Where there is no file to be had, the state is lost,
and its conversation's next answer says so.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from engine.errors import OutOfMemoryError
from engine.kv_geometry import KvGeometry
from engine.notices import Notice
from engine.states.kv_file import KvFileError
from engine.states.kv_folder import KvFolder
from engine.states.kv_writer import StoredState
from engine.states.state import DiskCopy, RamCopy, State

if TYPE_CHECKING:
    import torch

OnLost = Callable[[State, int, bool], None]
"""Called with a state of which nothing is left, how many tokens it had, and whether a notice has said why."""

RamBudget = int | Callable[[int], int]
"""Bytes; or what gives them at any time, for as many as are taken: what is free changes after a load."""

_MAX_PENDING = 4  # states that wait to be written, in memory beyond the budget; a slow disk must not fill it


class Parking:
    """To be used from one thread."""

    def __init__(self, folder: KvFolder | None, *, ram_budget: RamBudget, on_lost: OnLost) -> None:
        """folder: None keeps nothing on disk. ram_budget: bytes of pages that copies in memory may take."""
        self._folder = folder
        self._budget = ram_budget
        self._on_lost = on_lost

    def limit(self, *, ram_budget: RamBudget, disk_budget: int | None) -> None:
        """Hold to these budgets from now on; memory from the next `settle` on, which may have a lot to do."""
        self._budget = ram_budget
        if self._folder is not None:
            self._folder.limit(disk_budget)

    def index(self) -> list[State]:
        """What earlier runs of the program left on disk, and what an earlier load in this one is leaving."""
        if self._folder is None:
            return []
        return [self._state(stored, self._folder.geometry) for stored in self._folder.index()]

    def find(self, conversation: str) -> State | None:
        """What lies on disk of a conversation by now."""
        stored = None if self._folder is None else self._folder.find(conversation)
        if stored is None or self._folder is None:
            return None
        return self._state(stored, self._folder.geometry)

    def park(self, state: State) -> None:
        """Its pages are in memory then, and those in the pool are free. Takes one page of memory beside those
        of the pool; where not even that can be had, the state is lost.
        """
        assert state.live is not None
        ledger = state.live.home.ledger
        try:
            pages = tuple(ledger.take_out(state.live.sequence))
        except OutOfMemoryError:
            self._lose(state)
        else:
            state.park(RamCopy(ledger.pool.geometry, state.ids[:], pages))

    def settle(self, idle: Iterable[State], *, lose_none: bool = False) -> None:
        """Has the states that were used least recently written, until what stays in memory is within the
        budget; lets them go when they are files. More than a few that wait for the disk are lost, the oldest
        first, for new ones come all the time; `lose_none`: not these. idle: every state that nobody uses.
        """
        in_ram = [state for state in idle if state.ram is not None and not self._has_left(state)]
        staying = [state for state in in_ram if not _is_being_written(state)]
        holders = Counter(id(page) for state in staying for page in _ram_pages(state))
        excess = _num_bytes(staying) - self._budget_for(in_ram)
        leaving = []
        for state in sorted(staying, key=lambda state: state.used_ns):
            if excess <= 0:
                break
            pages = _ram_pages(state)
            holders.subtract(id(page) for page in pages)
            excess -= sum(page.nbytes for page in pages if not holders[id(page)])
            leaving.append(state)
        for state in reversed(leaving):
            self._send_away(state, may_lose=not lose_none)

    def free(self, idle: Iterable[State]) -> None:
        """All of them leave pool and memory: at once where they lie on disk, else when they do. What can't be
        written is lost.
        """
        for state in idle:
            if state.live is not None:
                self.park(state)
            if state.ram is None:
                continue
            state.leaves_memory = True
            if not _is_being_written(state):
                self._send_away(state, may_lose=False)

    def relieve(self, idle: Iterable[State], cancel: threading.Event | None = None) -> bool:
        """For when the memory itself is full: lets the copy go that was used least recently, and waits for
        the disk if it is not written yet. False: there is none.
        """
        in_ram = [state for state in idle if state.ram is not None]
        if not in_ram:
            return False
        oldest = min(in_ram, key=lambda state: state.used_ns)
        if not _is_on_disk(oldest) and not _is_being_written(oldest):
            self._send_away(oldest)
        self.wait(cancel)
        if _is_on_disk(oldest):
            oldest.ram = None
        elif oldest.ram is not None:
            self._lose(oldest)
        return True

    def pages(self, state: State, count: int) -> list[torch.Tensor] | None:
        """Copies of the first `count` pages of a state that is in no pool. None: they can't be had any more;
        the state is what another process has put in its file's place, or nothing is left of it.
        """
        if state.ram is not None:
            return list(state.ram.pages[:count])
        assert isinstance(state.disk, StoredState)
        assert self._folder is not None
        if written := state.disk.pages:
            return list(written[:count])
        try:
            pages = self._folder.read(state.disk, count)
        except KvFileError:
            self._lose(state, told=True)
            return None
        if pages is None:
            found = self._folder.find(state.conversation)
            if found is None:
                self._lose(state)
            else:
                state.become(found)
        return pages

    def is_of_other_model(self, conversation: str) -> bool:
        return self._folder is not None and self._folder.has_other_model(conversation)

    def forget(self, conversation: str) -> None:
        if self._folder is not None:
            self._folder.forget(conversation)

    def keep(self, states: Iterable[State]) -> None:
        """Has everything written that is worth it, for the next start, and empties pool and memory; what was
        used last comes first. Returns at once, the writing goes on.
        """
        for state in sorted(states, key=lambda state: -state.used_ns):
            if state.live is not None:
                self.park(state)
            done = _is_on_disk(state) or _is_being_written(state)
            if state.ram is not None and self._folder is not None and not done:
                self._write(state, self._folder)
            state.ram = None

    def wait(self, cancel: threading.Event | None = None) -> None:
        """Until nothing is left to be written. Raises Cancelled once `cancel` is set."""
        if self._folder is not None:
            self._folder.wait(cancel)

    def take_notices(self) -> tuple[Notice, ...]:
        return () if self._folder is None else self._folder.take_notices()

    def _has_left(self, state: State) -> bool:
        """Whether it was to go, and there is nothing of it in memory any more."""
        if not state.leaves_memory or _is_being_written(state):
            return False
        self._send_away(state, may_lose=False)
        return state.ram is None

    def _budget_for(self, in_ram: list[State]) -> int:
        if isinstance(self._budget, int):
            return self._budget
        return self._budget(_num_bytes(in_ram)) if in_ram else 0

    def _state(self, stored: StoredState, geometry: KvGeometry) -> State:
        """What is still being written is in memory as well."""
        ids, pages = stored.ids[:], tuple(stored.pages)
        ram = RamCopy(geometry, ids[:], pages) if pages else None
        return State(stored.conversation, ids=ids, ram=ram, disk=stored, used_ns=stored.used_ns)

    def _send_away(self, state: State, *, may_lose: bool = True) -> None:
        """may_lose: rather than have it wait behind many others."""
        if _is_on_disk(state):
            state.ram = None
            return
        folder = None if _has_failed(state) else self._folder
        if folder is None or (may_lose and folder.num_pending >= _MAX_PENDING):
            self._lose(state)
        else:
            self._write(state, folder)

    def _write(self, state: State, folder: KvFolder) -> None:
        """An older file of the state lies at the same place, and is replaced."""
        assert state.ram is not None
        state.disk = folder.write(state.conversation, state.ram.ids, state.ram.pages, used_ns=state.used_ns)

    def _lose(self, state: State, *, told: bool = False) -> None:
        tokens = state.length
        state.discard()
        self._on_lost(state, tokens, told)


def _is_on_disk(state: State) -> bool:
    return state.disk is not None and _is_whole(state.disk, state) and state.disk.is_there()


def _has_failed(state: State) -> bool:
    return state.disk is not None and state.disk.failed and _is_whole(state.disk, state)


def _is_being_written(state: State) -> bool:
    disk = state.disk
    return disk is not None and not disk.ready and not disk.failed and _is_whole(disk, state)


def _is_whole(disk: DiskCopy, state: State) -> bool:
    return len(disk.ids) == state.length  # it always stands for a beginning of the state's ids


def _ram_pages(state: State) -> tuple[torch.Tensor, ...]:
    """Forks hold the same ones."""
    return () if state.ram is None else state.ram.pages


def _num_bytes(states: Iterable[State]) -> int:
    """What their copies in memory take."""
    return sum({id(page): page.nbytes for state in states for page in _ram_pages(state)}.values())
