"""The command line: `python -m engine inspect|generate|score|selftest|bench PATH`.

Exit codes: 0 success; 2 a mistake that a person can correct, told in one line on standard error; 1 a fault. A
program that was interrupted, or whose reader went away, ends as a shell expects: 128 plus the signal's
number.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, TextIO

from engine.checkpoints.foreign_files import shown
from engine.errors import ComputeFaultError, DeviceFaultError, EngineError
from engine.version import VERSION

_FAULT, _MISTAKE, _INTERRUPTED, _READER_GONE = 1, 2, 130, 141

_MAX_LINE = 2000  # characters of a message, whatever the person or a file put into it


def main(arguments: Sequence[str] | None = None) -> int:
    sys.stdout, sys.stderr = _prepared(sys.stdout), _prepared(sys.stderr)
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except EngineError as error:
        _complain(str(error))
        return _FAULT if isinstance(error, ComputeFaultError | DeviceFaultError) else _MISTAKE
    except KeyboardInterrupt:
        _write_error("\n")  # the shell's prompt begins a line of its own
        return _INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return _READER_GONE
    except OSError as error:
        if error.filename is not None:  # only what comes from writing has no name: that is the output
            raise
        _discard_output()
        _complain(f"The output can't be written: {error.strerror or error}.")
        return _MISTAKE


def _run(arguments: Sequence[str] | None) -> int:
    # Imported here, so that an interrupt meanwhile ends the program like any other.
    from engine.commands import bench, generate, inspect, score, selftest

    parser = _Parser(prog="python -m engine", description="Look into a model, or run it, without the window.")
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (inspect, generate, score, selftest, bench):
        command.add_parser(commands)
    options = parser.parse_args(arguments)
    code: int = options.run(options)
    return code


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; argparse would print its whole usage first."""

    def error(self, message: str) -> NoReturn:
        _complain(f"{message} (see {self.prog} --help)")
        self.exit(_MISTAKE)


def _prepared(stream: TextIO | None) -> TextIO:
    """Answers hold any character, whatever the terminal's locale says. What is written to a stream that the
    caller has closed goes nowhere.
    """
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")  # open as long as the program runs
    reconfigure = getattr(stream, "reconfigure", None)  # a stream that a test put in place has none
    if reconfigure is not None:
        reconfigure(encoding="utf-8", errors="replace")
    return stream


def _complain(message: str) -> None:
    """One line, in which nothing can drive the terminal."""
    _write_error(f"error: {shown(message, _MAX_LINE)}\n")


def _write_error(text: str) -> None:
    with contextlib.suppress(OSError):  # there is no place left where that could be told
        sys.stderr.write(text)
        sys.stderr.flush()


def _discard_output() -> None:
    """Let the interpreter's last flush go nowhere instead of failing once more."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


if __name__ == "__main__":
    sys.exit(main())
