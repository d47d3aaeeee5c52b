"""Pieces of the card's memory that pools of pages take and give back. Nothing is freed while a model is in
use, since that waits for all work: what one pool gives back, the next one takes.
"""

from __future__ import annotations

from collections import defaultdict

from engine.cuda.driver import Address
from engine.cuda.memory import CardMemory, Use
from engine.errors import OutOfMemoryError


class ChunkStore:
    """Of one model on the card. `give` may be called from any thread; nothing else may."""

    def __init__(self, memory: CardMemory) -> None:
        self._memory = memory
        self._spare: defaultdict[int, list[Address]] = defaultdict(list)  # by size

    def take(self, num_bytes: int) -> Address:
        """Raises OutOfMemoryError."""
        if self._spare[num_bytes]:
            return self._spare[num_bytes].pop()
        try:
            return self._memory.allocate(num_bytes, Use.CACHE)
        except OutOfMemoryError:
            if not self.free_spare():
                raise
        return self._memory.allocate(num_bytes, Use.CACHE)

    def give(self, num_bytes: int, chunks: list[Address]) -> None:
        self._spare[num_bytes].extend(chunks)

    def free_spare(self) -> bool:
        """Frees what no pool has now. Whether there was anything."""
        found = False
        for chunks in list(self._spare.values()):
            while chunks:
                self._memory.free(chunks.pop())
                found = True
        return found
