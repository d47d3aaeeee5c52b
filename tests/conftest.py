"""What every test shares: no screen, no network, none of the person's own files, and the starter model."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import starter_model

# Before any test imports Qt or a library that reads it. Who wants to see the windows names another platform.
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ["HF_HUB_OFFLINE"] = "1"
# As `engine.runtime` has it, for tests that import torch by themselves: threads that spin while they wait
# take the cores from other work, and beside some of it tests then run many times slower.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

MOST_PROCESSES = 4  # for one run of the tests: each holds torch, Qt and models, up to some GB
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:  # one of several processes, which share the cores
    share = CORES // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, share)))

# Where the starter model really is: looked up before the user's folders are hidden from the tests.
STARTER_FOLDER = starter_model.models_folder()
USER_FOLDERS = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")


@pytest.fixture(scope="session", autouse=True)
def _user_folders_of_longer_fixtures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What `user_folders` gives to tests: for fixtures that outlive one."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        _set_user_folders(tmp_path_factory.mktemp("home"), monkeypatch)
        yield


@pytest.fixture(autouse=True)
def user_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings, chats and caches of a person who has never started the program, anew for every test."""
    home = tmp_path_factory.mktemp("home")
    _set_user_folders(home, monkeypatch)
    return home


def _set_user_folders(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in USER_FOLDERS:
        monkeypatch.setenv(name, str(home / name.removeprefix("XDG_").removesuffix("_HOME").lower()))
    monkeypatch.setenv("HOME", str(home))


@pytest.fixture(autouse=True)
def _no_card_but_for_its_tests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever computer they run on, tests compute on the CPU unless they say otherwise."""
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr("engine.cuda.availability.load_nvidia_library", lambda: None)
        monkeypatch.setattr("engine.cuda.lost_card._words", None)


@pytest.fixture(scope="session")
def starter_model_path() -> Path:
    """SmolLM2-135M-Instruct as a GGUF file. Tests that use it carry the mark `real`."""
    try:
        return starter_model.fetch(STARTER_FOLDER)
    except starter_model.StarterModelError as error:
        pytest.skip(f"no starter model: {error}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """For `-n auto`, in place of what pytest-xdist would say. Tests on a card measure its memory: there one
    process runs all, one after the other.
    """
    return min(MOST_PROCESSES, CORES) if _why_no_card() else 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_card = [item for item in items if item.get_closest_marker("gpu")]
    reason = _why_no_card() if on_card else None
    if reason is not None:
        for item in on_card:
            item.add_marker(pytest.mark.skip(reason=reason))


def _why_no_card() -> str | None:
    """None where the driver lists an NVIDIA card."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError:
        return "no NVIDIA driver on this machine (nvidia-smi is absent)"
    except subprocess.TimeoutExpired:
        return "the NVIDIA driver does not answer (nvidia-smi -L)"
    return None if "GPU 0" in listed.stdout else "no NVIDIA card in this machine (nvidia-smi -L lists none)"
