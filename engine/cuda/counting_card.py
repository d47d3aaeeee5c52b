"""A card that only counts what is taken of it: so a plan allocates what a load does, by the same code, and
nothing happens. No torch.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, cast

from engine.cuda.driver import Address, CardInfo, Letterbox, Mark
from engine.cuda.memory import taken_bytes
from engine.errors import OutOfMemoryError

if TYPE_CHECKING:
    from engine.cuda.driver import Bytes


class CountingCard:
    """As much of a `CardDriver` as taking memory needs. free: bytes that it has."""

    def __init__(self, info: CardInfo, free: int) -> None:
        self._info = info
        self._free = free
        self._addresses = itertools.count(1)
        self._held: dict[Address, int] = {}

    @property
    def info(self) -> CardInfo:
        return self._info

    def free_bytes(self) -> int:
        return self._free

    def allocate(self, num_bytes: int) -> Address:
        taken = taken_bytes(num_bytes)
        if taken > self._free:
            raise OutOfMemoryError(
                f"{num_bytes:,} bytes more are needed on the card, and {self._free:,} are free.",
                "Close other programs that use the card, or pick a smaller model.",
            )
        address = Address(next(self._addresses))
        self._held[address] = taken
        self._free -= taken
        return address

    def free(self, address: Address) -> None:
        self._free += self._held.pop(address)

    def upload(self, target: Address, source: Bytes) -> None:
        """Nothing is there."""

    def fill(self, target: Address, value: int, num_bytes: int) -> None:
        """Nothing is there."""

    def open_letterbox(self, num_bytes: int) -> Letterbox:
        """Nobody looks into it."""
        return Letterbox(Address(next(self._addresses)), cast("Bytes", b""))

    def new_mark(self, *, ahead: bool = True) -> Mark:
        return Mark(object())
