"""Wakes the GUI thread from anywhere: from a signal of the system (Ctrl+C), or from any thread, Qt's or not.

A socket carries the wake-up, since emitting a Qt signal is safe neither in a signal handler nor on a thread
that Qt did not make.
"""

from __future__ import annotations

import signal
import socket

from PySide6.QtCore import QObject, QSocketNotifier, Signal

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")  # those that ask a program to end; Windows lacks the last


class WakeUp(QObject):
    """Signals, on the GUI thread: woken, at least once after a `poke`; end_asked, after Ctrl+C and such."""

    woken = Signal()
    end_asked = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._end_was_asked = False
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._notifier = QSocketNotifier(self._reader.fileno(), QSocketNotifier.Type.Read, self)
        self._notifier.activated.connect(self._on_readable)

    def listen_to_signals(self) -> None:
        """Only on the main thread. Python writes into the socket itself, so an idle event loop wakes too."""
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for name in _SIGNALS:
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), self._on_signal)

    def poke(self) -> None:
        """Callable from any thread."""
        try:
            self._writer.send(b"\0")
        except BlockingIOError:  # full: it is awake already
            pass
        except OSError:  # closed: the program is ending
            pass

    def close(self) -> None:
        """Gives the signals back."""
        if signal.getsignal(signal.SIGINT) == self._on_signal:
            signal.set_wakeup_fd(-1)
            for name in _SIGNALS:
                if hasattr(signal, name):
                    signal.signal(getattr(signal, name), signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._notifier.setEnabled(False)
        self._reader.close()
        self._writer.close()

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._end_was_asked = True
        self.poke()

    def _on_readable(self) -> None:
        try:
            while self._reader.recv(4096):
                pass
        except BlockingIOError:
            pass
        if self._end_was_asked:
            self._end_was_asked = False
            self.end_asked.emit()
        self.woken.emit()
