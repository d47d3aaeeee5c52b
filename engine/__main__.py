"""The command line: `python -m engine inspect|generate|score PATH`.

Exit codes: 0 success; 2 a mistake that a person can correct, told in one line on standard error; 1 a fault. A
program that was interrupted, or whose reader went away, ends as a shell expects: 128 plus the signal's
number.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, TextIO

from engine.commands import generate, inspect, score
from engine.errors import ComputeFaultError, EngineError
from engine.version import VERSION

_SUCCESS, _FAULT, _MISTAKE, _INTERRUPTED, _READER_GONE = 0, 1, 2, 130, 141


def main(arguments: Sequence[str] | None = None) -> int:
    _write_utf8(sys.stdout, sys.stderr)
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return _FAULT if isinstance(error, ComputeFaultError) else _MISTAKE
    except KeyboardInterrupt:
        print(file=sys.stderr)  # the shell's prompt begins a line of its own
        return _INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return _READER_GONE


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; argparse would print its whole usage first."""

    def error(self, message: str) -> NoReturn:
        self.exit(_MISTAKE, f"error: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m engine", description="Look into a model, or run it, without the window.")
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (inspect, generate, score):
        command.add_parser(commands)
    return parser


def _write_utf8(*streams: TextIO) -> None:
    """Answers hold any character, whatever the terminal's locale says."""
    for stream in streams:
        reconfigure = getattr(
            stream, "reconfigure", None
        )  # a stream that was put in place by a test has none
        if reconfigure is not None:
            reconfigure(encoding="utf-8", errors="replace")


def _discard_output() -> None:
    """Let the interpreter's last flush go nowhere instead of failing once more."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


if __name__ == "__main__":
    sys.exit(main())
