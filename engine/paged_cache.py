"""One sequence with a pool of its own, which grows with it. What needs no conversations uses this, on any
device.
"""

from __future__ import annotations

from typing import Protocol

from engine.backend import PagePool, Sequence
from engine.kv_geometry import pages_for
from engine.wording import format_tokens


class OwnPool(PagePool, Protocol):
    """A pool that can say why it has no room."""

    def allocate_several(self, count: int, what: str) -> list[int]:
        """As `allocate`, for `what`. Raises OutOfMemoryError, and then nothing has changed."""


class PagedCache:
    """See `engine.backend.Cache`."""

    def __init__(self, pool: OwnPool) -> None:
        self.pool = pool
        self.sequence = Sequence()

    @property
    def length(self) -> int:
        return self.sequence.length

    def truncate(self, length: int) -> None:
        assert 0 <= length <= self.sequence.length
        self.sequence.length = length

    def close(self) -> None:
        while self.sequence.pages:
            self.pool.free(self.sequence.pages.pop())

    def reserve(self, length: int) -> None:
        """Make room for `length` tokens. Raises OutOfMemoryError, and then nothing has changed."""
        pages = self.sequence.pages
        missing = pages_for(length) - len(pages)
        if missing > 0:
            pages += self.pool.allocate_several(missing, f"A cache for {format_tokens(length)}")
