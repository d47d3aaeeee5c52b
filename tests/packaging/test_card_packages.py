"""The packages of a card: installed once, where there is a driver, and never in the way of a start."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import card_packages
import system_libraries
from virtual_environment import SetupError

LIBRARY = Path("/usr/lib/libcuda.so.1")


class FakeEnvironment:
    """Writes down what it is asked to install. PyCUDA's settings are read as its build would."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder, self.log = root, root / ".venv", root / ".venv" / "setup.log"
        self.folder.mkdir()
        self.installed: list[list[str]] = []
        self.settings: dict[str, object] = {}
        self.failing = ""

    def install(self, what: str, arguments: list[str], *, variables: Mapping[str, str] | None = None) -> None:
        self.installed.append(arguments)
        if self.failing and self.failing in " ".join(arguments):
            raise SetupError(f"Installing {what} failed.")
        if "--target" in arguments:
            include = Path(arguments[arguments.index("--target") + 1]) / "nvidia" / "cuda_runtime" / "include"
            include.mkdir(parents=True)
            (include / "cuda.h").touch()
        if variables is not None:
            exec((Path(variables["HOME"]) / ".aksetup-defaults.py").read_text(), {}, self.settings)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEnvironment:
    """In a checkout on a machine with a driver and all that compiles."""
    (tmp_path / "pyproject.toml").write_text(
        '[project.optional-dependencies]\ncuda = ["pycuda>=1", "cuda-bindings>=2", "nvrtc>=3"]\n'
    )
    monkeypatch.setattr(card_packages, "driver_library", lambda: LIBRARY)
    monkeypatch.setattr(card_packages, "_lacking_tools", lambda _: None)
    return FakeEnvironment(tmp_path)


def test_ready_made_packages_come_first_then_headers_then_pycuda(environment: FakeEnvironment) -> None:
    card_packages.provide(environment)
    first, headers, last = environment.installed
    assert first == ["cuda-bindings>=2", "nvrtc>=3"]
    assert headers[-2:] == list(card_packages.HEADERS)
    assert last[-1] == "pycuda>=1"
    assert environment.settings["LDFLAGS"] == [str(LIBRARY)]
    [include] = environment.settings["CUDA_INC_DIR"]
    assert include.endswith("nvidia/cuda_runtime/include")


def test_a_second_start_installs_nothing_until_the_packages_change(environment: FakeEnvironment) -> None:
    card_packages.provide(environment)
    card_packages.provide(environment)
    assert len(environment.installed) == 3
    project = environment.root / "pyproject.toml"
    project.write_text(project.read_text().replace("nvrtc>=3", "nvrtc>=4"))
    card_packages.provide(environment)
    assert len(environment.installed) == 6


@pytest.mark.parametrize("failing", ["nvrtc", "nvidia-cuda-runtime", "pycuda>=1"])
def test_a_failure_is_told_once_and_the_start_goes_on(
    environment: FakeEnvironment, failing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.failing = failing
    card_packages.provide(environment)
    assert "the program runs on the CPU: Installing" in capsys.readouterr().err
    count = len(environment.installed)
    card_packages.provide(environment)
    assert (len(environment.installed), capsys.readouterr().err) == (count, "")


def test_without_a_driver_nothing_is_installed(
    environment: FakeEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card_packages, "driver_library", lambda: None)
    card_packages.provide(environment)
    assert environment.installed == []
    assert not (environment.folder / "card.json").exists()


def test_a_damaged_stamp_counts_as_none(environment: FakeEnvironment) -> None:
    for content in ("", "[]", "{}", '{"key": 5}'):
        (environment.folder / "card.json").write_text(content)
        environment.installed.clear()
        card_packages.provide(environment)
        assert len(environment.installed) == 3


@pytest.mark.parametrize(("is_debian", "words"), [(True, "apt"), (False, "install gcc")])
def test_absent_tools_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_debian: bool, words: str
) -> None:
    monkeypatch.setattr(card_packages.shutil, "which", lambda name: None)
    monkeypatch.setattr(system_libraries, "is_debian", lambda: is_debian)
    monkeypatch.setattr(system_libraries, "is_root", lambda: False)
    problem = card_packages._lacking_tools(FakeEnvironment(tmp_path))
    assert problem is not None
    assert words in problem


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the system's list of loaded files")
def test_a_machine_without_the_drivers_library_has_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_packages, "_DRIVER_LIBRARY", "libabsent.so.1")
    assert card_packages.driver_library() is None
