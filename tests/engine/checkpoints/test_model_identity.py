"""The identity follows the content, not the place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_files import TINY_MODELS, WEIGHTS, copy_model, set_config

from engine.checkpoints.model_folder import ModelFolder, open_model
from engine.checkpoints.model_identity import model_identity

MODEL = sorted(path.name for path in TINY_MODELS.iterdir() if (path / WEIGHTS).exists())[0]


@contextmanager
def opened(path: Path) -> Iterator[ModelFolder]:
    folder = open_model(path)
    try:
        yield folder
    finally:
        folder.tensors.close()


def identity(path: Path) -> str:
    with opened(path) as folder:
        return model_identity(folder)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return copy_model(MODEL, tmp_path / "model")


def flip(path: Path, place: int, *, keep_time: bool) -> None:
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))
    later = status.st_mtime_ns + (0 if keep_time else 1_000)
    os.utime(path, ns=(status.st_atime_ns, later))


def test_a_moved_model_is_the_same_model(model: Path, tmp_path: Path) -> None:
    before = identity(model)
    assert len(before) == 32
    moved = tmp_path / "模型 elsewhere"
    model.rename(moved)
    assert identity(moved) == before
    copied = tmp_path / "copy"
    shutil.copytree(moved, copied)  # keeps the times
    assert identity(copied) == before


def test_a_linked_model_is_the_same_model(model: Path, tmp_path: Path) -> None:
    """Download caches keep the files elsewhere and link to them."""
    before = identity(model)
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    (model / WEIGHTS).rename(blobs / "0123")
    (model / WEIGHTS).symlink_to(blobs / "0123")
    assert identity(model) == before


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_changed_byte_of_any_weight_is_another_model(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = copy_model(MODEL, tmp_path_factory.mktemp("models") / "model")
    before = identity(model)
    weights = model / WEIGHTS
    data_start = 8 + int.from_bytes(weights.read_bytes()[:8], "little")
    place = data.draw(st.integers(data_start, weights.stat().st_size - 1))
    flip(weights, place, keep_time=False)
    assert identity(model) != before


def test_other_weights_of_the_same_size_and_time_are_another_model(model: Path) -> None:
    """As archives make them that give every file one time."""
    before = identity(model)
    weights = model / WEIGHTS
    flip(weights, weights.stat().st_size - 1, keep_time=True)
    assert identity(model) != before


def test_changed_words_on_quantisation_are_another_model(model: Path) -> None:
    found = {identity(model)}
    for bits in (4, 8):
        (model / "quantize_config.json").write_text(f'{{"bits": {bits}}}')
        found.add(identity(model))
    assert len(found) == 3


def test_a_changed_config_is_another_model(model: Path) -> None:
    before = identity(model)
    set_config(model, some_key=1)
    assert identity(model) != before


def test_another_name_of_a_file_is_another_model(model: Path) -> None:
    before = identity(model)
    (model / WEIGHTS).rename(model / "weights.safetensors")
    assert identity(model) != before


def test_other_models_are_others() -> None:
    paths = [path for path in TINY_MODELS.iterdir() if (path / WEIGHTS).exists()]
    assert len({identity(path) for path in paths}) == len(paths) > 2


def test_a_change_in_place_shows_while_the_model_is_open(model: Path) -> None:
    with opened(model) as folder:
        before = model_identity(folder)
        assert model_identity(folder) == before
        flip(model / WEIGHTS, (model / WEIGHTS).stat().st_size - 1, keep_time=False)
        assert model_identity(folder) != before


@pytest.mark.skipif(os.name == "nt", reason="open files can't be replaced there")
def test_a_file_that_replaced_the_open_one_does_not_count(model: Path, tmp_path: Path) -> None:
    """What is read comes from the file that was opened."""
    with opened(model) as folder:
        before = model_identity(folder)
        other = tmp_path / "other"
        shutil.copy2(model / WEIGHTS, other)
        flip(other, other.stat().st_size - 1, keep_time=False)
        os.replace(other, model / WEIGHTS)
        assert model_identity(folder) == before
    assert identity(model) != before
