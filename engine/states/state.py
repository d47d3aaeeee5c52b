"""One conversation inside the engine: which tokens it has read, and every copy of what came of them.

A state's keys and values lie in one place at a time: pages of a pool, or a copy in memory, or a file. Beside
that, an older file may still be there. Each copy carries the ids that it stands for, and moving a state's
length goes through `truncate`, which drops the copies that would say more than the state does.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from engine.backend import Backend, Sequence
from engine.kv_geometry import PAGE, KvGeometry, pages_for
from engine.states.pages import PageLedger, clear_rows

if TYPE_CHECKING:
    import torch

Place = Literal["pool", "ram", "disk", "fallback"]


def as_ids(ids: object) -> array[int]:
    """Token ids in the form that states keep: four bytes each, and two of them are compared as memory."""
    return array("I", ids)  # type: ignore[call-overload,no-any-return]


@dataclass(frozen=True)
class Home:
    """Where states are computed: a backend, and the pages that it computes with."""

    backend: Backend
    ledger: PageLedger


@dataclass(frozen=True)
class Live:
    """A state's pages in a pool."""

    home: Home
    sequence: Sequence


@dataclass(frozen=True)
class RamCopy:
    """Pages as bytes, never changed: whoever holds them may go on reading. Rows behind the ids are zeros."""

    geometry: KvGeometry
    ids: array[int]
    pages: tuple[torch.Tensor, ...]  # uint8 (page_bytes,)

    @property
    def num_bytes(self) -> int:
        return sum(page.nbytes for page in self.pages)

    def first(self, length: int) -> RamCopy:
        """The copy of the first `length` tokens; shares the pages that it needs whole."""
        pages = list(self.pages[: pages_for(length)])
        if length % PAGE:
            pages[-1] = pages[-1].clone()
            clear_rows(pages[-1], self.geometry, length % PAGE)
        return RamCopy(self.geometry, self.ids[:length], tuple(pages))


class DiskCopy(Protocol):
    """A file, or one that is being written."""

    @property
    def ids(self) -> array[int]: ...

    @property
    def ready(self) -> bool:
        """Whether the file is whole and at its place."""

    @property
    def failed(self) -> bool:
        """Whether there will never be one."""

    def is_there(self) -> bool:
        """`ready`, and the file still lies at its place: it may have had to make room for others since."""

    def remove(self) -> None:
        """Neither file nor part of one is left, now or later. Never raises."""


@dataclass(eq=False)
class State:
    """`ids` are the tokens that are cached, always."""

    conversation: str
    ids: array[int] = field(default_factory=lambda: array("I"))
    live: Live | None = None
    ram: RamCopy | None = None
    disk: DiskCopy | None = None
    leaves_memory: bool = False  # its copy there goes as soon as there is a file, whatever the budget is
    used_ns: int = 0  # when it was used last, in the system's time
    last_reuse: tuple[int, int] | None = None  # tokens of its last prompt: reused, in all

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def num_pages(self) -> int:
        return pages_for(self.length)

    @property
    def place(self) -> Place:
        """Where it lies, were it not used just now."""
        if self.live is not None:
            return "pool"
        return "ram" if self.ram is not None else "disk"

    def truncate(self, length: int) -> None:
        """Forget the tokens from `length` on, in every copy. A file can't be shortened: it is removed. If it
        was all that there was, the state is empty then.
        """
        assert 0 <= length <= self.length
        if length == self.length:
            return
        if self.live is not None:
            self.live.home.ledger.truncate(self.live.sequence, length)
        if self.ram is not None:
            self.ram = self.ram.first(length)
        if self.disk is not None and len(self.disk.ids) > length:
            self.drop_disk()
        del self.ids[length if self.live is not None or self.ram is not None else 0 :]

    def move_to(self, live: Live) -> None:
        """Its pages are in a pool now, as many as `live` says; what lies behind is forgotten, in every copy.
        Pages that it had in another pool are given back.
        """
        self.release_live()
        self.live, self.ram, self.leaves_memory = live, None, False
        length = live.sequence.length
        if self.disk is not None and len(self.disk.ids) > length:
            self.drop_disk()
        del self.ids[length:]

    def park(self, copy: RamCopy) -> None:
        """Its pages are in memory now, all of them, and those in the pool are given back."""
        assert copy.ids == self.ids
        self.ram, self.leaves_memory = copy, False
        self.release_live()

    def fall_back_to_disk(self) -> None:
        """Only its file counts from now on; without one, the state is empty."""
        self.release_live()
        self.ram = None
        if self.disk is not None and self.disk.failed:
            self.disk = None
        del self.ids[len(self.disk.ids) if self.disk is not None else 0 :]

    def become(self, disk: DiskCopy) -> None:
        """A file that is now in the place of its own is all that counts."""
        self.release_live()
        self.ram, self.disk = None, disk
        self.ids[:] = disk.ids

    def drop_disk(self) -> None:
        if self.disk is not None:
            self.disk.remove()
            self.disk = None

    def discard(self) -> None:
        """Nothing is kept of it, anywhere."""
        self.release_live()
        self.ram = None
        self.drop_disk()
        del self.ids[:]

    def release_live(self) -> None:
        if self.live is not None:
            self.live.home.ledger.release(self.live.sequence)
            self.live = None

    def check(self) -> None:
        """For tests: every copy stands for a beginning of the ids, and one of them for all."""
        copies = []
        if self.live is not None:
            assert self.live.sequence.length == self.length
            copies.append(self.length)
        for copy in (self.ram, self.disk):
            if copy is not None:
                assert copy.ids == self.ids[: len(copy.ids)]
                copies.append(len(copy.ids))
        assert max(copies, default=0) == self.length
