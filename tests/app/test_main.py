"""The program as the person starts it: a process of its own, on a platform without a screen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.version import VERSION

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60
START_GOAL_S = 1.0  # the window is there, warm
MEMORY_GOAL = 250_000_000  # bytes, without a model


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip


def first_show(data_folder: Path) -> dict[str, object]:
    """One start that ends as soon as the window is on the screen."""
    result = run("--data-dir", str(data_folder), "--exit-after-show")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_version_is_printed_without_a_window() -> None:
    result = run("--version")
    assert result.returncode == 0
    assert result.stdout.strip() == f"Kestrel Chat {VERSION}"


def test_wrong_option_is_a_mistake_of_the_person() -> None:
    result = run("--no-such-option")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


def test_window_shows_before_torch_is_imported(tmp_path: Path) -> None:
    figures = first_show(tmp_path / "program")
    assert figures["torch_imported"] is False
    assert 0 < figures["seconds_to_first_show"] < DEADLINE_S
    assert 0 < figures["resident_bytes"] < MEMORY_GOAL


@pytest.mark.slow
def test_window_shows_within_its_time_when_warm(tmp_path: Path) -> None:
    """Counted from the start of the process, without the time in which other programs had the cores. The best
    of three, since they make the disk and what cores there are slower, too.
    """
    starts = [first_show(tmp_path / "program") for _ in range(3)]
    best = min(start["seconds_to_first_show"] - start["seconds_without_a_core"] for start in starts)
    assert 0 < best < START_GOAL_S


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX systems")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_closes_the_window_and_ends_well(tmp_path: Path, number: int) -> None:
    log = tmp_path / "program" / "log" / "kestrel-chat.log"
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "--data-dir", str(tmp_path / "program")],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not (log.exists() and "window is on the screen" in log.read_text(encoding="utf-8")):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline, "the window never came"
            time.sleep(0.02)
        process.send_signal(number)
        _, errors = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "Traceback" not in errors
    assert "QThread" not in errors
