"""`.venv` is made, filled, reused, moved and mended. venv and pip are the real ones, offline.

The project that is installed is a small one whose packages are made here; its build backend is a file of its
own, as there is no index to take one from.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import virtual_environment
from virtual_environment import Environment, SetupError, tail

PYPROJECT = """
[build-system]
requires = ["tiny-tools"]
build-backend = "backend"
backend-path = ["."]
"""

# A build backend as PEP 660 asks for it: a wheel whose .pth file leads to the checkout.
BACKEND = '''
import pathlib, zipfile
import tiny_tools
METADATA = """Metadata-Version: 2.1
Name: tiny-project
Version: 1.0
Provides-Extra: gguf
Requires-Dist: tiny-gguf; extra == "gguf"
Provides-Extra: test
Requires-Dist: tiny-test; extra == "test"
"""
def build_editable(folder, config_settings=None, metadata_directory=None):
    files = {
        "tiny_project.pth": str(pathlib.Path.cwd()),
        "tiny_project-1.0.dist-info/METADATA": METADATA,
        "tiny_project-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nTag: py3-none-any\\n",
    }
    record = "".join(f"{name},,\\n" for name in [*files, "tiny_project-1.0.dist-info/RECORD"])
    name = "tiny_project-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder, name), "w") as archive:
        for path, text in {**files, "tiny_project-1.0.dist-info/RECORD": record}.items():
            archive.writestr(path, text)
    return name
build_wheel = build_editable
'''

PACKAGES = ("tiny_torch", "tiny_tools", "tiny_gguf", "tiny_test")


@pytest.fixture(scope="module")
def empty_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with pip alone. Made once; a test takes a copy, as a moved checkout would have it."""
    environment = Environment(tmp_path_factory.mktemp("template"))
    (environment.root / "pyproject.toml").write_text(PYPROJECT)
    environment._make_venv(None)
    return environment.folder


@pytest.fixture
def environment(
    tmp_path: Path,
    empty_venv: Path,
    wheels: Path,
    make_wheel: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> Environment:
    """A checkout in a folder with an awkward name, and an index that holds what it needs."""
    for name in PACKAGES:
        make_wheel(name, "1.0", {f"{name}/__init__.py": b"number = 1\n", f"{name}/data.txt": b"1234"})
    monkeypatch.setattr(virtual_environment, "TORCH", "tiny-torch==1.0")
    root = tmp_path / "我的 checkout"
    shutil.copytree(empty_venv, root / ".venv", symlinks=True)
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "backend.py").write_text(BACKEND)
    return Environment(root)


def installed(environment: Environment) -> set[str]:
    return {name for name in PACKAGES if imports(environment, name)}


def imports(environment: Environment, name: str) -> bool:
    code = f"import {name}; assert {name}.number == 1; print(open({name}.__path__[0] + '/data.txt').read())"
    done = subprocess.run([environment.python, "-I", "-c", code], capture_output=True, text=True, check=False)
    return done.stdout == "1234\n"


def forbid_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("pip was called")

    monkeypatch.setattr(Environment, "_pip", refuse)


def test_only_what_the_extras_name_is_installed_and_torch_comes_first(environment: Environment) -> None:
    environment.prepare(["gguf"])
    assert installed(environment) == {"tiny_torch", "tiny_tools", "tiny_gguf"}
    log = environment.log.read_text(encoding="utf-8")
    assert log.index("tiny-torch") < log.index("tiny-tools") < log.index("tiny-gguf")
    assert imports(environment, "tiny_torch")


def test_second_run_starts_no_pip(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    environment.prepare(["gguf", "test"])
    forbid_pip(monkeypatch)
    environment.prepare(["gguf", "test"])
    environment.prepare(["gguf"])  # less than what is there


def test_run_after_test_keeps_the_tools_of_the_tests(environment: Environment) -> None:
    environment.prepare(["gguf", "test"])
    with (environment.root / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    environment.prepare(["gguf"])
    assert json.loads(environment.stamp.read_text())["extras"] == ["gguf", "test"]
    assert installed(environment) == set(PACKAGES)


def test_changed_requirements_are_installed(environment: Environment) -> None:
    environment.prepare([])
    changed = PYPROJECT.replace('["tiny-tools"]', '["tiny-tools", "tiny-test"]')
    (environment.root / "pyproject.toml").write_text(changed)
    environment.prepare([])
    assert imports(environment, "tiny_test")


def test_moved_checkout_is_finished_without_network(environment: Environment, wheels: Path) -> None:
    environment.prepare(["gguf"])
    for wheel in wheels.iterdir():
        wheel.unlink()
    moved = environment.root.rename(environment.root.parent / "moved elsewhere")
    environment = Environment(moved)
    environment.prepare(["gguf"])
    assert installed(environment) == {"tiny_torch", "tiny_tools", "tiny_gguf"}
    link = (environment.site_packages() / "tiny_project.pth").read_text()
    assert link == str(moved)


def test_packages_that_a_killed_pip_left_half_written_are_installed_again(environment: Environment) -> None:
    environment.prepare(["gguf", "test"])
    folder = environment.site_packages()
    (folder / "tiny_gguf-1.0.dist-info" / "RECORD").unlink()
    (folder / "tiny_test" / "data.txt").unlink()
    (folder / "tiny_torch" / "data.txt").write_bytes(b"12")  # cut
    environment.stamp.unlink()  # it is written last
    environment.prepare(["gguf", "test"])
    assert installed(environment) == set(PACKAGES)


@pytest.mark.parametrize("damage", ["empty", "no pip", "no python", "dead link"])
def test_environment_that_was_cut_short_is_made_anew(
    environment: Environment, empty_venv: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    made_for: list[Path] = []
    run = subprocess.run

    def make_from_template(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        """Stands for `python -m venv --clear`, which takes seconds; everything else is really run."""
        if command[1:4] != ["-m", "venv", "--clear"]:
            return run(command, **options)  # type: ignore[call-overload]
        made_for.append(Path(command[4]))
        shutil.rmtree(command[4])
        shutil.copytree(empty_venv, command[4], symlinks=True)
        return subprocess.CompletedProcess(command, 0, "", "")

    if damage == "empty":
        shutil.rmtree(environment.folder)
        environment.folder.mkdir()
    elif damage == "no pip":
        shutil.rmtree(environment.site_packages() / "pip")
    else:
        environment.python.unlink()
        if damage == "dead link":
            environment.python.symlink_to("/nowhere/python3")
    filled: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", make_from_template)
    monkeypatch.setattr(Environment, "_fill", lambda _, extras: filled.append(extras))
    environment.prepare(["gguf"])
    assert made_for == [environment.folder]
    assert filled == [["gguf"]]


def test_failed_install_shows_the_end_of_pips_output_and_the_next_run_goes_on(
    environment: Environment, wheels: Path
) -> None:
    wheel = wheels / "tiny_gguf-1.0-py3-none-any.whl"
    hidden = wheel.rename(wheels.parent / wheel.name)
    with pytest.raises(SetupError) as failure:
        environment.prepare(["gguf"])
    assert "check the network connection" in str(failure.value)
    assert "No matching distribution found for tiny-gguf" in str(failure.value)
    assert not environment.stamp.exists()
    hidden.rename(wheel)
    environment.prepare(["gguf"])
    assert imports(environment, "tiny_gguf")


@pytest.mark.parametrize("stamp", ["", "{", "[]", '{"key": 1}', '{"extras": "gguf"}', "\udcff"])
def test_unreadable_stamp_means_unfinished(environment: Environment, stamp: str) -> None:
    environment.stamp.write_bytes(stamp.encode("utf-8", "surrogateescape"))
    assert environment._stamped() == {}


def test_settings_of_the_persons_pip_do_not_lead_packages_elsewhere(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    monkeypatch.setenv("PIP_TARGET", str(elsewhere))
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("PYTHONPATH", str(elsewhere))
    environment.prepare(["gguf"])
    assert installed(environment) == {"tiny_torch", "tiny_tools", "tiny_gguf"}
    assert not elsewhere.exists()


def test_two_set_ups_of_one_checkout_run_one_after_the_other(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fcntl", reason="no such lock on Windows")
    inside, leave, waiting = threading.Event(), threading.Event(), threading.Event()
    order: list[str] = []

    def slow_fill(self: Environment, extras: list[str]) -> None:
        order.append("first fills")
        inside.set()
        assert leave.wait(timeout=60)
        order.append("first is done")

    def on_line(text: str) -> None:
        if "waiting for it" in text:
            waiting.set()

    monkeypatch.setattr(Environment, "_fill", slow_fill)
    monkeypatch.setattr(virtual_environment, "say", on_line)
    first = threading.Thread(target=environment.prepare, args=(["gguf"],))
    second = threading.Thread(
        target=lambda: (Environment(environment.root).prepare(["gguf"]), order.append("second is done"))
    )
    first.start()
    assert inside.wait(timeout=60)
    second.start()
    assert waiting.wait(timeout=60)
    leave.set()
    first.join(timeout=60)
    second.join(timeout=60)
    assert order == ["first fills", "first is done", "second is done"]  # the second found everything there


def test_tail_keeps_the_end() -> None:
    assert tail("\n".join(map(str, range(100))), lines=2) == "  98\n  99"
