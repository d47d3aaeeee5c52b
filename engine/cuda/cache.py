"""One sequence with a pool of its own on the card, which grows with it."""

from __future__ import annotations

from engine.backend import Sequence
from engine.cuda.page_pool import CudaPagePool
from engine.errors import OutOfMemoryError
from engine.kv_geometry import pages_for
from engine.wording import format_tokens


class CudaCache:
    """See `engine.backend.Cache`."""

    def __init__(self, pool: CudaPagePool) -> None:
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
        """Make room for `length` tokens. Raises OutOfMemoryError, and then no row has changed."""
        pages = self.sequence.pages
        while len(pages) < pages_for(length):
            page = self.pool.allocate()
            if page is None:
                raise OutOfMemoryError(
                    f"A cache for {format_tokens(length)} doesn't fit into the card's memory.",
                    "Close other programs that use the card, or set a shorter context.",
                )
            pages.append(page)
