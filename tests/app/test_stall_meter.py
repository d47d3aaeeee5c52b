"""What counts as a stall: whatever the program does, and nothing that the machine does."""

from __future__ import annotations

import ctypes
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtCore import QTimer
from stall_meter import Moment, StallMeter, TurnMeter, stall_between, this_moment, waited_between

HOLD_SECONDS = 0.15
BEFORE = Moment(now=10.0, ran=2.0, waited=1.0, others={1: 0.5, 2: 0.0})


def test_time_in_which_the_loop_ran_something_else_counts_in_full(qtbot, stall_meter: StallMeter) -> None:
    done: list[bool] = []

    def busy() -> None:
        begun = this_moment()
        while stall_between(begun, this_moment()) < HOLD_SECONDS:
            pass
        done.append(True)

    stall_meter.start()
    QTimer.singleShot(20, busy)
    qtbot.waitUntil(lambda: bool(done))
    assert stall_meter.stop() > 0.9 * HOLD_SECONDS * 1000


def test_a_turn_is_as_long_as_this_thread_computed_in_it(qtbot) -> None:
    done: list[bool] = []

    def busy() -> None:
        begun = time.thread_time()
        while time.thread_time() - begun < HOLD_SECONDS:
            pass
        time.sleep(HOLD_SECONDS)  # it computes nothing meanwhile, as where others have the cores
        done.append(True)

    meter = TurnMeter()
    QTimer.singleShot(20, busy)
    qtbot.waitUntil(lambda: bool(done))
    assert HOLD_SECONDS * 1000 <= meter.stop() < 2 * HOLD_SECONDS * 1000


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no usleep")
def test_time_in_which_another_thread_held_pythons_lock_counts(qtbot, stall_meter: StallMeter) -> None:
    """A function of C that keeps the lock: it waits, so that the machine gives it no reason to be late. Other
    threads, of whatever runs the tests, may still wait for a core meanwhile, and aren't told from the holder.
    """
    sleep = ctypes.PyDLL(None).usleep
    thread = threading.Thread(target=lambda: sleep(int(HOLD_SECONDS * 1e6)))
    began = this_moment()
    stall_meter.start()
    QTimer.singleShot(20, thread.start)
    qtbot.waitUntil(lambda: thread.ident is not None and not thread.is_alive())
    longest = stall_meter.stop()
    waited = waited_between(began, this_moment())
    if waited > HOLD_SECONDS / 2:
        pytest.skip("other programs keep the cores busy: what is left of the hold says nothing")
    assert longest > (0.9 * HOLD_SECONDS - waited) * 1000


def test_waits_for_a_core_do_not_count() -> None:
    after = BEFORE._replace(now=10.3, waited=1.25)
    assert stall_between(BEFORE, after) == pytest.approx(0.05)


def test_work_that_piled_up_while_the_loop_waited_does_not_count() -> None:
    after = BEFORE._replace(now=11.1, ran=2.1, waited=2.0)
    assert stall_between(BEFORE, after) == pytest.approx(0.0)
    assert stall_between(BEFORE, after._replace(now=11.2, ran=2.2)) == pytest.approx(0.1)


def test_holders_of_the_lock_that_wait_for_a_core_do_not_count() -> None:
    after = BEFORE._replace(now=10.3, others={1: 0.7, 2: 0.0})
    assert stall_between(BEFORE, after) == pytest.approx(0.1)
    one_after_the_other = BEFORE._replace(now=10.3, others={1: 0.6, 2: 0.1})
    assert stall_between(BEFORE, one_after_the_other) == pytest.approx(0.1)
    new = BEFORE._replace(now=10.3, others={**BEFORE.others, 3: 0.3})
    assert stall_between(BEFORE, new) == pytest.approx(0.0)


SECONDS = st.floats(0, 1)


@given(ran=SECONDS, kept=SECONDS)
def test_where_nobody_waits_for_a_core_everything_counts(ran: float, kept: float) -> None:
    after = BEFORE._replace(now=10 + ran + kept, ran=2 + ran)
    assert stall_between(BEFORE, after) == pytest.approx(ran + kept, abs=1e-9)


@given(ran=SECONDS, waited=SECONDS, kept=SECONDS, waits=st.lists(SECONDS, max_size=3))
def test_waits_take_away_what_they_explain_and_no_more(
    ran: float, waited: float, kept: float, waits: list[float]
) -> None:
    after = Moment(10 + ran + waited + kept, 2 + ran, 1 + waited, dict(enumerate(waits, start=7)))
    stall = stall_between(BEFORE, after)
    assert stall <= ran + kept + 1e-9
    assert stall >= ran - waited / 10 + kept - sum(waits) - 1e-9
