"""Long work on the GUI thread, done in slices between events."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from time import perf_counter

from PySide6.QtCore import QObject, QTimer, Signal

SLICE_SECONDS = 0.006  # a fifth of a frame at 30 Hz, in which what was made is drawn too


class SlicedWork(QObject):
    """Runs generators a few milliseconds at a time; each `next()` is one small step of work.

    Jobs run one after the other, the newest first or last as the caller says. Signals: `finished` when
    nothing is left.
    """

    finished = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._jobs: deque[Iterator[None]] = deque()
        self._timer = QTimer(self)
        self._timer.setInterval(0)
        self._timer.timeout.connect(self._run_slice)

    @property
    def busy(self) -> bool:
        return bool(self._jobs)

    def start(self, job: Iterator[None], *, first: bool = False) -> None:
        if first:
            self._jobs.appendleft(job)
        else:
            self._jobs.append(job)
        self._timer.start()

    def cancel_all(self) -> None:
        self._jobs.clear()
        self._timer.stop()

    def run_to_end(self) -> None:
        """Everything at once, for callers that need the result now."""
        while self._jobs:
            self._step()
        self._timer.stop()

    def _run_slice(self) -> None:
        end = perf_counter() + SLICE_SECONDS
        while self._jobs and perf_counter() < end:
            self._step()
        if not self._jobs:
            self._timer.stop()
            self.finished.emit()

    def _step(self) -> None:
        job = self._jobs[0]
        try:
            next(job)
        except StopIteration:
            self._drop(job)
        except BaseException:
            self._drop(job)  # a job that failed is not run again; its error goes to whoever runs the loop
            raise

    def _drop(self, job: Iterator[None]) -> None:
        if job in self._jobs:  # a step may have cancelled everything, or put another job in front
            self._jobs.remove(job)
