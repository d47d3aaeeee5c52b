"""Background work: in order, answered on the GUI thread, and ended before its thread is destroyed."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QTimer

from app.conversations import StoreError
from app.operations import BackgroundRunner
from app.threads import running_threads
from engine.errors import SettingError
from engine.notices import Notice


@pytest.fixture
def runner(qapp) -> Iterator[BackgroundRunner]:
    runner = BackgroundRunner("test")
    yield runner
    assert runner.shutdown()


def _fail(_: object) -> None:
    raise AssertionError("must not be called")


def test_functions_run_off_the_gui_thread_in_order_and_are_answered_on_it(
    qtbot, runner: BackgroundRunner
) -> None:
    ran: list[tuple[int, int]] = []
    answered: list[tuple[int, int]] = []
    for number in range(50):
        runner.run(
            lambda number=number: ran.append((number, threading.get_ident())) or number,
            lambda number: answered.append((number, threading.get_ident())),
            _fail,
            doing="counting",
        )
    qtbot.waitUntil(lambda: len(answered) == 50)
    assert [number for number, _ in ran] == [number for number, _ in answered] == list(range(50))
    assert {thread for _, thread in answered} == {threading.get_ident()}
    assert len({thread for _, thread in ran} | {threading.get_ident()}) == 2


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (StoreError("disk-full", "The disk is full.", "Free some space."), "disk-full", "The disk is full."),
        (SettingError("Threads must be at least 1, not 0."), "setting", "Threads must be at least 1, not 0."),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/x/y"), "system-error", "/x/y"),
        (ZeroDivisionError("division by zero"), "fault", "while counting"),
    ],
)
def test_every_failure_reaches_the_caller_and_the_thread_lives_on(
    qtbot, runner: BackgroundRunner, error: Exception, code: str, words: str
) -> None:
    notices: list[Notice] = []

    def fail() -> None:
        raise error

    runner.run(fail, _fail, notices.append, doing="counting")
    qtbot.waitUntil(lambda: len(notices) == 1)
    assert notices[0].code == code
    assert words in notices[0].message.replace("Counting", "counting")

    results: list[int] = []
    runner.run(lambda: 7, results.append, _fail, doing="counting")
    qtbot.waitUntil(lambda: results == [7])


def test_only_a_fault_of_the_program_is_logged_with_its_traceback(
    qtbot, runner: BackgroundRunner, caplog: pytest.LogCaptureFixture
) -> None:
    notices: list[Notice] = []

    def divide() -> float:
        return 1 / 0

    runner.run(divide, _fail, notices.append, doing="dividing")
    qtbot.waitUntil(lambda: len(notices) == 1)
    (entry,) = [entry for entry in caplog.records if entry.levelno == logging.ERROR]
    assert entry.exc_info is not None
    assert entry.exc_info[0] is ZeroDivisionError
    assert "dividing" in entry.getMessage()


def test_emitting_a_signal_takes_no_reference_away(qapp) -> None:
    """PySide6 6.12.0 takes one from True with every emit, which ends Python 3.11 after some thousand of
    them with "bool_dealloc: deallocating True or False". It must not be among the versions that the project
    allows.
    """
    timer = QTimer()
    emitter = timer.objectNameChanged
    before = sys.getrefcount(True)
    for _ in range(100):
        emitter.emit("")
    assert abs(sys.getrefcount(True) - before) < 50


def test_shutdown_does_what_waits_and_answers_it(qapp) -> None:
    runner = BackgroundRunner("test")
    gate = threading.Event()
    results: list[object] = []
    runner.run(gate.wait, results.append, _fail, doing="waiting")
    for number in range(5):
        runner.run(lambda number=number: number, results.append, _fail, doing="counting")
    gate.set()
    assert runner.shutdown()
    assert results == [True, 0, 1, 2, 3, 4]
    assert runner.shutdown()  # a second time is no error
    assert running_threads() == []


def test_an_error_in_one_answer_does_not_keep_the_next_from_being_given(
    qtbot, runner: BackgroundRunner
) -> None:
    results: list[int] = []

    def broken(_: int) -> None:
        raise ValueError("in a slot")

    with qtbot.captureExceptions() as caught:
        runner.run(lambda: 1, broken, _fail, doing="counting")
        runner.run(lambda: 2, results.append, _fail, doing="counting")
        qtbot.waitUntil(lambda: results == [2])
    assert [error[0] for error in caught] == [ValueError]


_STUCK = """
import os, sys, threading
from PySide6.QtCore import QCoreApplication
from app.operations import BackgroundRunner

app = QCoreApplication(sys.argv)
runner = BackgroundRunner("stuck")
began = threading.Event()
def hang():
    began.set()
    threading.Event().wait()
runner.run(hang, print, print, doing="hanging")
began.wait()
joined = runner.shutdown(timeout_ms=50)
del runner
print(joined, flush=True)
os._exit(3)
"""


def test_a_thread_that_hangs_is_reported_and_does_not_abort_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _STUCK],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    assert (done.returncode, done.stdout) == (3, "False\n")
    assert "Destroyed while thread" not in done.stderr
