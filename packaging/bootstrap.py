"""From a fresh checkout to a running program, or to passed tests, with one command and a bare Python.

    python3 packaging/bootstrap.py run [MODEL] [--ask QUESTION]
    python3 packaging/bootstrap.py test [pytest arguments]

Everything is installed into `.venv` in the checkout; the starter model goes to the user's cache folder. A
second run installs nothing and needs no network. Exit codes: 0 success, 2 a mistake that the person can mend,
130 stopped with Ctrl+C, else a fault.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

OLDEST, NEWEST = (3, 11), (3, 13)


def version_problem(version: tuple[int, int]) -> str | None:
    """A sentence for a Python that the program does not run on; it names one that is installed, if any is."""
    if OLDEST <= version <= NEWEST:
        return None
    sentence = f"Kestrel Chat needs Python 3.11, 3.12 or 3.13, and this is Python {version[0]}.{version[1]}."
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        if shutil.which(f"python3.{minor}"):
            return f"{sentence} This machine has a fitting one: use python3.{minor} instead of python3."
    return f"{sentence} Install one of them and run the same command with it."


def main(arguments: list[str] | None = None) -> int:
    problem = version_problem(sys.version_info[:2])
    if problem is not None:
        print(problem, file=sys.stderr)
        return 2
    # Not at the top: what these import is new in Python 3.11, and the sentence above must come first.
    import setup_commands
    from virtual_environment import SetupError

    options, rest = _parse(arguments)
    try:
        if options.command == "test":
            return setup_commands.run_tests(rest)
        if options.ask is not None:
            return setup_commands.ask(options.model, options.ask)
        return setup_commands.open_window(options.model)
    except SetupError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        print(f"The set-up stopped: {error.strerror or error}{where}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. The same command goes on from here.", file=sys.stderr)
        return 130


def _parse(arguments: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The options, and what is meant for pytest."""
    parser = argparse.ArgumentParser(
        prog="python3 packaging/bootstrap.py",
        description="Sets Kestrel Chat up in this checkout and starts it.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="open the window, or answer one question in the terminal")
    run.add_argument(
        "model",
        nargs="?",
        type=Path,
        metavar="MODEL",
        help="model folder or GGUF file (default: a small starter model, fetched once)",
    )
    run.add_argument("--ask", metavar="QUESTION", help="print the answer in the terminal; needs no screen")
    commands.add_parser(
        "test",
        help="run the checks and the tests",
        epilog="Other arguments go to pytest.",
        allow_abbrev=False,
    )
    options, rest = parser.parse_known_args(arguments)
    if options.command == "run" and rest:
        run.error(f"unknown arguments: {' '.join(rest)}")
    return options, rest


if __name__ == "__main__":
    sys.exit(main())
