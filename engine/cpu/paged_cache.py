"""One sequence with a pool of its own, which grows with it: what needs no conversations uses this."""

from __future__ import annotations

from engine.backend import Sequence
from engine.cpu.memory import check_available, out_of_memory
from engine.cpu.page_pool import CpuPagePool
from engine.kv_geometry import KvGeometry, pages_for
from engine.wording import format_tokens


class PagedCache:
    """See `engine.backend.Cache`."""

    def __init__(self, geometry: KvGeometry, *, max_length: int) -> None:
        self.pool = CpuPagePool(geometry, pages_for(max_length))
        self.sequence = Sequence()

    @property
    def length(self) -> int:
        return self.sequence.length

    @property
    def num_bytes(self) -> int:
        return self.pool.num_pages * self.pool.geometry.page_bytes

    def truncate(self, length: int) -> None:
        assert 0 <= length <= self.sequence.length
        self.sequence.length = length

    def close(self) -> None:
        while self.sequence.pages:
            self.pool.free(self.sequence.pages.pop())

    def reserve(self, length: int) -> None:
        """Make room for `length` tokens. Raises OutOfMemoryError, and then no row has changed."""
        pages = self.sequence.pages
        missing = pages_for(length) - len(pages)
        if missing <= 0:
            return
        what = f"A cache for {format_tokens(length)}"
        check_available(missing * self.pool.geometry.page_bytes, what)
        self.pool.capacity = max(self.pool.capacity, pages_for(length))
        for _ in range(missing):
            page = self.pool.allocate()
            if page is None:
                raise out_of_memory(missing * self.pool.geometry.page_bytes, what)
            pages.append(page)
