"""What the commands of `bootstrap.py` do: the window, an answer in the terminal, the tests."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import card_packages
import system_libraries
from virtual_environment import Environment, SetupError, say, tail

ROOT = Path(__file__).resolve().parent.parent
STARTER_SCRIPT = ROOT / "packaging" / "starter_model.py"

# The starter model's file says nothing of how to draw tokens, and so small a model, left to itself, repeats
# one line for ever. A model that the person names follows its own generation_config.json.
STARTER_TOKENS = 512
STARTER_OPTIONS = ("--temperature", "0", "--repetition-penalty", "1.1", "--max-new", str(STARTER_TOKENS))

# For a run of all tests: as many processes as tests/conftest.py says. One that is done takes half of what
# another one has left, so that the tests of a file mostly stay together, with what they share.
IN_PROCESSES = ("-n", "auto", "--dist", "worksteal")

CHECKS = (
    ("ruff check", ("ruff", "check", ".")),
    ("ruff format", ("ruff", "format", "--check", ".")),
    ("mypy", ("mypy",)),
)


def open_window(model: Path | None) -> int:
    """`run`: sets up, fetches the starter model when none is named, opens the window."""
    platforms = system_libraries.screen_platforms(os.environ) if sys.platform.startswith("linux") else ()
    if sys.platform.startswith("linux") and not platforms:
        raise SetupError(
            "There is no screen here (neither DISPLAY nor WAYLAND_DISPLAY is set): ask in the terminal"
            ' instead, with python3 packaging/bootstrap.py run --ask "your question".',
            exit_code=2,
        )
    model = _absolute(model)
    environment = _environment(["gguf"])
    card_packages.provide(environment)
    _provide_libraries(environment, platforms)
    path = model or _starter(environment)
    return call([environment.python, "-m", "app", path], environment.variables())


def ask(model: Path | None, question: str) -> int:
    """`run --ask`: the engine's own command line, with the answer streamed to standard output."""
    if not question.strip():
        raise SetupError("The question is empty: write it after --ask, in quotes.", exit_code=2)
    model = _absolute(model)
    environment = _environment(["gguf"])
    card_packages.provide(environment)
    path = model or _starter(environment)
    options = () if model else STARTER_OPTIONS
    limit = "" if model else f" in at most {STARTER_TOKENS} tokens"
    say(f"{path.name} answers{limit}; Ctrl+C stops it.")
    with tempfile.TemporaryDirectory() as folder:
        messages = Path(folder) / "messages.json"
        messages.write_text(json.dumps([{"role": "user", "content": question}]), encoding="utf-8")
        command: list[str | Path] = [environment.python, "-m", "engine", "generate", path]
        return call([*command, "--messages", messages, *options], environment.variables())


def run_tests(pytest_arguments: Sequence[str]) -> int:
    """`test`: every check runs, whatever the others say; the exit code is that of the first that failed.

    Without arguments all tests run, in several processes; arguments are passed on as they are.
    """
    environment = _environment(["gguf", "test"])
    if sys.platform.startswith("linux"):
        _provide_libraries(environment, ("offscreen",))
        _provide_compiler(environment)
    _starter(environment)
    variables = {**environment.variables(), "HF_HUB_OFFLINE": "1"}
    failed: dict[str, int] = {}
    for name, module in CHECKS:
        print(f"== {name}", flush=True)
        code = call([environment.python, "-m", *module], variables)
        if code == 130:
            return code
        if code != 0:
            failed[name] = code
    if failed:
        print(f"== failed: {', '.join(failed)}; the tests run all the same", flush=True)
    print("== pytest", flush=True)  # last, so that its closing line ends the output
    code = call([environment.python, "-m", "pytest", *(pytest_arguments or IN_PROCESSES)], variables)
    return next(iter(failed.values()), code)


def call(command: Sequence[str | Path], variables: Mapping[str, str]) -> int:
    """Runs a program in the checkout until it ends by itself; returns its exit code.

    Ctrl+C reaches the program too, which has its own way to end: here it only must not end the waiting. The
    handler does nothing, rather than being SIG_IGN, because a program inherits signals that are ignored.
    """
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        code = subprocess.call([str(part) for part in command], cwd=ROOT, env=dict(variables))
    finally:
        signal.signal(signal.SIGINT, before)
    return 128 - code if code < 0 else code


def _absolute(model: Path | None) -> Path | None:
    """The person's path seen from the person's folder; what it holds is for the program to judge."""
    if model is not None and not model.exists():
        raise SetupError(f"There is no model folder or GGUF file at {model}.", exit_code=2)
    return None if model is None else model.resolve()


def _environment(extras: Sequence[str]) -> Environment:
    _provide_venv_modules()
    environment = Environment(ROOT)
    environment.prepare(extras)
    return environment


def _starter(environment: Environment) -> Path:
    """The starter model's path, fetched when absent. Raises SetupError, once the reason has been printed."""
    command = [environment.python, STARTER_SCRIPT]
    done = subprocess.run(command, env=environment.variables(), stdout=subprocess.PIPE, check=False)
    if done.returncode == 130:
        raise KeyboardInterrupt
    if done.returncode != 0:
        raise SetupError("The command can't go on without the starter model.")
    return Path(done.stdout.decode("utf-8").rstrip("\r\n"))


def _provide_venv_modules() -> None:
    """Debian keeps `ensurepip` in a package of its own. Raises SetupError where it can't be put in."""
    lacking = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if not lacking:
        return
    package = f"python3.{sys.version_info[1]}-venv"
    if system_libraries.is_debian() and system_libraries.is_root():
        say(f"Installing the Debian package {package} ...")
        with tempfile.TemporaryDirectory() as folder:
            if system_libraries.apt_install([package], Path(folder) / "apt.log"):
                return
    command = system_libraries.install_command([package])
    raise SetupError(
        f"This Python lacks {' and '.join(lacking)}; on Debian and Ubuntu, install it: {command}"
    )


def _provide_libraries(environment: Environment, platforms: Sequence[str]) -> None:
    """Installs what Qt lacks for one of `platforms`; raises SetupError where that can't be done."""
    pyside = environment.site_packages() / "PySide6"
    lacking = [system_libraries.missing_libraries(pyside, platform) for platform in platforms]
    if not all(lacking):
        return  # one platform is enough
    missing = min(lacking, key=lambda lacks: len(lacks.libraries))
    if not (missing.packages and system_libraries.is_debian()):
        names = ", ".join(missing.libraries)
        raise SetupError(f"Qt lacks libraries of this system: install the packages that hold {names}.")
    command = system_libraries.install_command(missing.packages)
    if not system_libraries.is_root():
        raise SetupError(f"Qt lacks libraries of this system. Install them: {command}")
    say(f"Installing the libraries that Qt needs: {shlex.join(missing.packages)} ...")
    installed = system_libraries.apt_install(missing.packages, environment.log)
    if not installed or all(system_libraries.missing_libraries(pyside, platform) for platform in platforms):
        output = environment.log.read_text(encoding="utf-8", errors="replace")
        raise SetupError(f"apt-get did not bring what Qt lacks. Try it by hand: {command}\n{tail(output)}")


def _provide_compiler(environment: Environment) -> None:
    """Installs the C++ compiler with which tests run a card's kernels on the processor. Where that can't be
    done, a line says so: those tests are skipped, and the others don't need it.
    """
    if os.environ.get("CXX") or any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        return
    if system_libraries.is_debian() and system_libraries.is_root():
        say("Installing the C++ compiler that tests of the card's kernels need: g++ ...")
        if system_libraries.apt_install(["g++"], environment.log):
            return
    say(
        "There is no C++ compiler here (g++): tests that run the card's kernels on the processor are skipped."
    )
