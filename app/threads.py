"""Threads that may speak to the GUI thread.

PySide6 6.8 and later crash when a signal is emitted from a thread that Qt did not make, so every background
thread here is a QThread, and what it has to say goes through a `Mailbox`.
"""

from __future__ import annotations

import logging
import sys
import weakref
from collections import deque
from collections.abc import Callable

from PySide6.QtCore import QDeadlineTimer, QObject, Qt, QThread, Signal, Slot

log = logging.getLogger(__name__)

# What the main thread has on Linux. macOS gives other threads 512 KB, too little for deep syntax trees.
STACK_BYTES = 8 << 20

_started: weakref.WeakSet[LoopThread] = weakref.WeakSet()
_abandoned: list[LoopThread] = []


_SWITCH_SECONDS = 0.0001  # Python's own is fifty times that; with less, switching takes the time


def share_python_fairly() -> None:
    """Has threads that run Python take turns often; for the whole process.

    The GUI thread gives Python's lock up in most calls of Qt and has to wait a switch for it each time that
    another thread computes in Python: a turn of 4 ms took up to 90 ms, and takes 9 with this.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)


class LoopThread(QThread):
    """Runs one Python function, which must end by itself when its owner tells it to."""

    def __init__(self, name: str, loop: Callable[[], None]) -> None:
        super().__init__()
        self.setObjectName(name)
        self._loop = loop
        self.setStackSize(STACK_BYTES)

    def run(self) -> None:
        self._loop()

    def begin(self) -> None:
        _started.add(self)
        self.start()

    def join(self, timeout_ms: int) -> bool:
        """Wait for the end. False when it takes longer: then the thread is kept from being destroyed, since
        Qt aborts the whole process when a running one is, and the process has to leave by `os._exit`.
        """
        if self.wait(QDeadlineTimer(timeout_ms)):
            return True
        log.error("thread %r did not end within %d ms", self.objectName(), timeout_ms)
        _abandoned.append(self)
        return False


def running_threads() -> list[str]:
    """Names of the threads that run now."""
    return [thread.objectName() for thread in _started if thread.isRunning()]


class Mailbox(QObject):
    """Calls posted from background threads, made on the thread that owns the mailbox, in order."""

    _posted = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._calls: deque[Callable[[], None]] = deque()
        self._closed = False
        self._posted.connect(self._deliver_one, Qt.ConnectionType.QueuedConnection)

    def post(self, call: Callable[[], None]) -> None:
        """Callable from any QThread. Dropped once the mailbox is closed."""
        if not self._closed:
            self._calls.append(call)
            self._posted.emit()

    def drain(self) -> None:
        """Make the calls that still wait, without an event loop: for the end of the program."""
        while self._calls:
            self._calls.popleft()()

    def close(self) -> None:
        self._closed = True

    @Slot()
    def _deliver_one(self) -> None:
        # One call for one signal: an exception in a call keeps none of the others from being made. After
        # `drain` signals without a call are left over.
        if self._calls:
            self._calls.popleft()()
