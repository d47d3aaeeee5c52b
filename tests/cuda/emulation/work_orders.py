"""What a card has to do, in two orders: its work, and uploads ahead. One of them lags as far behind the other
as marks allow, so that each wait that is missing has a wrong result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal

Order = Literal["work", "uploads"]


class EmulatedMark:
    """set_in: the order in which it was set last; None: in neither."""

    def __init__(self) -> None:
        self.set_in: Order | None = None


class WorkOrders:
    """lagging: the order that is done as late as may be. The other is done as it comes."""

    def __init__(self, lagging: Order) -> None:
        self._lagging = lagging
        self._left: deque[Callable[[], None] | EmulatedMark] = deque()

    def add(self, order: Order, deed: Callable[[], None]) -> None:
        if order == self._lagging:
            self._left.append(deed)
        else:
            deed()

    def set(self, order: Order, mark: EmulatedMark) -> None:
        mark.set_in = order
        if order == self._lagging:
            self._left.append(mark)

    def wait(self, order: Order | None, mark: EmulatedMark) -> None:
        """What comes in this order from now on is done behind what is before the mark. None: whatever the
        caller does.
        """
        # Where the order that lags waits, the other is further already.
        if order != self._lagging and mark.set_in == self._lagging and mark in self._left:
            last = len(self._left) - 1 - list(reversed(self._left)).index(mark)
            self._do(last + 1)

    def finish(self, order: Order | None = None) -> None:
        """Does all that is left, in one order or in both."""
        if order in (None, self._lagging):
            self._do(len(self._left))

    def drop(self) -> None:
        self._left.clear()

    def _do(self, count: int) -> None:
        for _ in range(count):
            deed = self._left.popleft()
            if not isinstance(deed, EmulatedMark):
                deed()
