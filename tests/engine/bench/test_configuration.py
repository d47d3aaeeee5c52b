"""A configuration alone: which model it stands for, and what is said where it stands for none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench_configs import CONFIGS, configuration
from model_files import TINY_MODELS

from engine.bench.configuration import is_configuration, read_configuration
from engine.errors import EngineError, ModelFileError, UnsupportedModelError


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(values: dict[str, Any] | str, name: str = "some-model.json") -> Path:
        path = tmp_path / name
        path.write_text(values if isinstance(values, str) else json.dumps(values), encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_family_is_known_by_its_configuration(name: str, written: Any) -> None:
    found = read_configuration(written(CONFIGS[name]))
    assert found.name == "some-model"
    assert found.spec.num_layers == 2
    assert {parameter.name for parameter in found.parameters} >= {"embed", "layers.1.qkv", "final_norm"}
    assert all(info.dtype == "BF16" for info in found.tensors().values())


def test_a_tied_head_has_no_weights_of_its_own() -> None:
    tied, untied = configuration(CONFIGS["qwen2"]), configuration(CONFIGS["qwen3"])
    assert tied.spec.tied_embeddings
    assert "head" not in {parameter.name for parameter in tied.parameters}
    assert "head" in {parameter.name for parameter in untied.parameters}


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-qwen3moe-mix"])
def test_a_whole_model_and_its_configuration_have_the_same_shapes(name: str) -> None:
    from engine.checkpoints.model_folder import open_model

    folder = open_model(TINY_MODELS / name)
    folder.tensors.close()
    for path in (TINY_MODELS / name, TINY_MODELS / name / "config.json"):
        found = read_configuration(path)
        assert found.name == name
        assert {each.name: each.shape for each in found.parameters} == {
            each.name: each.shape for each in folder.parameters
        }


@pytest.mark.parametrize("key", ["hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads"])
def test_a_key_that_is_missing_is_named(key: str, written: Any) -> None:
    values = {each: value for each, value in CONFIGS["qwen3"].items() if each != key}
    with pytest.raises(ModelFileError, match=rf"^some-model\.json: {key} is missing\."):
        read_configuration(written(values))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[1]", "object"),
        ("{}", "model_type"),
        ('{"model_type": "qwen3", "model_type": "llama"}', "twice"),
    ],
)
def test_what_is_no_configuration_is_told(text: str, words: str, written: Any) -> None:
    with pytest.raises(EngineError, match=words):
        read_configuration(written(text))


def test_a_family_that_there_is_not_is_named(written: Any) -> None:
    with pytest.raises(UnsupportedModelError, match="gpt_neox"):
        read_configuration(written({**CONFIGS["llama"], "model_type": "gpt_neox"}))


def test_a_path_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.json", tmp_path / "nothing"):
        with pytest.raises(EngineError, match="does not exist"):
            read_configuration(path)


def test_files_by_the_name_of_a_configuration_are_told_from_models(written: Any, tmp_path: Path) -> None:
    assert is_configuration(written(CONFIGS["llama"]))
    assert not is_configuration(TINY_MODELS / "tiny-qwen3")
    folder = tmp_path / "folder.json"
    folder.mkdir()
    assert not is_configuration(folder)
