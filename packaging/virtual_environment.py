"""The checkout's own virtual environment, `.venv`: made, filled and, after an interruption, finished.

A stamp in `.venv` says what it was filled for. While the stamp holds, nothing is run and nothing is asked of
the network; otherwise pip installs what is missing. Standard library only: this runs before anything is
installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

# Installed first and alone: another package asked before it would let pip choose a release, and the newest
# brings gigabytes of CUDA libraries. Where pip is set up with a CPU build of this release, pip prefers that.
TORCH = "torch==2.13.0"

# Settings of a person's pip and Python that would send packages somewhere else than into `.venv`.
FOREIGN_VARIABLES = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_USER",
    "__PYVENV_LAUNCHER__",
)

# Run inside `.venv`: a package that a killed pip left half-written has no list of its files, or files of the
# list are absent or cut. Its metadata is removed, so that pip takes it for absent and writes it anew; the
# names are printed.
REPAIR = """
import importlib.metadata, shutil, sysconfig
for dist in importlib.metadata.distributions(path=[sysconfig.get_path("purelib")]):
    def whole(file):
        try:
            return file.size is None or file.locate().stat().st_size == file.size
        except OSError:
            return False
    if not dist.files or not all(map(whole, dist.files)):
        print(dist._path.name)
        shutil.rmtree(dist._path)
"""


class SetupError(Exception):
    """The set-up can't go on; the message says why and what to do, perhaps with the end of a log below.

    `exit_code` is 2 where the person's own input is at fault.
    """

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Environment:
    """`.venv` in `root`. Every method may be called on whatever state an earlier, killed run left."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / ".venv"
        self.python = self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        self.log = self.folder / "setup.log"
        self.stamp = self.folder / "setup.json"

    def prepare(self, extras: Iterable[str]) -> None:
        """Afterwards the project runs in `.venv` with these extras. Raises SetupError."""
        with self._alone():
            version = self._version()
            done = self._stamped()
            wanted = set(extras)
            filled = version is not None and done.get("key") == self._key(version)
            if filled and wanted <= set(done["extras"]):
                return
            version = self._make_venv(version)
            # What an earlier command needed stays up to date too: `run` must not let the tests' tools age.
            extras_now = sorted(wanted | set(done.get("extras", ())))
            self._fill(extras_now)
            self._write_stamp({"key": self._key(version), "extras": extras_now})

    def site_packages(self) -> Path:
        command = [str(self.python), "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())

    @staticmethod
    def variables() -> dict[str, str]:
        """Environment variables for what runs in `.venv`."""
        kept = {name: value for name, value in os.environ.items() if name not in FOREIGN_VARIABLES}
        return {**kept, "PIP_USER": "0", "PYTHONUTF8": "1"}

    def _key(self, version: str) -> str:
        """What the set-up depends on. The folder is part of it: installed commands hold their full path."""
        digest = hashlib.sha256()
        project = self._pyproject().read_bytes()
        for part in (project, TORCH.encode(), version.encode(), os.fsencode(self.root)):
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.hexdigest()

    def _pyproject(self) -> Path:
        return self.root / "pyproject.toml"

    def _stamped(self) -> dict[str, Any]:
        try:
            stamp = json.loads(self.stamp.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return stamp if isinstance(stamp, dict) and isinstance(stamp.get("extras"), list) else {}

    def _write_stamp(self, content: dict[str, Any]) -> None:
        """All or nothing: a half-written stamp must not pass for one."""
        temporary = self.stamp.with_suffix(".new")
        temporary.write_text(json.dumps(content), encoding="utf-8")
        os.replace(temporary, self.stamp)

    def _version(self) -> str | None:
        """Version of the Python in `.venv`, as "3.12"; None where it has none that starts and has pip."""
        if not self.python.exists():
            return None
        command = [str(self.python), "-I", "-c", "import sys, pip; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    def _make_venv(self, version: str | None) -> str:
        """Makes `.venv` anew unless it has a Python that works; returns that Python's version."""
        if version is not None:
            self.stamp.unlink(missing_ok=True)  # from here on the environment is unfinished, and says so
            self._repair()
            return version
        if self.folder.exists():
            say(f"The environment in {self.folder} is unfinished or damaged; it is made anew.")
        else:
            say(f"Making an environment in {self.folder} (first time only).")
        command = [sys.executable, "-m", "venv", "--clear", str(self.folder)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        made = self._version()
        if done.returncode != 0 or made is None:
            raise SetupError(
                f"Python could not make an environment in {self.folder}.\n" + tail(done.stdout + done.stderr)
            )
        return made

    def _repair(self) -> None:
        done = subprocess.run(
            [str(self.python), "-I", "-c", REPAIR],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        names = done.stdout.split()
        if done.returncode != 0:
            raise SetupError(f"{self.folder} can't be repaired: delete it and run the same command again.")
        if names:
            say(f"Half-installed packages are installed again: {', '.join(names)}.")

    def _fill(self, extras: list[str]) -> None:
        """Installs PyTorch, then the rest. What is there already asks nothing of the network."""
        with self._pyproject().open("rb") as file:
            build_tools = tomllib.load(file)["build-system"]["requires"]
        project = f".[{','.join(extras)}]" if extras else "."
        self._pip(f"PyTorch ({TORCH})", [TORCH])
        self._pip("the build tools", build_tools)
        # Without a build environment of its own, so that it also works offline, after a move of the checkout.
        self._pip("the other packages", ["--no-build-isolation", "--editable", project, TORCH])

    def install(self, what: str, arguments: list[str], *, variables: Mapping[str, str] | None = None) -> None:
        """Into an environment that is prepared. variables: for this alone. Raises SetupError."""
        with self._alone():
            self._pip(what, arguments, variables or {})

    def _pip(
        self, what: str, arguments: list[str], variables: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        say(f"Installing {what} ...")
        command = [str(self.python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
        command += ["--progress-bar", "off", *arguments]
        with self.log.open("ab") as log:
            start = log.tell()
            returncode = subprocess.call(
                command,
                cwd=self.root,
                env={**self.variables(), **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        if returncode != 0:
            with self.log.open("rb") as log:
                log.seek(start)
                output = log.read().decode("utf-8", "replace")
            raise SetupError(
                f"Installing {what} failed: check the network connection and the room on the disk, and run"
                f" the same command again; it goes on from here. The end of {self.log}:\n{tail(output)}"
            )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One set-up at a time in a checkout; a second one waits. The lock ends with the process."""
        try:
            import fcntl
        except ImportError:  # Windows has no such lock, and pip there refuses to replace files in use
            yield
            return
        with self._pyproject().open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("Another set-up of this checkout is running; waiting for it.")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def say(text: str) -> None:
    """A line of progress. On standard error: standard output belongs to the program that is started."""
    print(text, file=sys.stderr, flush=True)


def tail(output: str, *, lines: int = 15) -> str:
    """The last lines of a program's output, indented."""
    return "\n".join("  " + line for line in output.strip().splitlines()[-lines:])
