"""What is installed where there is no checkout: the program, the engine, the resources, and two commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from engine.version import VERSION

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = ("app", "engine", "resources", "packaging", "tests")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build leaves folders behind."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in SOURCES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip("wheel", "--no-build-isolation", "--wheel-dir", folder, source)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    pip("install", "--target", folder, wheel)
    return folder


def pip(verb: str, *arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", verb, "--quiet", "--no-deps", "--no-index"]
    command += ["--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def run(installed: Path, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs an installed command far from the checkout; what is installed comes before everything else."""
    return subprocess.run(
        [installed / "bin" / command, *arguments],
        cwd=installed.parent,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_only_the_program_the_engine_and_the_resources_are_installed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    info = f"kestrel_chat-{VERSION}.dist-info"
    assert {name.split("/")[0] for name in names} == {"app", "engine", "resources", info}
    assert f"{info}/licenses/LICENSE" in names


def test_every_module_and_every_resource_is_in_it(wheel: Path) -> None:
    """A folder without __init__.py, or a new kind of data file, would be left out without a word."""
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    for name in ("app", "engine", "resources"):
        files = (
            path for path in (ROOT / name).rglob("*") if path.is_file() and "__pycache__" not in path.parts
        )
        assert {path.relative_to(ROOT).as_posix() for path in files} <= packed


@pytest.mark.skipif(os.name != "posix", reason="commands are .exe files elsewhere")
def test_engine_command_works_without_the_checkout(installed: Path) -> None:
    done = run(installed, "kestrel-engine", "--help")
    assert done.returncode == 0, done.stderr
    assert {"inspect", "generate", "score"} <= set(re.findall(r"\w+", done.stdout))


@pytest.mark.skipif(os.name != "posix", reason="commands are .exe files elsewhere")
def test_program_says_its_version_without_the_checkout(installed: Path) -> None:
    done = run(installed, "kestrel-chat", "--version")
    assert done.returncode == 0, done.stderr
    assert VERSION in done.stdout
