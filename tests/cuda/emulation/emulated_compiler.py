"""From the text of kernels to a shared library for this processor. Needs Linux and g++ or clang."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from engine.cuda.driver import CardFaultError, CardInfo

HERE = Path(__file__).parent
OWN_SOURCES = sorted([*HERE.glob("*.h"), *HERE.glob("*.cpp")])
KEPT_LIBRARIES = 160  # more than all tests together have: most are of some lines
CHECKS = "alignment,bounds-strict,shift,integer-divide-by-zero,float-cast-overflow,return"


def _compiler() -> str | None:
    """The path of a C++ compiler."""
    named = os.environ.get("CXX")
    for name in [named] if named else ["g++", "clang++", "c++"]:
        path = shutil.which(name)
        if path is not None:
            return path
    return None


def why_no_emulation() -> str | None:
    """A reason for tests to be skipped; None where the emulation works."""
    if not sys.platform.startswith("linux"):
        return "kernels run on the processor under Linux only"
    if platform.machine() not in ("x86_64", "aarch64"):
        return f"kernels can't be run on a processor of the kind {platform.machine()}"
    if _compiler() is None:
        return "no C++ compiler here, to run kernels on the processor (Debian package g++)"
    return None


class EmulatedCompiler:
    """With the system's C++ compiler. folder: for libraries; several processes may share it."""

    notices = ()

    def __init__(self, folder: Path) -> None:
        path = _compiler()
        assert path is not None, why_no_emulation()
        self._folder = folder
        self._path = path
        self._version = subprocess.run([path, "--version"], capture_output=True, check=True).stdout
        self._known: dict[str, bytes] = {}
        self.compiled = 0

    def compile(self, sources: dict[str, str], main: str, *, card: CardInfo) -> bytes:
        """A shared library for this very machine, of what the kernels are for that card."""
        architecture = _architecture(card)
        key = self._key(sources, main, architecture)
        if key not in self._known:
            self._known[key] = self._kept(
                f"kernels-{key}.so", lambda folder: self._build(folder, sources, main, architecture)
            )
        return self._known[key]

    def _kept(self, name: str, build: Callable[[Path], Path]) -> bytes:
        """Contents of a kept file. Built where there is none, and read before others may forget it."""
        kept = self._folder / name
        try:
            return kept.read_bytes()
        except FileNotFoundError:
            self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            built = build(Path(folder))
            contents = built.read_bytes()
            built.replace(kept)
        self._forget_old()
        return contents

    def _key(self, sources: dict[str, str], main: str, architecture: str) -> str:
        """The same for all that gives the same library."""
        contents = [sorted(sources.items()), main, architecture, self._machine_key()]
        return hashlib.sha256(repr(contents).encode()).hexdigest()[:32]

    def _machine_key(self) -> str:
        own = [path.read_text(encoding="utf-8") for path in OWN_SOURCES]
        tool = [self._path, self._version, _options(self._path), _checks(self._path), _processor()]
        return hashlib.sha256(repr([own, tool]).encode()).hexdigest()[:32]

    def _build(self, folder: Path, sources: dict[str, str], main: str, architecture: str) -> Path:
        for name, text in sources.items():
            (folder / name).write_text(text, encoding="utf-8")
        library, code = folder / "kernels.so", folder / "kernels.o"
        options = [*_options(self._path), _checks(self._path), "-DKESTREL_EMULATED", architecture]
        self._call([*options, "-include", str(HERE / "emulator.h"), *_from_to(folder / main, code)])
        machine = folder / "machine.o"
        machine.write_bytes(self._kept(f"machine-{self._machine_key()}.o", self._build_machine))
        # Not linked with the options of the checks: they would bring the library whose place checks.h takes.
        objects = [str(code), str(machine)]
        self._call(["-shared", "-Wl,-z,defs", "-o", str(library), *objects, "-pthread", "-ldl"])
        self.compiled += 1
        return library

    def _build_machine(self, folder: Path) -> Path:
        """What runs the kernels, of whatever text they are."""
        built = folder / "machine.o"
        self._call([*_options(self._path), *_from_to(HERE / "launcher.cpp", built)])
        return built

    def _forget_old(self) -> None:
        for pattern in ("kernels-*.so", "machine-*.o"):
            kept = []
            for path in self._folder.glob(pattern):
                with suppress(FileNotFoundError):  # another process has forgotten it
                    kept.append((path.stat().st_mtime, path))
            for _, path in sorted(kept, reverse=True)[KEPT_LIBRARIES:]:
                path.unlink(missing_ok=True)

    def _call(self, arguments: list[str]) -> None:
        done = subprocess.run([self._path, *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            complaints = [line for line in done.stderr.splitlines() if "error" in line or "undefined" in line]
            raise CardFaultError(f"The kernels can't be compiled: {(complaints or [done.stderr.strip()])[0]}")


def _architecture(card: CardInfo) -> str:
    """As an option: what a card's own compiler lets the text know of it."""
    major, minor = card.compute_capability
    return f"-D__CUDA_ARCH__={100 * major + 10 * minor}"


def _is_clang(compiler: str) -> bool:
    return "clang" in Path(compiler).resolve().name


def _checks(compiler: str) -> str:
    return "-fsanitize=" + (CHECKS.replace("bounds-strict", "bounds") if _is_clang(compiler) else CHECKS)


def _options(compiler: str) -> list[str]:
    # Without the last one libraries of one process share their variables, and so their shared memory.
    only_gnu = [] if _is_clang(compiler) else ["-fno-gnu-unique"]
    return [
        *("-std=c++17", "-O2", "-g1", "-march=native" if platform.machine() == "x86_64" else "-mcpu=native"),
        *("-ffp-contract=off", "-fno-fast-math", "-fno-strict-aliasing", "-fwrapv"),
        *("-fPIC", "-fvisibility=hidden", *only_gnu, "-pthread", "-w"),
    ]


def _from_to(source: Path, code: Path) -> list[str]:
    return ["-x", "c++", "-c", str(source), "-o", str(code)]


def _processor() -> str:
    """What code for this machine alone depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.machine()
    names = ("model name", "flags", "Features", "CPU part")
    return repr(sorted({line for line in lines if line.startswith(names)}))
