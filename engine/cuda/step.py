"""What the card knows of the tokens of one step, and keeps for the next one.

In front of the position and the addresses of pages (`Step` in `kernels/step.cuh`) are the tokens' ids and the
address of the slot by which the next one is drawn (`Turn` in `kernels/sample.cu`, for a step of one token). A
draw leaves there what the following step is made of, so that the host has nothing to send for that.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from engine.cuda.decode_graphs import DecodeGraphs
from engine.cuda.driver import NOWHERE, Address, as_bytes
from engine.cuda.memory import CardMemory, Use
from engine.cuda.page_pool import CudaPagePool
from engine.cuda.workspace import SPLIT
from engine.kv_geometry import PAGE, pages_for

_LONG_BYTES, _FLOAT_BYTES = 8, 4
_ALIGNMENT = 16


class StepBuffer:
    """Hidden states (T, H), which layers change in place; and slot, ids, position and pages of a step."""

    def __init__(self, memory: CardMemory, *, rows: int, width: int, context: int) -> None:
        """Raises OutOfMemoryError."""
        self._memory = memory
        self._driver = memory.driver
        self.most_pages = pages_for(context)
        self.hidden = memory.allocate(_FLOAT_BYTES * rows * width, Use.WORKSPACE)
        front = -(-_front_bytes(rows) // _ALIGNMENT) * _ALIGNMENT
        room = DecodeGraphs.room_for(-(-context // SPLIT)) * SPLIT  # attention reads the table to its end
        self._block = memory.allocate(front + _LONG_BYTES * (1 + room // PAGE), Use.WORKSPACE)
        self._step = Address(self._block + front)
        self._driver.fill(self._block, 0, front)

    def send(
        self,
        ids: Sequence[int],
        first: int,
        pages: Sequence[Address] = (),
        *,
        slot: Address = NOWHERE,
    ) -> None:
        """In one copy. first: the position of the first id. pages: all of them; none where the card has the
        right ones. slot: of who draws behind it.
        """
        import numpy as np

        front = np.zeros(_front_bytes(len(ids)), np.uint8)
        front[:_LONG_BYTES].view(np.uint64)[0] = slot
        front[_LONG_BYTES:].view(np.int32)[: len(ids)] = ids
        behind = np.array([first, *pages], np.uint64).view(np.uint8)
        self._driver.upload(self.slot_of(len(ids)), np.concatenate((front, behind)))

    def send_pages(self, start: int, pages: Sequence[Address]) -> None:
        """Those from number `start` on."""
        import numpy as np

        target = Address(self._step + _LONG_BYTES * (1 + start))
        self._driver.upload(target, as_bytes(np.array(pages, np.uint64)))

    def step_of(self, rows: int) -> Address:
        """Where position and pages are: the same place for any number of tokens."""
        return self._step

    def ids_of(self, rows: int) -> Address:
        """Where the ids of a step with so many tokens are."""
        return Address(self.slot_of(rows) + _LONG_BYTES)

    def slot_of(self, rows: int) -> Address:
        """Where the address of the slot is for a step with so many tokens."""
        return Address(self._step - _front_bytes(rows))

    def free(self) -> None:
        self._memory.free(self.hidden)
        self._memory.free(self._block)


def _front_bytes(rows: int) -> int:
    """Of slot and ids."""
    return _LONG_BYTES * (1 + -(-rows // 2))


class PageTable:
    """Which pages the card was told of. To see that nothing is new takes a comparison of two lists of the
    very same numbers, a few microseconds for 100,000 tokens.
    """

    def __init__(self, most_pages: int) -> None:
        self._most_pages = most_pages
        self._pages: list[int] = []
        self._version = -1

    def missing(self, pages: list[int], pool: CudaPagePool) -> tuple[int, list[Address]]:
        """From which number on the card has to be told of pages, and where they are; none: nothing is new."""
        if pool.version == self._version:
            if pages == self._pages:
                return 0, []
            pairs = zip(pages, self._pages, strict=False)
            start = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        else:
            start = 0
        return start, pool.addresses(pages[start : self._most_pages])

    def told(self, pages: list[int], pool: CudaPagePool) -> None:
        self._pages, self._version = list(pages), pool.version

    def forget(self) -> None:
        self._version = -1
