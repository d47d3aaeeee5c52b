"""A path becomes a model: every tensor once, whatever the folder is called and however its files are laid
out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from model_files import (
    INDEX,
    TINY_MODELS,
    WEIGHTS,
    RawTensor,
    copy_model,
    edit_json,
    edit_tensors,
    read_tensors,
    rename_tensors,
    set_config,
    split_into_shards,
    write_tensors,
)
from safetensors.torch import load_file

from engine.checkpoints.model_folder import ModelFolder, model_name, open_model
from engine.errors import EngineError, ModelFileError
from engine.generation import SamplingParams
from engine.models.spec import Parameter, Piece

MODELS = sorted(path.name for path in TINY_MODELS.iterdir())
ROOT = Path(__file__).resolve().parents[3]


def opened(path: Path) -> ModelFolder:
    """An open model whose files are closed again: what it says stays."""
    folder = open_model(path)
    folder.tensors.close()
    return folder


def codes(folder: ModelFolder) -> list[str]:
    return [notice.code for notice in folder.notices]


def piece_shape(piece: Piece) -> tuple[int, ...]:
    return (*piece.shape[:-2], piece.shape[-1], piece.shape[-2]) if piece.transpose else piece.shape


def joined_shape(parameter: Parameter) -> tuple[int, ...]:
    """The shape that the pieces have together, by the rule at `Parameter`."""
    shapes = [piece_shape(piece) for piece in parameter.pieces]
    if len(parameter.shape) == 3 and len(shapes[0]) == 2:
        rows, width = sum(shape[0] for shape in shapes), shapes[0][1]
        return (parameter.shape[0], rows // parameter.shape[0], width)
    axis = 1 if len(shapes[0]) == 3 else 0
    total = sum(shape[axis] for shape in shapes)
    return (*shapes[0][:axis], total, *shapes[0][axis + 1 :])


@pytest.mark.parametrize("model", MODELS)
def test_every_tensor_is_used_exactly_once(model: str) -> None:
    folder = opened(TINY_MODELS / model)
    used = Counter(piece.source for parameter in folder.parameters for piece in parameter.pieces)
    assert set(used.values()) == {1}
    assert used.keys() == folder.tensors.tensors().keys()
    for parameter in folder.parameters:
        assert joined_shape(parameter) == parameter.shape, parameter.name
    names = [parameter.name for parameter in folder.parameters]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("model", MODELS)
def test_number_of_parameters_is_that_of_the_reference(model: str) -> None:
    """The reference counted the vision tower, too."""
    expected = json.loads((TINY_MODELS / model / "expected.json").read_text(encoding="utf-8"))["parameters"]
    stored = read_tensors(TINY_MODELS / model / WEIGHTS)
    vision = sum(len(tensor.data) // 2 for name, tensor in stored.items() if ".visual." in name)
    folder = opened(TINY_MODELS / model)
    assert sum(parameter.num_elements for parameter in folder.parameters) == expected - vision


@pytest.mark.parametrize("model", MODELS)
def test_tensors_are_read_as_stored(model: str) -> None:
    folder = open_model(TINY_MODELS / model)
    stored = load_file(TINY_MODELS / model / WEIGHTS)
    for name, info in folder.tensors.tensors().items():
        tensor = folder.tensors.read(name)
        assert tensor.dtype == stored[info.stored_name].dtype
        assert tensor.is_contiguous()
        assert torch.equal(tensor, stored[info.stored_name])
    folder.tensors.close()
    folder.tensors.close()  # twice does nothing


def test_a_tensor_that_was_read_is_the_callers_own() -> None:
    folder = open_model(TINY_MODELS / "tiny-qwen3")
    first = folder.tensors.read("norm.weight")
    kept = first.clone()
    first.zero_()
    assert torch.equal(folder.tensors.read("norm.weight"), kept)
    folder.tensors.close()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_other_number_types_are_read(dtype: torch.dtype, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    folder = copy_model("tiny-qwen2", tmp_path / "model")
    stored = {name: tensor.to(dtype) for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file(stored, folder / WEIGHTS)
    model = open_model(folder)
    for name, info in model.tensors.tensors().items():
        assert torch.equal(model.tensors.read(name), stored[info.stored_name])
    model.tensors.close()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_shards_give_the_same_model(count: int, tmp_path: Path) -> None:
    whole = open_model(TINY_MODELS / "tiny-qwen3moe-mix")
    folder = copy_model("tiny-qwen3moe-mix", tmp_path / "model")
    split_into_shards(folder, count)
    parts = open_model(folder)
    assert parts.parameters == whole.parameters
    assert parts.tensors.tensors() == whole.tensors.tensors()
    for name in whole.tensors.tensors():
        assert torch.equal(parts.tensors.read(name), whole.tensors.read(name))
    parts.tensors.close()
    whole.tensors.close()


def test_a_lone_file_of_another_name_is_taken(tmp_path: Path) -> None:
    folder = copy_model("tiny-qwen3", tmp_path / "model")
    (folder / WEIGHTS).rename(folder / "weights v2.safetensors")
    (folder / "adapter_model.safetensors").write_bytes(b"")
    assert opened(folder).spec == opened(TINY_MODELS / "tiny-qwen3").spec


def test_the_single_file_counts_where_an_old_index_lies_beside_it(tmp_path: Path) -> None:
    folder = copy_model("tiny-qwen3", tmp_path / "model")
    (folder / INDEX).write_text('{"weight_map": {"a": "gone.safetensors"}}', encoding="utf-8")
    assert opened(folder).parameters == opened(TINY_MODELS / "tiny-qwen3").parameters


@pytest.mark.parametrize(
    "prefix", ["", "model.", "model.language_model.", "language_model.model.", "language_model."]
)
@pytest.mark.parametrize("model", ["tiny-llama-rope3", "tiny-qwen3vl"])
def test_every_prefix_is_known(model: str, prefix: str, tmp_path: Path) -> None:
    def rename(name: str) -> str:
        bare = name.removeprefix("model.language_model.").removeprefix("model.")
        return name if "visual" in name or bare.startswith("lm_head") else prefix + bare

    folder = rename_tensors(copy_model(model, tmp_path / "model"), rename)
    assert opened(folder).parameters == opened(TINY_MODELS / model).parameters


@pytest.mark.parametrize("name", ["lm_head.weight", "model.lm_head.weight", "language_model.lm_head.weight"])
def test_the_head_is_found_under_every_prefix(name: str, tmp_path: Path) -> None:
    folder = copy_model("tiny-llama-rope3", tmp_path / "model")
    rename_tensors(folder, lambda stored: name if stored == "lm_head.weight" else stored)
    model = open_model(folder)
    assert not model.spec.tied_embeddings
    assert torch.equal(model.tensors.read("lm_head.weight"), load_file(folder / WEIGHTS)[name])
    model.tensors.close()


def test_vision_and_prediction_tensors_are_left_out_with_one_line(tmp_path: Path) -> None:
    extra = {
        "model.visual.patch_embed.weight": 1,
        "vision_tower.blocks.0.weight": 1,
        "mtp.fc.weight": 1,
        "mtp.layers.0.weight": 1,
        "model.layers.0.self_attn.rotary_emb.inv_freq": 1,
    }

    def add(tensors: dict[str, RawTensor]) -> None:
        tensors.update({name: RawTensor("F64", (1,), bytes(8)) for name in extra})

    folder = opened(edit_tensors(copy_model("tiny-qwen3", tmp_path / "model"), add))
    plain = opened(TINY_MODELS / "tiny-qwen3")
    assert codes(folder) == ["tensors-left-out"]
    message = folder.notices[0].message
    assert "2 vision" in message
    assert "2 multi-token prediction" in message
    assert (folder.spec, folder.parameters) == (plain.spec, plain.parameters)


def test_a_tied_head_that_is_stored_is_used_and_told(tmp_path: Path) -> None:
    """As in transformers 5, which trusts the files where they and the config differ."""
    folder = copy_model("tiny-qwen3", tmp_path / "model")
    tensors = read_tensors(folder / WEIGHTS)
    embedding = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = RawTensor(embedding.dtype, embedding.shape, embedding.data[::-1])
    write_tensors(folder / WEIGHTS, tensors)
    model = opened(folder)
    assert not model.spec.tied_embeddings
    assert [parameter.name for parameter in model.parameters][-1] == "head"
    assert codes(model) == ["stored-head-used"]


def test_a_tied_model_is_the_untied_copy_of_itself(tmp_path: Path) -> None:
    from engine.cpu.weights import load_parameters
    from engine.progress import no_progress

    folder = copy_model("tiny-qwen3", tmp_path / "model")
    edit_tensors(
        folder, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"]})
    )
    set_config(folder, tie_word_embeddings=False)
    untied = open_model(folder)
    assert codes(untied) == []
    loaded = load_parameters(untied.parameters, untied.tensors, on_progress=no_progress, cancel=None).tensors
    untied.tensors.close()
    assert torch.equal(loaded["head"], loaded["embed"])
    tied = opened(TINY_MODELS / "tiny-qwen3")
    assert tied.spec.tied_embeddings
    assert {p.name for p in untied.parameters} - {p.name for p in tied.parameters} == {"head"}


AWKWARD_NAMES = (
    "模型 测试/Željko 山月 123",
    "with spaces ",
    "🦅 Kestrel 👩‍👩‍👧",
    "100% #?&;'\"",
    "日本語" * 20,
    "n" * 200 + "/" + "m" * 200,
)


@pytest.mark.parametrize("name", AWKWARD_NAMES)
def test_awkward_names_are_opened(name: str, tmp_path: Path) -> None:
    folder = copy_model("tiny-qwen3", tmp_path / name)
    split_into_shards(folder)
    model = open_model(folder)
    assert model.path == folder
    assert model.tensors.read("norm.weight").shape == (64,)
    model.tensors.close()


@pytest.mark.skipif(os.name == "nt", reason="names are text there")
def test_names_that_are_not_text_are_shown_escaped(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9 \n")
    folder.mkdir()
    with pytest.raises(ModelFileError) as caught:
        open_model(folder)
    assert caught.value.message.isprintable()
    assert caught.value.message.encode("utf-8")


def test_a_path_with_a_nul_is_told() -> None:
    with pytest.raises(ModelFileError):
        open_model(Path("mo\0del"))


def test_a_name_for_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = tmp_path / "hub" / "models--Qwen--Qwen3-0.6B" / "snapshots" / "0123abc"
    cached.mkdir(parents=True)
    assert model_name(cached) == "Qwen3-0.6B"
    assert model_name(tmp_path / "SmolLM2-135M.Q4_1.gguf") == "SmolLM2-135M.Q4_1"
    assert model_name(tmp_path / "Qwen2.5-7B") == "Qwen2.5-7B"
    monkeypatch.chdir(cached)
    assert model_name(Path(".")) == "Qwen3-0.6B"


def test_a_download_cache_leads_to_the_model_inside(tmp_path: Path) -> None:
    copy_model("tiny-qwen3", tmp_path / "models--a--b" / "snapshots" / "0123abc")
    with pytest.raises(ModelFileError) as caught:
        open_model(tmp_path / "models--a--b")
    assert "0123abc" in caught.value.hint


@pytest.mark.parametrize("inside", [False, True])
def test_a_search_passes_over_what_may_not_be_looked_at(
    inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of homes holds those of others. Stands in for permissions, which don't bind the superuser."""
    copy_model("tiny-qwen3", tmp_path / "homes" / "snapshot")
    private = tmp_path / "homes" / "private"
    private.mkdir()
    really_stat = os.stat

    def refuse(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if (Path(path).parent if inside else Path(path)) == private:
            raise PermissionError(13, "Permission denied", str(path))
        return really_stat(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(ModelFileError) as caught:
        open_model(tmp_path / "homes")
    assert "snapshot" in caught.value.hint


def test_links_to_files_are_followed(tmp_path: Path) -> None:
    """Download caches keep the files elsewhere and link to them."""
    folder = copy_model("tiny-qwen3", tmp_path / "model")
    (folder / WEIGHTS).rename(tmp_path / "blob")
    (folder / WEIGHTS).symlink_to(tmp_path / "blob")
    assert opened(folder).spec.num_layers == 5


def test_a_folder_with_one_gguf_opens_it(tmp_path: Path) -> None:
    from gguf_files import write_gguf

    path = write_gguf("tiny-qwen3", tmp_path / "tiny.gguf")
    model = opened(tmp_path)
    assert (model.path, model.kind, model.name) == (path, "gguf", "tiny")


def test_a_gguf_is_known_by_its_content(tmp_path: Path) -> None:
    from gguf_files import write_gguf

    path = write_gguf("tiny-qwen3", tmp_path / "sha256-0123abc")
    assert opened(path).kind == "gguf"


@pytest.mark.parametrize("name", ["config.json", WEIGHTS, "tokenizer_config.json"])
def test_a_file_that_may_not_be_read_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands in for permissions, which don't bind the superuser."""
    import builtins

    really_open = builtins.open

    def refuse(file: Any, *args: Any, **kwargs: Any) -> Any:
        if Path(file).name == name:
            raise PermissionError(13, "Permission denied", str(file))
        return really_open(file, *args, **kwargs)

    folder = copy_model("tiny-qwen3", tmp_path / "model")
    monkeypatch.setattr(builtins, "open", refuse)
    with pytest.raises(ModelFileError, match="permission denied") as caught:
        open_model(folder)
    assert name in caught.value.message


def test_a_file_that_shrinks_after_opening_is_told(tmp_path: Path) -> None:
    """A mapped file would end the process here."""
    folder = copy_model("tiny-qwen3", tmp_path / "model")
    model = open_model(folder)
    os.truncate(folder / WEIGHTS, 100_000)
    with pytest.raises(ModelFileError, match=r"model\.safetensors has become shorter"):
        list(map(model.tensors.read, model.tensors.tensors()))
    model.tensors.close()


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (495, 495, {495}),
        (2, [1, 106, 50], {1, 2, 50, 106}),
        ([1, 2], None, {1, 2}),
        (None, 7, {7}),
        (..., ..., set()),
        (5, ..., {5}),
        (-1, 3, {3}),
        ([], [4], {4}),
    ],
)
def test_end_tokens_are_the_union(
    config: object, generation: object, expected: set[int], tmp_path: Path
) -> None:
    folder = set_config(copy_model("tiny-qwen3", tmp_path / "model"), eos_token_id=config)
    if generation is ...:
        (folder / "generation_config.json").unlink()
    else:
        edit_json(folder / "generation_config.json", lambda values: values.update(eos_token_id=generation))
    assert opened(folder).eos_token_ids == expected


@pytest.mark.parametrize("value", ["495", 1.5, True, {"id": 1}, [[1]], 2**40])
def test_end_tokens_that_are_none_are_refused(value: object, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="eos_token_id"):
        open_model(set_config(copy_model("tiny-qwen3", tmp_path / "model"), eos_token_id=value))


def test_end_tokens_inside_text_config_count(tmp_path: Path) -> None:
    folder = copy_model("tiny-qwen3vl", tmp_path / "model")
    edit_json(folder / "generation_config.json", lambda values: values.update(eos_token_id=1))
    assert opened(folder).eos_token_ids == {1, 495}


NEUTRAL = SamplingParams()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, NEUTRAL),
        ({"do_sample": False, "temperature": 0.7}, NEUTRAL),
        ({"do_sample": True}, SamplingParams(temperature=1.0)),
        ({"temperature": 0.6}, SamplingParams(temperature=0.6)),
        (
            {
                "do_sample": True,
                "temperature": 0.6,
                "top_k": 20,
                "top_p": 0.95,
                "min_p": 0.05,
                "repetition_penalty": 1.1,
            },
            SamplingParams(0.6, 20, 0.95, 0.05, 1.1),
        ),
        ({"top_k": None, "top_p": None}, NEUTRAL),
    ],
)
def test_sampling_defaults(values: dict[str, Any], expected: SamplingParams, tmp_path: Path) -> None:
    folder = copy_model("tiny-qwen3", tmp_path / "model")
    edit_json(folder / "generation_config.json", lambda config: config.update(values))
    model = opened(folder)
    assert model.sampling_defaults == expected
    assert codes(model) == []


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -1},
        {"top_p": 0},
        {"top_p": 1.5},
        {"top_k": -1},
        {"min_p": 1},
        {"repetition_penalty": 0},
        {"repetition_penalty": 1e-300},
        {"top_k": "9"},
    ],
)
def test_impossible_sampling_defaults_are_left_out_and_told(values: dict[str, Any], tmp_path: Path) -> None:
    folder = copy_model("tiny-qwen3", tmp_path / "model")
    edit_json(folder / "generation_config.json", lambda config: config.update(values))
    model = opened(folder)
    assert model.sampling_defaults == NEUTRAL
    assert codes(model) == ["sampling-default-ignored"]
    assert next(iter(values)) in model.notices[0].message


def _template_in_config(folder: Path, template: object) -> None:
    edit_json(folder / "tokenizer_config.json", lambda config: config.update(chat_template=template))


def _jinja_file(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("from jinja 山", encoding="utf-8")
    _json_file(folder)


def _json_file(folder: Path) -> None:
    (folder / "chat_template.json").write_text('{"chat_template": "from json"}', encoding="utf-8")
    _template_in_config(folder, "from config")


@pytest.mark.parametrize(
    ("prepare", "expected"),
    [
        (_jinja_file, "from jinja 山"),
        (_json_file, "from json"),
        (lambda folder: _template_in_config(folder, "from config"), "from config"),
        (lambda folder: _template_in_config(folder, None), None),
        (
            lambda folder: _template_in_config(
                folder, [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
            ),
            "d",
        ),
        (lambda folder: (folder / "tokenizer_config.json").unlink(), None),
    ],
)
def test_where_the_chat_template_stands(
    prepare: Callable[[Path], None], expected: str | None, tmp_path: Path
) -> None:
    folder = copy_model("tiny-qwen3", tmp_path / "model")
    prepare(folder)
    model = opened(folder)
    assert model.chat_template == expected
    assert codes(model) == []


def test_the_only_named_template_is_used_and_told(tmp_path: Path) -> None:
    folder = copy_model("tiny-qwen3", tmp_path / "model")
    _template_in_config(folder, [{"name": "rag", "template": "r"}])
    model = opened(folder)
    assert model.chat_template == "r"
    assert codes(model) == ["chat-template-chosen"]


@pytest.mark.parametrize("template", [7, [], [{"name": 1, "template": "x"}], {"default": "x"}])
def test_a_template_of_another_kind_is_refused(template: object, tmp_path: Path) -> None:
    folder = copy_model("tiny-qwen3", tmp_path / "model")
    _template_in_config(folder, template)
    with pytest.raises(EngineError, match=r"tokenizer_config\.json"):
        open_model(folder)


def test_opening_and_inspecting_leave_torch_alone() -> None:
    code = (
        "import sys; from pathlib import Path; from engine.checkpoints.model_folder import open_model;"
        "from engine.inspection import inspect_model; path = Path(sys.argv[1]);"
        "open_model(path); inspect_model(path);"
        "print([name for name in ('torch', 'numpy', 'gguf', 'transformers') if name in sys.modules])"
    )
    model = TINY_MODELS / "tiny-qwen3"
    done = subprocess.run(
        [sys.executable, "-c", code, str(model)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
