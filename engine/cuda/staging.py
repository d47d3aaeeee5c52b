"""The pinned memory through which uploads go: filled, read by the card, then filled anew."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.cuda.driver import Bytes

_ALIGNMENT = 64  # bytes: of a cache line


@dataclass(frozen=True)
class _Piece:
    start: int
    end: int
    wait: Callable[[], object]

    def overlaps(self, start: int, end: int) -> bool:
        return self.start < end and start < self.end


class StagingRing:
    """Pieces follow each other round and round. The card reads them in the order in which they were taken."""

    def __init__(self, memory: Bytes) -> None:
        self._memory = memory
        self._next = 0
        self._pieces: deque[_Piece] = deque()  # those that may still be read, oldest first

    @property
    def most_bytes(self) -> int:
        """Of one piece: a quarter, so that one is filled while others are read."""
        return self._memory.nbytes // 4

    def send(self, source: Bytes, send: Callable[[Bytes], Callable[[], object]]) -> None:
        """source: at most `most_bytes`. send: has the card read what it is given, and returns what waits
        until it has.
        """
        assert 0 < source.nbytes <= self.most_bytes
        start = self._next if self._next + source.nbytes <= self._memory.nbytes else 0
        end = start + source.nbytes
        # Newer pieces are read after older ones: with one that is in the way, all before it are done with.
        while any(piece.overlaps(start, end) for piece in self._pieces):
            self._pieces[0].wait()
            self._pieces.popleft()
        piece = self._memory[start:end]
        piece[:] = source
        self._pieces.append(_Piece(start, end, send(piece)))
        self._next = -(-end // _ALIGNMENT) * _ALIGNMENT
