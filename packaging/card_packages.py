"""What an NVIDIA card needs, installed where its driver is. Whatever fails here is told in a line, and the
program runs on the CPU.

NVRTC and cuda-bindings are ready-made packages. PyCUDA comes as source text, which is compiled here with the
headers of two small packages: no CUDA toolkit is needed, but a C++ compiler and Python's own headers.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

import system_libraries
from virtual_environment import Environment, SetupError, say

HEADERS = ("nvidia-cuda-runtime-cu12>=12.8,<13", "nvidia-cuda-profiler-api-cu12>=12.8,<13")
_DRIVER_LIBRARY = "libcuda.so.1"
_STAMP = "card.json"


def provide(environment: Environment) -> None:
    """Does nothing where it was done or tried before, with the same packages."""
    library = driver_library()
    if library is None:
        return
    requirements = _requirements(environment.root)
    stamp = environment.folder / _STAMP
    key = _key(requirements, environment.root)
    if _stamped(stamp) == key:
        return
    problem = _install(environment, requirements, library)
    if problem is not None:
        say(f"The graphics card stays unused, and the program runs on the CPU: {problem}")
    stamp.write_text(json.dumps({"key": key}), encoding="utf-8")


def driver_library() -> Path | None:
    """The NVIDIA driver's own library; None where there is no driver, or no packages for this system."""
    if not sys.platform.startswith("linux"):
        return None  # PyCUDA would have to be compiled with tools that hardly anybody has there
    try:
        ctypes.CDLL(_DRIVER_LIBRARY)
    except OSError:
        return None
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        path = Path(line.split(maxsplit=5)[-1])
        if path.name.startswith("libcuda.so"):
            return path
    return None


def _install(environment: Environment, requirements: list[str], library: Path) -> str | None:
    """A sentence for what can't be done."""
    pycuda = [requirement for requirement in requirements if requirement.startswith("pycuda")]
    others = [requirement for requirement in requirements if requirement not in pycuda]
    problem = _lacking_tools(environment)
    if problem is not None:
        return problem
    try:
        environment.install("what the graphics card needs", others)
        with tempfile.TemporaryDirectory() as folder:
            headers = Path(folder) / "headers"
            environment.install("the headers of CUDA", ["--no-deps", "--target", str(headers), *HEADERS])
            (Path(folder) / ".aksetup-defaults.py").write_text(
                _pycuda_settings(headers, library), encoding="utf-8"
            )
            environment.install(
                "PyCUDA (compiled here, a minute or two)",
                ["--no-build-isolation", "--no-binary", "pycuda", "--no-cache-dir", *pycuda],
                variables=_build_variables(folder),
            )
    except SetupError as error:
        return str(error)
    return None


def _lacking_tools(environment: Environment) -> str | None:
    """Installs the compiler and Python's headers where that can be done without asking."""
    packages = []
    if shutil.which("gcc") is None or shutil.which("g++") is None:
        packages.append("g++")
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        packages.append(f"python3.{sys.version_info[1]}-dev")
    if not packages:
        return None
    if not system_libraries.is_debian():
        return "install gcc, g++ and the headers of Python, then remove .venv/card.json and start it again."
    if system_libraries.is_root() and system_libraries.apt_install(packages, environment.log):
        return None
    command = system_libraries.install_command(packages)
    return f"install what PyCUDA is compiled with, {command}, then remove .venv/card.json and start it again."


def _pycuda_settings(headers: Path, library: Path) -> str:
    """In PyCUDA's words, as it reads them from a file in the person's home folder."""
    include = sorted({str(path.parent) for path in headers.rglob("cuda*.h") if path.parent.name == "include"})
    settings = {
        "CUDA_ROOT": str(headers),
        "CUDA_INC_DIR": include,
        "CUDA_ENABLE_CURAND": False,  # random numbers are drawn elsewhere; its headers are large
        "CUDADRV_LIBNAME": [],
        "LDFLAGS": [str(library)],  # not every driver brings the name that a linker looks for
    }
    return "".join(f"{name} = {value!r}\n" for name, value in settings.items())


def _build_variables(home: str) -> Mapping[str, str]:
    """The home folder is another one for this build; pip's settings stay the person's."""
    own = Path.home() / ".config" / "pip" / "pip.conf"
    config = {"PIP_CONFIG_FILE": str(own)} if "PIP_CONFIG_FILE" not in os.environ and own.exists() else {}
    return {"HOME": home, **config}


def _requirements(root: Path) -> list[str]:
    with (root / "pyproject.toml").open("rb") as file:
        requirements: list[str] = tomllib.load(file)["project"]["optional-dependencies"]["cuda"]
    return requirements


def _key(requirements: list[str], root: Path) -> str:
    parts = [*requirements, *HEADERS, sys.version, str(root)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _stamped(stamp: Path) -> str | None:
    try:
        content = json.loads(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content.get("key") if isinstance(content, dict) else None
