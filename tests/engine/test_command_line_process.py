"""What a process of the command line does with its output, and what ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from model_files import TINY_MODELS

from engine.__main__ import main
from engine.commands.loading import interrupt_as_event

ROOT = Path(__file__).resolve().parents[2]
MODEL = TINY_MODELS / "tiny-qwen2"
CPU = ("--device", "cpu", "--weights", "native")


def start(*arguments: object, **settings: Any) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "", "PYTHONIOENCODING": "ascii"}
    return subprocess.Popen(
        [sys.executable, "-m", "engine", *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **settings,
    )


LONG = ("generate", MODEL, "--prompt", "Hi", "--ignore-eos", *CPU)


def test_output_is_utf8_whatever_the_locale_says() -> None:
    process = start(*LONG, "--max-new", 40)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, b"")
    assert out.decode("utf-8").endswith("\n")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT between processes")
def test_an_interrupt_ends_it_without_a_traceback() -> None:
    with start(*LONG) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)  # the answer is being written
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert process.stderr.read().strip() == b""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT between processes")
def test_an_interrupt_that_an_import_swallows_still_ends_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`import torch` does that now and then: a whole answer would be written after Ctrl+C."""

    def swallow(_: int) -> None:
        with contextlib.suppress(BaseException):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("engine.loading.prepare_runtime", swallow)
    assert main([str(argument) for argument in LONG]) == 130
    assert capsys.readouterr() == ("", "\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT between processes")
def test_a_second_interrupt_does_not_wait() -> None:
    with interrupt_as_event() as interrupted:
        assert not interrupted.is_set()
        signal.raise_signal(signal.SIGINT)
        assert interrupted.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT between processes")
def test_an_interrupt_that_is_to_be_ignored_stays_ignored() -> None:
    """As under nohup, and in the background of a script."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupt_as_event() as interrupted:
            signal.raise_signal(signal.SIGINT)
        assert not interrupted.is_set()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
@pytest.mark.parametrize("command_name", ["inspect", "generate", "score"])
@pytest.mark.parametrize(("redirection", "code"), [(">&-", 0), ("2>&-", 0), (">/dev/full", 2)])
def test_output_that_is_closed_or_full_causes_no_traceback(
    redirection: str, code: int, command_name: str, tmp_path: Path
) -> None:
    if redirection == ">/dev/full" and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    ids = tmp_path / "ids.json"
    ids.write_text("[[1, 2, 3]]")
    arguments = {"inspect": (), "generate": ("--ids", ids, "--max-new", 2), "score": ("--ids", ids)}
    script = f'exec "$@" {redirection}'
    ended = subprocess.run(
        ["sh", "-c", script, "sh", sys.executable, "-m", "engine", command_name, MODEL]
        + [str(argument) for argument in (*arguments[command_name], *CPU)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == code, ended.stderr
    if code:
        (line,) = ended.stderr.splitlines()
        assert line.startswith("error: The output can't be written")
    else:
        assert "Traceback" not in ended.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="pipes break otherwise on Windows")
def test_a_reader_that_goes_away_causes_no_traceback() -> None:
    with start(*LONG) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.wait(timeout=60) == 141
        assert process.stderr.read() == b""
