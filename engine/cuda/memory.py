"""The card's memory by what it is for, within a budget: what the window shows, and what a load may take."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping

from engine.cuda.driver import Address, CardDriver
from engine.errors import OutOfMemoryError


class Use(enum.Enum):
    WEIGHTS = "weights"
    CACHE = "cache"
    WORKSPACE = "workspace"


class CardMemory:
    """Every allocation goes through here. budget: bytes in all; None: what the card has."""

    def __init__(self, driver: CardDriver, budget: int | None = None) -> None:
        self._driver = driver
        self._budget = budget
        self._held: dict[Address, tuple[Use, int]] = {}
        self._by_use: Counter[Use] = Counter()

    @property
    def driver(self) -> CardDriver:
        return self._driver

    @property
    def num_bytes(self) -> Mapping[Use, int]:
        """What is held, by use."""
        return dict(self._by_use)

    def available(self) -> int:
        """Bytes that may still be taken: of the budget, and of what is free on the card now."""
        free = self._driver.free_bytes()
        return free if self._budget is None else min(free, self._budget - sum(self._by_use.values()))

    def allocate(self, num_bytes: int, use: Use) -> Address:
        """Raises OutOfMemoryError, and then nothing has changed."""
        if self._budget is not None and sum(self._by_use.values()) + num_bytes > self._budget:
            raise OutOfMemoryError(
                f"{num_bytes:,} bytes more are needed on the card for {use.value}, and "
                f"{max(0, self.available()):,} are left of the VRAM budget.",
                "Raise the budget, or pick a smaller model.",
            )
        address = self._driver.allocate(num_bytes)
        self._held[address] = (use, num_bytes)
        self._by_use[use] += num_bytes
        return address

    def free(self, address: Address) -> None:
        use, num_bytes = self._held.pop(address)
        self._by_use[use] -= num_bytes
        self._driver.free(address)

    def free_all(self) -> None:
        """Of every use. Raises what the driver raises, and then frees the rest all the same."""
        fault: Exception | None = None
        for address in list(self._held):
            try:
                self.free(address)
            except Exception as error:  # noqa: BLE001  (raised below; the others must go too)
                fault = fault or error
        if fault is not None:
            raise fault
