"""A pool and a backend whose logits are a function of every byte that a sequence stands for.

A row holds a checksum of all ids up to it, made from the row before as it lies in the pages. So a wrong page,
a row left over from another text or a row too few gives other logits, now or with the next token.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from engine.backend import Sequence as PageTable
from engine.errors import Cancelled, DeviceFaultError, OutOfMemoryError
from engine.kv_geometry import PAGE, KvGeometry
from engine.states.pages import PageLedger
from engine.states.state import Home

GEOMETRY = KvGeometry("int8", ((1, 4),))  # K codes, V codes, K scales, V scales: 4 bytes a token each
_PARTS = 4
_PART_BYTES = PAGE * 4


class FakeDevice:
    """What pools and backends lie on. It fails for good once it was asked for something so many times."""

    def __init__(self) -> None:
        self.fails_after: int | None = None
        self.fault = DeviceFaultError("The device failed.")

    @property
    def failed(self) -> bool:
        return self.fails_after == 0

    def touch(self) -> None:
        if self.fails_after is not None:
            self.fails_after = max(0, self.fails_after - 1)
        if self.failed:
            raise self.fault


class FakePool:
    """`limit` may be lowered at any time, as when memory runs out; `room_for_copies`: how many more may be
    made of pages, None for any number.
    """

    def __init__(
        self, capacity: int, geometry: KvGeometry = GEOMETRY, device: FakeDevice | None = None
    ) -> None:
        self.device = device or FakeDevice()
        self.geometry = geometry
        self.capacity = capacity
        self.limit = capacity
        self.pages: dict[int, torch.Tensor] = {}
        self.copies = 0
        self.room_for_copies: int | None = None
        self._free: list[int] = []

    def allocate(self) -> int | None:
        if len(self.pages) >= min(self.limit, self.capacity):
            return None
        self.device.touch()
        page = self._free.pop() if self._free else len(self.pages)
        assert page not in self.pages
        self.pages[page] = torch.zeros(self.geometry.page_bytes, dtype=torch.uint8)
        return page

    def free(self, page: int) -> None:
        self.pages.pop(page).fill_(0xEE)  # whoever still reads it gets nonsense
        self._free.append(page)

    def copy(self, source: int, target: int) -> None:
        self.device.touch()
        self.copies += 1
        self.pages[target].copy_(self.pages[source])

    def read(self, page: int) -> torch.Tensor:
        if self.room_for_copies is not None:
            if not self.room_for_copies:
                raise OutOfMemoryError("There is no memory for a copy of a page.")
            self.room_for_copies -= 1
        self.device.touch()
        return self.pages[page].clone()

    def write(self, page: int, data: torch.Tensor) -> None:
        self.device.touch()
        assert data.shape == (self.geometry.page_bytes,)
        self.pages[page].copy_(data)


class FakeBackend:
    """`cancel_after`: the next prefill is cancelled when so many of its tokens are done; those behind have
    left rows by then.
    """

    spec: Any = None
    description = "nothing real"
    weight_bytes = 0

    def __init__(self, device: str = "cpu", lies_on: FakeDevice | None = None) -> None:
        self.device = device
        self.lies_on = lies_on or FakeDevice()
        self.cancel_after: int | None = None
        self.lacks_memory = False  # for what a step needs beside pages
        self.prefilled = 0  # tokens, in all

    def prefill(
        self,
        ids: Sequence[int],
        sequence: PageTable,
        pool: Any,
        *,
        all_logits: bool = False,
        cancel: threading.Event | None = None,
    ) -> torch.Tensor:
        done = len(ids)
        if self.lacks_memory:
            raise OutOfMemoryError("There is no memory for a step.")
        self.lies_on.touch()
        self.prefilled += done
        self._write(ids, sequence, pool)
        self.lies_on.touch()
        if self.cancel_after is not None:
            done, self.cancel_after = min(done, self.cancel_after), None
            sequence.length += done
            raise Cancelled
        sequence.length += done
        return logits_of([pool.pages[page] for page in sequence.pages], sequence.length)

    def decode(
        self, token: int, sequence: PageTable, pool: Any, *, cancel: threading.Event | None = None
    ) -> torch.Tensor:
        return self.prefill([token], sequence, pool, cancel=cancel)

    def _write(self, ids: Sequence[int], sequence: PageTable, pool: Any) -> None:
        position, before = sequence.length, b"\0\0\0\0"
        if position:
            page = pool.pages[sequence.pages[(position - 1) // PAGE]].numpy()
            before = page[4 * ((position - 1) % PAGE) :][:4].tobytes()
        rows = []
        for token in ids:
            before = zlib.crc32(token.to_bytes(4, "little"), int.from_bytes(before, "little")).to_bytes(
                4, "little"
            )
            rows.append((before, token.to_bytes(4, "little")))
        while rows:
            row = position % PAGE
            now, rows = rows[: PAGE - row], rows[PAGE - row :]
            page = pool.pages[sequence.pages[position // PAGE]].numpy()
            first, second = b"".join(each[0] for each in now), b"".join(each[1] for each in now)
            for part, content in enumerate((first, second, second, first)):
                start = part * _PART_BYTES + 4 * row
                page[start : start + len(content)] = np.frombuffer(content, np.uint8)
            position += len(now)


def logits_of(pages: Sequence[torch.Tensor], length: int) -> torch.Tensor:
    """What the first `length` rows say, and nothing behind them."""
    sums = [0] * _PARTS
    for first in range(0, length, PAGE):
        whole = memoryview(pages[first // PAGE].numpy())
        used = 4 * min(PAGE, length - first)
        for part in range(_PARTS):
            sums[part] = zlib.crc32(whole[part * _PART_BYTES :][:used], sums[part])
    return torch.tensor(sums, dtype=torch.float64)


def cold_logits(ids: Sequence[int]) -> torch.Tensor:
    """Of a full prefill in a pool of its own."""
    home = new_home(-(-len(ids) // PAGE))
    sequence = PageTable()
    assert home.ledger.make_writable(sequence, len(ids))
    return home.backend.prefill(ids, sequence, home.ledger.pool)


def new_home(capacity: int, device: str = "cpu") -> Home:
    lies_on = FakeDevice()
    backend: Any = FakeBackend(device, lies_on)
    return Home(backend, PageLedger(FakePool(capacity, device=lies_on)))
