"""Pages in the card's memory, of the same bytes as the CPU's: see `engine/kv_geometry.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.cuda.driver import Address, as_bytes
from engine.cuda.memory import CardMemory, Use
from engine.errors import OutOfMemoryError
from engine.kv_geometry import KvGeometry

if TYPE_CHECKING:
    import torch

_CHUNK_BYTES = 8 * 2**20  # allocated at a time: a page of a small model is less than the card's unit of 2 MB
_ALIGNMENT = 256


class CudaPagePool:
    """Implements `engine.backend.PagePool`. Belongs to the thread of its driver.

    Memory is taken in chunks of several pages; a chunk is given back when none of its pages is in use and
    another such chunk is there: giving back waits for the card.
    """

    def __init__(self, geometry: KvGeometry, capacity: int, memory: CardMemory) -> None:
        self._geometry = geometry
        self._capacity = capacity
        self._memory = memory
        self._stride = -(-geometry.page_bytes // _ALIGNMENT) * _ALIGNMENT
        self._pages_a_chunk = max(1, min(capacity, _CHUNK_BYTES // self._stride))
        self._chunks: dict[int, _Chunk] = {}
        self._in_use: set[int] = set()
        self._next_chunk = 0

    @property
    def geometry(self) -> KvGeometry:
        return self._geometry

    @property
    def capacity(self) -> int:
        return self._capacity

    def allocate(self) -> int | None:
        if len(self._in_use) >= self._capacity:
            return None
        chunk = next((each for each in self._chunks.values() if each.free), None)
        if chunk is None:
            try:
                chunk = self._new_chunk()
            except OutOfMemoryError:
                return None
        page = chunk.free.pop()
        self._in_use.add(page)
        self._memory.driver.fill(self.address(page), 0, self._geometry.page_bytes)
        return page

    def free(self, page: int) -> None:
        self._in_use.remove(page)
        chunk = self._chunks[page // self._pages_a_chunk]
        chunk.free.append(page)
        empty = [each for each in self._chunks.values() if len(each.free) == self._pages_a_chunk]
        if len(empty) > 1:
            del self._chunks[chunk.number]
            self._memory.free(chunk.address)

    def copy(self, source: int, target: int) -> None:
        self._memory.driver.copy(self.address(target), self.address(source), self._geometry.page_bytes)

    def read(self, page: int) -> torch.Tensor:
        import torch

        try:
            data = torch.empty(self._geometry.page_bytes, dtype=torch.uint8)
        except RuntimeError as error:  # what torch's allocator raises
            raise OutOfMemoryError(
                f"There is no memory for a page of a conversation ({self._geometry.page_bytes:,} bytes).",
                "Close other programs.",
            ) from error
        self._memory.driver.download(as_bytes(data), self.address(page))
        return data

    def write(self, page: int, data: torch.Tensor) -> None:
        assert data.nbytes == self._geometry.page_bytes
        self._memory.driver.upload(self.address(page), as_bytes(data))

    def close(self) -> None:
        """Frees what no page is in. Nothing may be allocated any more."""
        assert not self._in_use
        while self._chunks:
            _, chunk = self._chunks.popitem()
            self._memory.free(chunk.address)

    def address(self, page: int) -> Address:
        """Where the page begins on the card."""
        assert page in self._in_use
        number, index = divmod(page, self._pages_a_chunk)
        return Address(self._chunks[number].address + index * self._stride)

    def addresses(self, pages: Sequence[int]) -> list[Address]:
        return [self.address(page) for page in pages]

    def _new_chunk(self) -> _Chunk:
        address = self._memory.allocate(self._pages_a_chunk * self._stride, Use.CACHE)
        chunk = _Chunk(self._next_chunk, address, self._pages_a_chunk)
        self._next_chunk += 1
        self._chunks[chunk.number] = chunk
        return chunk


class _Chunk:
    def __init__(self, number: int, address: Address, num_pages: int) -> None:
        self.number = number
        self.address = address
        first = number * num_pages
        self.free = list(reversed(range(first, first + num_pages)))
