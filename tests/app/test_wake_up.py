"""The GUI thread can be woken from a signal of the system and from any thread."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
from PySide6.QtCore import QThread

from app.wake_up import WakeUp


@pytest.fixture
def wake_up(qapp) -> Iterator[WakeUp]:
    wake_up = WakeUp()
    yield wake_up
    wake_up.close()


def test_a_thread_that_qt_never_made_can_wake_the_loop(wake_up: WakeUp, qtbot) -> None:
    woken_on: list[QThread] = []
    wake_up.woken.connect(lambda: woken_on.append(QThread.currentThread()))
    with qtbot.waitSignal(wake_up.woken):
        thread = threading.Thread(target=wake_up.poke)
        thread.start()
    thread.join()
    assert woken_on[0] is wake_up.thread()


def test_a_flood_of_pokes_never_blocks_the_poker(wake_up: WakeUp, qtbot) -> None:
    with qtbot.waitSignal(wake_up.woken):
        for _ in range(200_000):
            wake_up.poke()


def test_poking_after_the_end_is_harmless(qapp) -> None:
    wake_up = WakeUp()
    wake_up.close()
    wake_up.poke()


@pytest.mark.skipif(not hasattr(signal, "SIGTERM") or os.name == "nt", reason="signals of POSIX systems")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_asks_for_the_end_while_the_loop_sleeps(wake_up: WakeUp, qtbot, number: int) -> None:
    wake_up.listen_to_signals()
    with qtbot.waitSignal(wake_up.end_asked):
        os.kill(os.getpid(), number)


def test_closing_gives_ctrl_c_back(qapp) -> None:
    before = signal.getsignal(signal.SIGINT)
    wake_up = WakeUp()
    wake_up.listen_to_signals()
    assert signal.getsignal(signal.SIGINT) != before
    wake_up.close()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)
