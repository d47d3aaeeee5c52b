"""Each case needs a process in which torch has not been imported yet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.runtime import default_threads

ROOT = Path(__file__).resolve().parents[2]


def run(code: str, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_torch_is_there_afterwards_with_as_many_threads_as_asked_for() -> None:
    code = (
        "from engine.runtime import prepare_runtime; prepare_runtime(3); import torch; prepare_runtime({}); "
    )
    assert run(code.format(3) + "print(torch.get_num_threads())") == "3"
    assert run(code.format(1) + "print(torch.get_num_threads())") == "1"


@pytest.mark.parametrize(
    ("given", "used"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_how_threads_wait_is_the_persons_choice_first(given: dict[str, str], used: str) -> None:
    code = "import os, engine.runtime as r; r.prepare_runtime(1); print(os.environ.get('GOMP_SPINCOUNT'))"
    assert run(code, **given) == used


def test_begun_early_it_is_there_all_the_same() -> None:
    code = (
        "import engine.runtime as r; r.begin_runtime(); r.begin_runtime(); import sys; "
        "assert 'torch' not in sys.modules; r.prepare_runtime(2); import torch; r.begin_runtime(); "
        "import threading; print(torch.get_num_threads(), threading.active_count())"
    )
    assert run(code) == "2 1"


def test_other_libraries_are_there_before_those_of_torch_begin_to_come() -> None:
    """Loading one meanwhile would wait for them, with the interpreter's lock held."""
    code = (
        "import engine.runtime as r, sys; there = lambda: {'numpy', 'tokenizers'} <= sys.modules.keys(); "
        "r._preload_libraries = lambda: print(there()); print(there()); r.begin_runtime()"
    )
    assert run(code) == "False\nTrue"


@pytest.mark.parametrize("setting", ["enable", "disable"])
def test_garbage_is_collected_afterwards_if_it_was_before(setting: str) -> None:
    """The window collects its own at times that it chooses."""
    code = (
        f"import gc; gc.{setting}(); from engine.runtime import prepare_runtime; "
        "before = gc.get_stats()[2]['collections']; prepare_runtime(1); "
        "print(gc.isenabled(), gc.get_stats()[2]['collections'] - before)"
    )
    assert run(code) == f"{setting == 'enable'} 0"


def test_what_cannot_be_loaded_early_is_left_to_the_import() -> None:
    code = (
        "import engine.runtime as r; r._LIBRARIES = ('libabsent.so', 'libc10.so'); "
        "r.prepare_runtime(2); import torch; print(int(torch.ones(2).sum()))"
    )
    assert run(code) == "2"


def test_memory_can_be_released_at_any_time() -> None:
    assert run("from engine.runtime import release_memory; release_memory(); print('fine')") == "fine"


def test_threads_are_no_more_than_the_process_may_use() -> None:
    assert 1 <= default_threads() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("given", "used"),
    [("2", 2), ("3,1", 3), (" 1 ", 1), ("9", 4), ("0", 4), ("-1", 4), ("many", 4), ("", 4)],
)
def test_threads_are_no_more_than_the_person_says(
    monkeypatch: pytest.MonkeyPatch, given: str, used: int
) -> None:
    monkeypatch.setattr("engine.runtime.psutil.cpu_count", lambda logical: 4)
    monkeypatch.setattr("engine.runtime.os.sched_getaffinity", lambda _: range(4), raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert default_threads() == used
