"""Many requests become few runs, and the last one always comes."""

from __future__ import annotations

import pytest

from app.ui.sliced_work import SlicedWork
from app.ui.throttle import Throttle


class Clock:
    """Seconds that go by only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_requests_before_a_run_are_one_run(qtbot) -> None:
    runs: list[int] = []
    throttle = Throttle(lambda: runs.append(1))
    for _ in range(100):
        throttle.request()
    assert runs == []
    qtbot.waitUntil(lambda: not throttle.waiting)
    assert runs == [1]


def test_flush_runs_what_waits_at_once_and_only_once(qtbot) -> None:
    runs: list[int] = []
    throttle = Throttle(lambda: runs.append(1), interval_ms=60_000)
    throttle.request()
    throttle.flush()
    throttle.flush()
    assert runs == [1]
    throttle.request()  # would wait a minute
    throttle.flush()
    assert runs == [1, 1]


def test_the_pause_grows_with_what_a_run_costs(qtbot) -> None:
    clock = Clock()

    def expensive() -> None:
        clock.now += 0.5

    throttle = Throttle(expensive, interval_ms=30, clock=clock)
    throttle.request()
    throttle.flush()
    throttle.request()
    assert throttle.remaining_ms == pytest.approx(1500, rel=0.1)  # a coarse timer may be 5 % off
    throttle.cancel()
    assert not throttle.waiting


def test_an_error_in_a_run_reaches_the_caller_and_leaves_the_throttle_working() -> None:
    runs: list[int] = []

    def fail_first() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError("first")

    throttle = Throttle(fail_first)
    throttle.request()
    with pytest.raises(ValueError, match="first"):
        throttle.flush()
    throttle.request()
    throttle.flush()
    assert runs == [1, 1]


def steps(log: list[str], name: str, count: int):
    for number in range(count):
        log.append(f"{name}{number}")
        yield


def test_jobs_run_in_order_and_a_first_one_before_the_others(qtbot) -> None:
    log: list[str] = []
    work = SlicedWork()
    work.start(steps(log, "a", 2))
    work.start(steps(log, "b", 1))
    work.start(steps(log, "c", 1), first=True)
    with qtbot.waitSignal(work.finished):
        pass
    assert log == ["c0", "a0", "a1", "b0"]
    assert not work.busy


def test_a_job_may_start_and_cancel_others(qtbot) -> None:
    log: list[str] = []
    work = SlicedWork()

    def job():
        work.start(steps(log, "inner", 1), first=True)
        yield
        log.append("rest")
        work.cancel_all()
        yield
        log.append("never")

    work.start(job())
    work.start(steps(log, "other", 1))
    work.run_to_end()
    assert log == ["inner0", "rest"]


def test_a_job_that_fails_is_dropped_and_the_others_go_on() -> None:
    log: list[str] = []
    work = SlicedWork()

    def broken():
        yield
        raise ValueError("broken")

    work.start(broken())
    work.start(steps(log, "a", 1))
    with pytest.raises(ValueError, match="broken"):
        work.run_to_end()
    work.run_to_end()
    assert log == ["a0"]
