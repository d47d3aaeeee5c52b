"""Which models are found without being told of, and what is passed over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import app.found_models as found_models
from app.found_models import MAX_DEPTH, find_models, usual_places
from engine.default_folders import default_cache_folder


def make_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def make_folder(path: Path) -> Path:
    make_file(path / "config.json")
    make_file(path / "model.safetensors")
    return path


def test_starter_model_is_found_on_a_computer_where_nothing_was_ever_loaded() -> None:
    starter = make_file(default_cache_folder() / "models" / "starter.gguf")
    assert find_models(usual_places()) == (starter,)


def test_models_of_other_programs_are_found_where_those_download_them(user_folders: Path) -> None:
    studio = make_file(user_folders / ".lmstudio/models/publisher/repository/模型 Q4.gguf")
    cache = Path(os.environ["XDG_CACHE_HOME"])
    hub = make_folder(cache / "huggingface/hub/models--Qwen--Qwen3-0.6B/snapshots/c1899de289a04d12")
    assert find_models(usual_places()) == (studio, hub)


def test_folder_that_was_chosen_for_models_comes_first(tmp_path: Path) -> None:
    starter = make_file(default_cache_folder() / "models" / "starter.gguf")
    chosen = make_folder(tmp_path / "mine" / "a model")
    assert find_models(usual_places(tmp_path / "mine")) == (chosen, starter)


def test_model_that_two_places_hold_is_found_once(tmp_path: Path) -> None:
    model = make_file(tmp_path / "models" / "one.gguf")
    assert find_models([tmp_path, tmp_path / "models"]) == (model,)


def test_parts_of_models_and_folders_without_weights_are_no_models(tmp_path: Path) -> None:
    make_file(tmp_path / "big-00001-of-00002.gguf")
    make_file(tmp_path / "mmproj-model-f16.gguf")
    make_file(tmp_path / "notes.txt")
    make_file(tmp_path / "dataset" / "config.json")
    make_file(tmp_path / "lora" / "adapter.safetensors")
    make_file(tmp_path / ".fetching-1" / "cut.gguf")
    assert find_models([tmp_path]) == ()


def test_files_inside_a_model_folder_belong_to_it(tmp_path: Path) -> None:
    model = make_folder(tmp_path / "model")
    make_file(model / "original" / "other.gguf")
    assert find_models([tmp_path]) == (model,)


def test_places_that_are_missing_unreadable_or_files_hold_nothing(tmp_path: Path) -> None:
    assert find_models([tmp_path / "nowhere", make_file(tmp_path / "a file")]) == ()


def test_looking_ends_below_a_depth_in_circles_of_links_and_at_a_number_of_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    make_file(place.joinpath(*"abcde"[: MAX_DEPTH + 1]) / "deep.gguf")
    (place / "circle").symlink_to(place, target_is_directory=True)
    model = make_file(place.joinpath(*"abcd"[:MAX_DEPTH]) / "reached.gguf")
    assert find_models([place]) == (model,)
    monkeypatch.setattr(found_models, "MAX_ENTRIES", 3)
    assert find_models([place]) == ()


def test_only_so_many_are_shown(tmp_path: Path) -> None:
    models = [make_file(tmp_path / f"{number}.gguf") for number in range(5)]
    assert find_models([tmp_path], most=3) == tuple(models[:3])
