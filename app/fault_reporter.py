"""No silent death: what escapes a slot, a thread or Qt goes to the log file, and to the window as notice."""

from __future__ import annotations

import faulthandler
import logging
import logging.handlers
import sys
import threading
import traceback
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import TextIO

from PySide6.QtCore import QMessageLogContext, QObject, QtMsgType, Signal, qInstallMessageHandler

from app.wake_up import WakeUp
from engine.notices import Notice

log = logging.getLogger(__name__)

_LOG_BYTES = 1_000_000
_MAX_WAITING = 20  # faults that come faster than the window can show them are in the log alone
_QT_LEVELS = {
    QtMsgType.QtDebugMsg: logging.DEBUG,
    QtMsgType.QtInfoMsg: logging.INFO,
    QtMsgType.QtWarningMsg: logging.WARNING,
    QtMsgType.QtCriticalMsg: logging.ERROR,
    QtMsgType.QtFatalMsg: logging.CRITICAL,
}


def start_log(path: Path) -> Notice | None:
    """Sends the log to `path` and to the terminal there may be. A notice if the file can't be written."""
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    style = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handlers: list[logging.Handler] = []
    if sys.stderr is not None:  # None when started by a double click on Windows
        terminal = logging.StreamHandler()
        terminal.setLevel(logging.WARNING)
        handlers.append(terminal)
    problem = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(
            logging.handlers.RotatingFileHandler(path, maxBytes=_LOG_BYTES, backupCount=2, encoding="utf-8")
        )
    except OSError as error:
        problem = Notice(
            "log-not-written",
            f"The log file {path} can't be written ({error.strerror or error}).",
            "The program works without it; make the folder writable to have one.",
        )
    for handler in handlers:
        handler.setFormatter(style)
        root.addHandler(handler)
    return problem


def watch_for_crashes(path: Path) -> TextIO | None:
    """Has a crash below Python leave its stack in `path`. Keep the file open as long as the program runs."""
    try:
        file = path.open("a", encoding="utf-8")
    except OSError:
        return None  # `start_log` has told that this folder can't be written
    faulthandler.enable(file)
    return file


class FaultReporter(QObject):
    """Signals: reported(Notice, str details), on the GUI thread."""

    reported = Signal(object, str)

    def __init__(self, wake_up: WakeUp, *, log_file: Path) -> None:
        super().__init__()
        self._log_file = log_file
        self._waiting: deque[tuple[Notice, str]] = deque(maxlen=_MAX_WAITING)
        self._wake_up = wake_up
        wake_up.woken.connect(self._deliver)

    def install(self) -> None:
        """Takes what escapes from now on."""
        sys.excepthook = self._on_exception
        threading.excepthook = self._on_thread_exception
        sys.unraisablehook = self._on_unraisable
        qInstallMessageHandler(_log_qt_message)

    def uninstall(self) -> None:
        sys.excepthook = sys.__excepthook__
        threading.excepthook = threading.__excepthook__
        sys.unraisablehook = sys.__unraisablehook__
        qInstallMessageHandler(None)

    def _on_exception(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, trace)
            return
        self._report(kind, error, trace, logged="unexpected fault")

    def _on_thread_exception(self, args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread is not None else "unknown"
        error = args.exc_value or args.exc_type()
        self._report(args.exc_type, error, args.exc_traceback, logged=f"unexpected fault in thread {name}")

    def _on_unraisable(self, args: sys.UnraisableHookArgs) -> None:
        error = args.exc_value or args.exc_type()
        self._report(args.exc_type, error, args.exc_traceback, logged=args.err_msg or "unraisable fault")

    def _report(
        self,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
        *,
        logged: str,
    ) -> None:
        """On any thread. logged: the line of the log above the traceback."""
        log.error(logged, exc_info=(kind, error, trace))
        details = "".join(traceback.format_exception(kind, error, trace))
        notice = Notice(
            "fault",
            f"Something went wrong inside the program ({kind.__name__}). What you wrote is safe.",
            f"If it comes back, please report it with the log file {self._log_file}.",
        )
        self._waiting.append((notice, details))
        self._wake_up.poke()

    def _deliver(self) -> None:
        while self._waiting:
            self.reported.emit(*self._waiting.popleft())


def _log_qt_message(kind: QtMsgType, context: QMessageLogContext, message: str) -> None:
    logging.getLogger("qt").log(_QT_LEVELS.get(kind, logging.WARNING), "%s", message)
