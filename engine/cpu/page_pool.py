"""Pages of keys and values in the computer's memory, taken from the system one by one."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import torch

from engine.cpu.memory import check_available, failed_allocations_told, has_room_for, out_of_memory
from engine.kv_geometry import PAGE, KvGeometry


class CpuPagePool:
    """See `engine.backend.PagePool`.

    Each page is a mapping of its own: C libraries keep what is freed in pieces of this size for themselves,
    a mapping goes back to the system at once, and comes as zeros.
    """

    def __init__(self, geometry: KvGeometry, capacity: int) -> None:
        self.geometry = geometry
        self.capacity = capacity
        self._pages: list[torch.Tensor | None] = []
        self._unused: list[int] = []  # numbers of pages that were freed

    @property
    def num_pages(self) -> int:
        return len(self._pages) - len(self._unused)

    def allocate(self) -> int | None:
        if self.num_pages == self.capacity or not has_room_for(self.geometry.page_bytes):
            return None
        data = _zeros(self.geometry.page_bytes)
        if data is None:
            return None
        if self._unused:
            page = self._unused.pop()
            self._pages[page] = data
            return page
        self._pages.append(data)
        return len(self._pages) - 1

    def allocate_several(self, count: int, what: str) -> list[int]:
        """See `engine.paged_cache.OwnPool`."""
        assert self.num_pages + count <= self.capacity
        num_bytes = count * self.geometry.page_bytes
        check_available(num_bytes, what)  # before the first page is taken, not with the last one
        pages: list[int] = []
        while len(pages) < count:
            page = self.allocate()
            if page is None:
                for each in pages:
                    self.free(each)
                raise out_of_memory(num_bytes, what)
            pages.append(page)
        return pages

    def free(self, page: int) -> None:
        self.bytes_of(page)  # it is there
        self._pages[page] = None
        self._unused.append(page)

    def copy(self, source: int, target: int) -> None:
        self.bytes_of(target).copy_(self.bytes_of(source))

    def read(self, page: int) -> torch.Tensor:
        with failed_allocations_told():
            return self.bytes_of(page).clone()

    def write(self, page: int, data: torch.Tensor) -> None:
        assert data.dtype == torch.uint8
        assert data.shape == (self.geometry.page_bytes,)
        self.bytes_of(page).copy_(data)

    def bytes_of(self, page: int) -> torch.Tensor:
        """The page itself, uint8 (page_bytes,)."""
        data = self._pages[page]
        assert data is not None, "this page is free"
        return data

    def addresses(self, pages: Sequence[int]) -> list[int]:
        """Where the pages are; valid until they are freed."""
        return [self.bytes_of(page).data_ptr() for page in pages]

    def layer(self, page: int, index: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Views of one layer of a page: numbers (2G, 64, D), K heads before V heads, int8 or float32, and for
        int8 their scales (2G, 64).
        """
        heads, head_dim = self.geometry.layers[index]
        data = self.bytes_of(page)[self.geometry.layer_offsets[index] :]
        count = 2 * heads * PAGE
        if self.geometry.format == "native":
            return data[: 4 * count * head_dim].view(torch.float32).view(-1, PAGE, head_dim), None
        codes = data[: count * head_dim].view(torch.int8).view(-1, PAGE, head_dim)
        scales = data[count * head_dim : count * (head_dim + 4)].view(torch.float32).view(-1, PAGE)
        return codes, scales


def _zeros(num_bytes: int) -> torch.Tensor | None:
    """None where the system has no memory left. It is written to at once: what was only promised would be
    missing in the middle of a step.
    """
    try:
        memory = mmap.mmap(-1, num_bytes)
    except (OSError, MemoryError):
        return None
    return torch.frombuffer(memory, dtype=torch.uint8).zero_()
