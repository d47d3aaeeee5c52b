"""The pinned memory through which uploads go: filled, read by the card, then filled anew."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.cuda.driver import Bytes

_ALIGNMENT = 64  # bytes: of a cache line
_MOST_PIECES = 256  # however small: of so many, the oldest was read long ago


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
        start, end = self._room_for(source.nbytes)
        piece = self._memory[start:end]
        piece[:] = source
        self._pieces.append(_Piece(start, end, send(piece)))
        self._next = -(-end // _ALIGNMENT) * _ALIGNMENT

    def _room_for(self, num_bytes: int) -> tuple[int, int]:
        """From where to where; nobody reads there any more. What is in the way are the oldest of all
        pieces, so no others are looked at.
        """
        pieces, start = self._pieces, self._next
        if start + num_bytes > self._memory.nbytes:
            while pieces and pieces[0].start >= start:
                self._wait_for_oldest()
            start = 0
        end = start + num_bytes
        while pieces and (len(pieces) >= _MOST_PIECES or pieces[0].overlaps(start, end)):
            self._wait_for_oldest()
        return start, end

    def _wait_for_oldest(self) -> None:
        self._pieces[0].wait()
        self._pieces.popleft()
