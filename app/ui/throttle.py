"""Turns many requests into few runs, so that a fast stream never starves the event loop."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from PySide6.QtCore import QObject, QTimer

FRAME_MS = 33  # thirty changes a second look continuous; more only cost
_SHARE = 3  # of the time between two runs, at most one part in four is spent in them


class Throttle(QObject):
    """Runs `action` soon after `request()`, at most once an interval; the interval grows with what a run
    costs.

    The first request after a pause runs at the next turn of the event loop. `flush()` runs a waiting
    request at once, so the last one is never lost.
    """

    def __init__(
        self,
        action: Callable[[], None],
        parent: QObject | None = None,
        *,
        interval_ms: int = FRAME_MS,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        super().__init__(parent)
        self._action = action
        self._interval_ms = interval_ms
        self._clock = clock  # seconds
        self._next_run = 0.0
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self._run)

    @property
    def waiting(self) -> bool:
        return self._timer.isActive()

    @property
    def remaining_ms(self) -> int:
        """Until the waiting run; -1 when none waits."""
        return self._timer.remainingTime()

    def request(self) -> None:
        if not self._timer.isActive():
            self._timer.start(max(0, round((self._next_run - self._clock()) * 1000)))

    def flush(self) -> None:
        if self._timer.isActive():
            self._timer.stop()
            self._run()

    def cancel(self) -> None:
        self._timer.stop()

    def _run(self) -> None:
        started = self._clock()
        try:
            self._action()
        finally:
            ended = self._clock()
            self._next_run = max(started + self._interval_ms / 1000, ended + _SHARE * (ended - started))
