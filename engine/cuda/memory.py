"""The card's memory by what it is for, within a budget: what the window shows, and what a load may take."""

from __future__ import annotations

import enum
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

from engine.cuda.driver import Address, CardDriver, CardFaultError
from engine.errors import OutOfMemoryError
from engine.wording import phrase

_SECONDS_BELIEVED = 1.0  # what the driver said of other programs


_UNIT = 2 * 2**20  # of the card's memory; smaller pieces share one


def taken_bytes(num_bytes: int) -> int:
    """What an allocation takes of a card at most."""
    return num_bytes if num_bytes < _UNIT // 2 else -(-num_bytes // _UNIT) * _UNIT


class Use(enum.Enum):
    WEIGHTS = phrase("weights")
    CACHE = phrase("cache")
    WORKSPACE = phrase("workspace")


class CardMemory:
    """Every allocation goes through here. budget: bytes in all; None: what the card has."""

    def __init__(self, driver: CardDriver, budget: int | None = None) -> None:
        self._driver = driver
        self._budget = budget
        self._held: dict[Address, tuple[Use, int]] = {}
        self._by_use: Counter[Use] = Counter()
        self._others = 0  # bytes that are neither free nor held here, when that was last asked
        self._others_asked: float | None = None

    @property
    def driver(self) -> CardDriver:
        return self._driver

    @property
    def num_bytes(self) -> Mapping[Use, int]:
        """What is held, by use."""
        return dict(self._by_use)

    def available(self, reserve: int = 0) -> int:
        """Bytes that may still be taken: of the budget, and of what is free on the card now, but for the
        reserve.
        """
        free = self._driver.free_bytes() - reserve
        return free if self._budget is None else min(free, self._budget - sum(self._by_use.values()))

    def free_bytes(self) -> int:
        """What is free on the card, for showing it: what other programs have may be a second old, and is as
        it was before where the card doesn't answer any more.
        """
        total, held = self._driver.info.total_bytes, sum(self._by_use.values())
        now = time.monotonic()
        if self._others_asked is None or now - self._others_asked >= _SECONDS_BELIEVED:
            self._others_asked = now
            with suppress(CardFaultError):  # whoever computes with it will hear of it
                self._others = total - self._driver.free_bytes() - held
        return min(total, max(0, total - self._others - held))

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
