"""Measures how long an event loop did not come round, as far as that is the program's own doing.

A loop may be late because a thread of the program keeps it from running: the loop's own, or one that holds
Python's lock. That is what a test is about. Or because the machine is busy with other programs: then a thread
was ready to run and no core was free. The system counts how long each thread waited for that, which is the
control: what the loop's own thread waited is no fault of the program, and neither is the work that piled up
meanwhile; nor what other threads waited, while those kept the loop from running. Where nobody waited, every
millisecond counts.

`TurnMeter` is for what runs on the loop's thread alone: it counts that thread's processor time and nothing
else.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from PySide6.QtCore import QObject, Qt, QTimer

from app.threads import running_threads

_TASKS = Path("/proc/self/task")  # Linux; elsewhere nothing is known of threads that waited
_PILED_UP = 0.1  # of the time in which the loop waited: a program that shows progress is busy for less
_NAME_LENGTH = 15  # that Linux keeps of a thread's name


class Moment(NamedTuple):
    """Seconds. ran, waited: of the loop's thread so far. others: what each of the threads has waited so far
    that may hold Python's lock.
    """

    now: float
    ran: float
    waited: float
    others: Mapping[int, float]


def stall_between(before: Moment, after: Moment) -> float:
    """Seconds in which the program itself kept the loop from coming round."""
    ran, waited = after.ran - before.ran, after.waited - before.waited
    kept_by_others = max(0.0, after.now - before.now - ran - waited)
    # All of them: one that has the lock and no core may be followed by another one.
    their_waits = _waits_of_others(before, after)
    return max(0.0, ran - _PILED_UP * waited) + max(0.0, kept_by_others - their_waits)


def waited_between(before: Moment, after: Moment) -> float:
    """Seconds for which threads of this process could have gone on, and had no core."""
    return after.waited - before.waited + _waits_of_others(before, after)


def _waits_of_others(before: Moment, after: Moment) -> float:
    return sum(waits - before.others.get(task, 0.0) for task, waits in after.others.items())


class StallMeter(QObject):
    """The longest such time between two ticks of a 5 ms timer.

    Start it when the loop runs already; a gap in which the test itself ran outside the loop counts too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.longest_gap_ms = 0.0
        self._last: Moment | None = None
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.setInterval(5)
        self._timer.timeout.connect(self._on_tick)

    def start(self) -> None:
        self.longest_gap_ms = 0.0
        self._last = None
        self._timer.start()

    def stop(self) -> float:
        """The longest stall since `start`, in milliseconds."""
        self._on_tick()
        self._timer.stop()
        return self.longest_gap_ms

    def _on_tick(self) -> None:
        now = this_moment()
        if self._last is not None:
            self.longest_gap_ms = max(self.longest_gap_ms, 1000 * stall_between(self._last, now))
        self._last = now


class TurnMeter(QObject):
    """The longest processor time of this thread between two turns of its event loop, from now on."""

    def __init__(self) -> None:
        super().__init__()
        self.longest_ms = 0.0
        self._last = time.thread_time()
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._on_tick)
        self._timer.start(2)

    def _on_tick(self) -> None:
        now = time.thread_time()
        self.longest_ms = max(self.longest_ms, (now - self._last) * 1000)
        self._last = now

    def stop(self) -> float:
        """In milliseconds."""
        self._on_tick()
        self._timer.stop()
        return self.longest_ms


def this_moment() -> Moment:
    own = threading.get_native_id()
    others = {task: _waited(task) for task in _python_tasks() if task != own}
    return Moment(time.perf_counter(), time.thread_time(), _waited(own), others)


def _python_tasks() -> set[int]:
    """Threads that run Python: those that it has started, and Qt's, which are known by their names. Those of
    torch hold no lock of Python's.
    """
    started = {thread.native_id for thread in threading.enumerate()}
    names = {name[:_NAME_LENGTH] for name in running_threads()}
    return {task for task in _tasks() if task in started or _name(task) in names}


def _tasks() -> Iterable[int]:
    try:
        return [int(name) for name in os.listdir(_TASKS)]
    except OSError:
        return ()


def _name(task: int) -> str:
    return _read(task, "comm").rstrip("\n")


def _waited(task: int) -> float:
    """How long it was ready to run and did not. Waiting for a lock (Python's own too) is not being ready."""
    fields = _read(task, "schedstat").split()
    return int(fields[1]) / 1e9 if fields else 0.0


def _read(task: int, what: str) -> str:
    """Nothing of a thread that has ended, or where the system doesn't tell."""
    try:
        return (_TASKS / str(task) / what).read_text()
    except OSError:
        return ""
