"""Cosines and sines by position, in the card's memory: the CPU's own numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.cpu.rope import RopeTable
from engine.cuda.driver import Address, as_bytes
from engine.cuda.memory import CardMemory, Use
from engine.cuda.rope_sizes import FIRST_POSITIONS, bytes_to_come
from engine.models.spec import RopeSpec

if TYPE_CHECKING:
    import torch


class RopeTables:
    """Of every way in which a model's layers rotate. They grow by doubling, before a step that needs it; past
    half of the context, to all of it, so that the last growth doesn't find nearly all of them there.
    """

    def __init__(self, memory: CardMemory, ropes: set[RopeSpec], *, context: int) -> None:
        self._memory = memory
        self._context = context
        self._tables = {rope: RopeTable(rope) for rope in ropes}
        self._addresses: dict[RopeSpec, tuple[Address, Address]] = {}
        self._positions = 0
        self._grow(min(context, FIRST_POSITIONS))

    def has(self, positions: int) -> bool:
        """Whether there are rows for that many."""
        return positions <= self._positions

    def reserve(self, positions: int) -> bool:
        """Have rows for that many. Whether they had to be moved for it. Raises OutOfMemoryError, and then
        what was there stays.
        """
        if positions <= self._positions:
            return False
        count = max(positions, 2 * self._positions)
        if count > self._context // 2:
            count = self._context
        self._grow(count)
        return True

    def _grow(self, count: int) -> None:
        grown: dict[RopeSpec, tuple[Address, Address]] = {}
        try:
            for rope, table in self._tables.items():
                cosines, sines = table.rows(0, count)
                cosine_rows = self._upload(cosines[:, 0, 0])
                try:
                    grown[rope] = (cosine_rows, self._upload(sines[:, 0, 1]))
                except BaseException:
                    self._memory.free(cosine_rows)
                    raise
        except BaseException:
            self._free(grown)
            raise
        self._free(self._addresses)
        self._addresses = grown
        self._positions = count

    @property
    def bytes_to_come(self) -> int:
        """See `rope_sizes.bytes_to_come`."""
        return bytes_to_come(self._tables, self._positions, self._context)

    def of(self, rope: RopeSpec) -> tuple[Address, Address]:
        """Cosines and sines (positions, R / 2)."""
        return self._addresses[rope]

    def free(self) -> None:
        self._free(self._addresses)
        self._addresses = {}

    def _upload(self, rows: torch.Tensor) -> Address:
        address = self._memory.allocate(rows.nbytes, Use.WORKSPACE)
        try:
            self._memory.driver.upload(address, as_bytes(rows.contiguous()))
        except BaseException:
            self._memory.free(address)
            raise
        return address

    def _free(self, addresses: dict[RopeSpec, tuple[Address, Address]]) -> None:
        for pair in addresses.values():
            for address in pair:
                self._memory.free(address)
