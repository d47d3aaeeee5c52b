"""What escapes anywhere reaches the log file and the window, and never ends the program."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QTimer, qWarning

from app.fault_reporter import FaultReporter, start_log
from app.wake_up import WakeUp


@pytest.fixture
def root_log() -> Iterator[logging.Logger]:
    """The root logger, put back as it was."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield root
    for handler in [handler for handler in root.handlers if handler not in before]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)


@pytest.fixture
def reporter(qapp, tmp_path: Path) -> Iterator[FaultReporter]:
    before = sys.excepthook, threading.excepthook, sys.unraisablehook
    wake_up = WakeUp()
    reporter = FaultReporter(wake_up, log_file=tmp_path / "kestrel-chat.log")
    reporter.install()
    yield reporter
    reporter.uninstall()
    sys.excepthook, threading.excepthook, sys.unraisablehook = before
    wake_up.close()


def fail() -> None:
    raise ValueError("a fault of our own")


def test_fault_in_a_slot_is_told_with_its_traceback(reporter: FaultReporter, qtbot, tmp_path: Path) -> None:
    with qtbot.captureExceptions(), qtbot.waitSignal(reporter.reported) as reported:
        sys.excepthook = reporter._on_exception  # pytest-qt has put its own there
        QTimer.singleShot(0, fail)
    notice, details = reported.args
    assert notice.code == "fault"
    assert "ValueError" in notice.message
    assert str(tmp_path / "kestrel-chat.log") in notice.hint
    assert "in fail" in details
    assert "a fault of our own" in details


def test_fault_on_a_plain_thread_is_told_too(reporter: FaultReporter, qtbot) -> None:
    with qtbot.waitSignal(reporter.reported) as reported:
        thread = threading.Thread(target=fail)
        thread.start()
    thread.join()
    assert "in fail" in reported.args[1]


def test_fault_is_in_the_log_file(
    reporter: FaultReporter, root_log: logging.Logger, qtbot, tmp_path: Path
) -> None:
    path = tmp_path / "log folder" / "kestrel-chat.log"
    assert start_log(path) is None
    with qtbot.waitSignal(reporter.reported):
        thread = threading.Thread(target=fail, name="worker-7")
        thread.start()
    thread.join()
    text = path.read_text(encoding="utf-8")
    assert "worker-7" in text
    assert "ValueError: a fault of our own" in text


def test_words_of_qt_are_in_the_log_file(
    reporter: FaultReporter, root_log: logging.Logger, tmp_path: Path
) -> None:
    path = tmp_path / "kestrel-chat.log"
    start_log(path)
    reporter.install()
    qWarning("a warning of Qt")
    assert "WARNING qt: a warning of Qt" in path.read_text(encoding="utf-8")


def test_folder_that_can_not_be_written_is_a_notice_and_no_end(
    root_log: logging.Logger, tmp_path: Path
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    notice = start_log(in_the_way / "kestrel-chat.log")
    assert notice is not None
    assert notice.code == "log-not-written"
    assert str(in_the_way) in notice.message


def test_ctrl_c_is_no_fault(reporter: FaultReporter, qtbot, capsys) -> None:
    with qtbot.assertNotEmitted(reporter.reported, wait=50):
        reporter._on_exception(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert "KeyboardInterrupt" in capsys.readouterr().err
