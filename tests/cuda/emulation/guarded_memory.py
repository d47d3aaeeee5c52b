"""Memory of an emulated card, which finds out what was written where it has no place.

What was just allocated is poison: NaN as float, half and bfloat16, -1 as a whole number. Each allocation has
guards on both sides. What is freed stays aside for a while, filled with NaN, and is looked at too.
"""

from __future__ import annotations

import bisect
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from engine.cuda.driver import Bytes

ALIGNMENT = 256
GUARD_BYTES = 1024  # on both sides of an allocation
POISON = 0xFF
GUARD = np.tile(np.array([0xFB, 0xFF], np.uint8), GUARD_BYTES // 2)
KEPT_ASIDE_BYTES = 64 << 20  # of freed memory


@dataclass(frozen=True)
class Allocation:
    """memory: guard, contents (at `address`), guard."""

    address: int
    num_bytes: int
    memory: Bytes

    @property
    def contents(self) -> Bytes:
        return self.memory[GUARD_BYTES : GUARD_BYTES + self.num_bytes]

    def damage(self) -> str | None:
        """None where both guards are whole."""
        if not np.array_equal(self.memory[:GUARD_BYTES], GUARD):
            return f"before the allocation of {self.num_bytes} bytes at {self.address:#x}"
        if not np.array_equal(self.memory[GUARD_BYTES + self.num_bytes :], GUARD):
            return f"behind the allocation of {self.num_bytes} bytes at {self.address:#x}"
        return None


class GuardedMemory:
    """Mistakes of the caller, and damage that is found, are AssertionErrors."""

    def __init__(self) -> None:
        self._allocations: dict[int, Allocation] = {}
        self._starts: list[int] = []  # their addresses, sorted
        self._aside: deque[Allocation] = deque()
        self._letterboxes: list[Allocation] = []
        self._guards: np.ndarray | None = None  # starts of all guards; None after a change

    @property
    def used_bytes(self) -> int:
        return sum(rounded(allocation.num_bytes) for allocation in self._allocations.values())

    @property
    def live(self) -> dict[int, int]:
        return {address: allocation.num_bytes for address, allocation in self._allocations.items()}

    @property
    def num_letterboxes(self) -> int:
        return len(self._letterboxes)

    def allocate(self, num_bytes: int) -> int:
        """Its address."""
        allocation = _new_allocation(num_bytes)
        self._allocations[allocation.address] = allocation
        bisect.insort(self._starts, allocation.address)
        self._guards = None
        return allocation.address

    def free(self, address: int) -> None:
        allocation = self._allocations.pop(address, None)
        assert allocation is not None, f"{address:#x} is not the start of an allocation that is still there"
        self._starts.remove(address)
        damage = allocation.damage()
        assert damage is None, f"something was written {damage}"
        allocation.memory[:] = np.resize(GUARD, len(allocation.memory))
        self._aside.append(allocation)
        while sum(kept.num_bytes for kept in self._aside) > KEPT_ASIDE_BYTES:
            _check_aside(self._aside.popleft())
        self._guards = None

    def open_letterbox(self, num_bytes: int) -> Allocation:
        """Zeros of the computer's, beside what is allocated and never freed."""
        box = _new_allocation(num_bytes)
        box.contents.fill(0)
        self._letterboxes.append(box)
        self._guards = None
        return box

    def part(self, address: int, num_bytes: int) -> Bytes:
        """Of one allocation."""
        index = bisect.bisect_right(self._starts, address) - 1
        assert index >= 0, f"{address:#x} is not the card's"
        allocation = self._allocations[self._starts[index]]
        offset = address - allocation.address
        assert 0 <= num_bytes <= allocation.num_bytes - offset, (
            f"{num_bytes} bytes at {address:#x}: the next allocation below has {allocation.num_bytes} bytes"
            f" at {allocation.address:#x}"
        )
        return allocation.contents[offset : offset + num_bytes]

    def check(self) -> None:
        """AssertionError for damaged guards, and writes to freed memory."""
        for allocation in (*self._allocations.values(), *self._letterboxes):
            damage = allocation.damage()
            assert damage is None, f"something was written {damage}"
        for allocation in self._aside:
            _check_aside(allocation)

    def guards(self) -> np.ndarray:
        """Where GUARD_BYTES hold the pattern: beside what is allocated, and in what was freed."""
        if self._guards is None:
            starts = [
                start
                for allocation in (*self._allocations.values(), *self._letterboxes)
                for start in (allocation.address - GUARD_BYTES, allocation.address + allocation.num_bytes)
            ]
            for allocation in self._aside:
                starts += [allocation.address - GUARD_BYTES, allocation.address]
            self._guards = np.array(starts, np.uint64)
        return self._guards

    def name_guard(self, start: int) -> str:
        for allocation in (*self._allocations.values(), *self._letterboxes):
            if start == allocation.address - GUARD_BYTES:
                return f"before the allocation of {allocation.num_bytes} bytes at {allocation.address:#x}"
            if start == allocation.address + allocation.num_bytes:
                return f"behind the allocation of {allocation.num_bytes} bytes at {allocation.address:#x}"
        return f"to memory that was freed, at {start:#x} or after"


def rounded(num_bytes: int) -> int:
    """What an allocation takes of a card."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _new_allocation(num_bytes: int) -> Allocation:
    needed = num_bytes + 2 * GUARD_BYTES
    raw = np.empty(needed + ALIGNMENT, np.uint8)
    start = -(raw.ctypes.data + GUARD_BYTES) % ALIGNMENT
    memory = raw[start : start + needed]
    memory[:GUARD_BYTES] = GUARD
    memory[GUARD_BYTES : GUARD_BYTES + num_bytes] = POISON
    memory[GUARD_BYTES + num_bytes :] = GUARD
    return Allocation(memory.ctypes.data + GUARD_BYTES, num_bytes, memory)


def _check_aside(allocation: Allocation) -> None:
    whole = np.array_equal(allocation.memory, np.resize(GUARD, len(allocation.memory)))
    assert whole, f"the {allocation.num_bytes} bytes at {allocation.address:#x} were written to after free"
