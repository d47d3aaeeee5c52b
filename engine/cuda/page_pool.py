"""Pages in the card's memory, of the same bytes as the CPU's: see `engine/kv_geometry.py`."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.cuda.chunks import ChunkStore
from engine.cuda.driver import Address, CardDriver, as_bytes
from engine.cuda.memory import taken_bytes
from engine.errors import OutOfMemoryError
from engine.kv_geometry import KvGeometry

if TYPE_CHECKING:
    import torch

CHUNK_BYTES = 8 * 2**20  # taken at a time: a page of a small model is less than the card's unit of 2 MB
ALIGNMENT = 256

_versions = itertools.count()  # of all pools: no two have the same


def cache_bytes(geometry: KvGeometry, num_pages: int, *, capacity: int | None = None) -> int:
    """What a pool takes of the card at most while it holds so many pages, whole units of its memory and the
    pages of a chunk that nobody has yet included. capacity: of the pool; None: any.
    """
    if not num_pages:
        return 0
    chunk = _Chunk.of(geometry, sys.maxsize if capacity is None else capacity)
    return -(-num_pages // chunk.num_pages) * taken_bytes(chunk.num_bytes)


@dataclass(frozen=True)
class _Chunk:
    """What is taken at a time: pages, a stride apart."""

    num_pages: int
    stride: int

    @classmethod
    def of(cls, geometry: KvGeometry, capacity: int) -> _Chunk:
        stride = -(-geometry.page_bytes // ALIGNMENT) * ALIGNMENT
        return cls(max(1, min(capacity, CHUNK_BYTES // stride)), stride)

    @property
    def num_bytes(self) -> int:
        return self.num_pages * self.stride


class CudaPagePool:
    """Implements `engine.backend.PagePool`. Belongs to the thread of its driver; but it may be dropped by
    any.
    """

    def __init__(self, geometry: KvGeometry, capacity: int, driver: CardDriver, chunks: ChunkStore) -> None:
        self._geometry = geometry
        self._capacity = capacity
        self._driver = driver
        self._chunks = chunks
        self.version = next(_versions)  # another one whenever a page's number may stand for another place
        self._chunk = _Chunk.of(geometry, capacity)
        self._held: dict[int, Address] = {}  # chunks by number, of pages one after the other
        self._free: dict[int, list[int]] = {}  # pages of those that have some
        self._in_use: dict[int, Address] = {}  # pages, and where they begin
        weakref.finalize(self, _give_all, chunks, self._chunk.num_bytes, self._held)

    @property
    def geometry(self) -> KvGeometry:
        return self._geometry

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def num_pages(self) -> int:
        return len(self._in_use)

    def allocate(self) -> int | None:
        if len(self._in_use) >= self._capacity:
            return None
        if not self._free:
            try:
                self._take_chunk()
            except OutOfMemoryError:
                return None
        number = next(iter(self._free))
        page = self._free[number].pop()
        if not self._free[number]:
            del self._free[number]
        index = page % self._chunk.num_pages
        self._in_use[page] = Address(self._held[number] + index * self._chunk.stride)
        self._driver.fill(self.address(page), 0, self._geometry.page_bytes)
        return page

    def allocate_one(self) -> int:
        """As `allocate`, where there has to be a page. Raises OutOfMemoryError."""
        page = self.allocate()
        if page is None:
            raise OutOfMemoryError(
                f"The card has no room for a page of a conversation ({self._geometry.page_bytes:,} bytes).",
                "Close other programs that use the card, or pick a smaller model.",
            )
        return page

    def allocate_several(self, count: int, what: str) -> list[int]:
        """See `engine.paged_cache.OwnPool`."""
        pages: list[int] = []
        while len(pages) < count:
            page = self.allocate()
            if page is None:
                for each in pages:
                    self.free(each)
                raise OutOfMemoryError(
                    f"{what} doesn't fit into the card's memory.",
                    "Close other programs that use the card, or set a shorter context.",
                )
            pages.append(page)
        return pages

    def free(self, page: int) -> None:
        del self._in_use[page]
        number = page // self._chunk.num_pages
        pages = self._free.setdefault(number, [])
        pages.append(page)
        if len(pages) == self._chunk.num_pages:
            del self._free[number]
            self._chunks.give(self._chunk.num_bytes, [self._held.pop(number)])

    def copy(self, source: int, target: int) -> None:
        self._driver.copy(self.address(target), self.address(source), self._geometry.page_bytes)

    def read(self, page: int) -> torch.Tensor:
        import torch

        try:
            data = torch.empty(self._geometry.page_bytes, dtype=torch.uint8)
        except RuntimeError as error:  # what torch's allocator raises
            raise OutOfMemoryError(
                f"There is no memory for a page of a conversation ({self._geometry.page_bytes:,} bytes).",
                "Close other programs.",
            ) from error
        self._driver.download(as_bytes(data), self.address(page))
        return data

    def write(self, page: int, data: torch.Tensor) -> None:
        assert data.nbytes == self._geometry.page_bytes
        self._driver.upload(self.address(page), as_bytes(data))

    def address(self, page: int) -> Address:
        """Where the page begins on the card."""
        return self._in_use[page]

    def addresses(self, pages: Sequence[int]) -> list[Address]:
        """For a whole conversation with each token, where several take turns."""
        return [self._in_use[page] for page in pages]

    def _take_chunk(self) -> None:
        number = next(index for index in range(len(self._held) + 1) if index not in self._held)
        self._held[number] = self._chunks.take(self._chunk.num_bytes)
        self.version = next(_versions)
        first = number * self._chunk.num_pages
        self._free[number] = list(reversed(range(first, first + self._chunk.num_pages)))


def _give_all(chunks: ChunkStore, num_bytes: int, held: dict[int, Address]) -> None:
    """A pool that nobody has any more needs no pages."""
    chunks.give(num_bytes, list(held.values()))
    held.clear()
