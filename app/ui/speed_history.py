"""How fast tokens were read and written over the last minute, step after step. No widget, no clock."""

from __future__ import annotations

from collections import deque

STEP_SECONDS = 0.25
SPAN_SECONDS = 60.0
STEPS = int(SPAN_SECONDS / STEP_SECONDS)


class SpeedHistory:
    """Tokens per second, oldest first, each of a step."""

    def __init__(self) -> None:
        self.written: deque[float] = deque([0.0] * STEPS, maxlen=STEPS)
        self.read: deque[float] = deque([0.0] * STEPS, maxlen=STEPS)

    @property
    def is_empty(self) -> bool:
        """Nothing is left to be seen."""
        return not any(self.written) and not any(self.read)

    def step(self, written: float) -> None:
        """One more step, in which tokens were written at that rate."""
        self.written.append(max(0.0, written))
        self.read.append(0.0)

    def add_reading(self, rate: float, seconds: float) -> None:
        """A prompt was read at that rate, and it has just ended."""
        count = min(STEPS, max(1, round(seconds / STEP_SECONDS)))
        for back in range(1, count + 1):
            self.read[-back] = max(self.read[-back], rate)


def rounded_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20 …: where an axis may end."""
    if value <= 0:
        return 1.0
    size = 1.0
    while size < value:
        for factor in (1, 2, 5, 10):
            if size * factor >= value:
                return size * factor
        size *= 10
    while size / 10 >= value:
        size /= 10
    return next((size / factor for factor in (5, 2) if size / factor >= value), size)
