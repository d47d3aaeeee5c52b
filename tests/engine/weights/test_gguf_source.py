"""GGUF files give the tensors of the checkpoint that they were made from."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from bad_models import gguf_head, gguf_string
from gguf_files import gguf_name, write_gguf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_files import TINY_MODELS, WEIGHTS
from safetensors.torch import load_file

from engine.checkpoints.model_folder import ModelFolder, open_model
from engine.errors import EngineError, ModelFileError, UnsupportedModelError
from engine.inspection import inspect_model
from engine.progress import no_progress
from engine.weights import gguf_source, weight_file
from engine.weights.gguf_header import read_gguf_header
from engine.weights.gguf_package import dequantize_into, readable_dtypes, type_sizes
from engine.weights.gguf_source import GgufSource
from engine.weights.weight_file import WeightFile

MODELS = ("tiny-llama-rope3", "tiny-qwen2", "tiny-qwen3")
QUANTIZABLE = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16")


def parameters_of(folder: ModelFolder) -> dict[str, torch.Tensor]:
    from engine.cpu.weights import load_parameters

    loaded = load_parameters(folder.parameters, folder.tensors, on_progress=no_progress, cancel=None)
    folder.tensors.close()
    return loaded.tensors


@pytest.mark.parametrize("model", MODELS)
def test_every_tensor_is_that_of_the_checkpoint(model: str, tmp_path: Path) -> None:
    """Also the rows of q and k, which llama files have in another order."""
    folder = open_model(write_gguf(model, tmp_path / "m.gguf"))
    stored = load_file(TINY_MODELS / model / WEIGHTS)
    infos = folder.tensors.tensors()
    assert len(infos) == len(stored)
    for name, tensor in stored.items():
        read = folder.tensors.read(name.removeprefix("model."))
        assert read.dtype == torch.float32
        assert read.is_contiguous()
        assert torch.equal(read, tensor.float()), name
    folder.tensors.close()


@pytest.mark.parametrize("model", MODELS)
def test_gguf_and_folder_give_the_same_model(model: str, tmp_path: Path) -> None:
    gguf_folder = open_model(write_gguf(model, tmp_path / "m.gguf"))
    hf_folder = open_model(TINY_MODELS / model)
    for ours, theirs in zip(gguf_folder.spec.layers, hf_folder.spec.layers, strict=True):
        assert ours.feed_forward == theirs.feed_forward
        assert (ours.attention.q_dim, ours.attention.kv_dim) == (
            theirs.attention.q_dim,
            theirs.attention.kv_dim,
        )
        assert ours.attention.qkv_bias == theirs.attention.qkv_bias
        assert ours.attention.qk_norm == theirs.attention.qk_norm
        assert ours.attention.rope.theta == theirs.attention.rope.theta
    assert gguf_folder.spec.architecture == hf_folder.spec.architecture
    assert gguf_folder.spec.tied_embeddings == hf_folder.spec.tied_embeddings
    assert gguf_folder.spec.norm_eps == pytest.approx(hf_folder.spec.norm_eps, rel=1e-6)
    assert gguf_folder.eos_token_ids == hf_folder.eos_token_ids
    assert gguf_folder.chat_template == "{{ messages }}"
    ours, theirs = parameters_of(gguf_folder), parameters_of(hf_folder)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_stacked_experts_are_those_stored_one_by_one(tmp_path: Path) -> None:
    """The tiny model has dense layers, too, which the format can't say of qwen3moe; so only sparse ones are
    kept.
    """
    source = GgufSource(write_gguf("tiny-qwen3moe-mix", tmp_path / "m.gguf"))
    stored = load_file(TINY_MODELS / "tiny-qwen3moe-mix" / WEIGHTS)
    for layer in (1, 5):
        for part in ("gate_proj", "up_proj", "down_proj"):
            stacked = source.read(f"layers.{layer}.mlp.experts.{part}")
            for expert in range(8):
                one = stored[f"model.layers.{layer}.mlp.experts.{expert}.{part}.weight"]
                assert torch.equal(stacked[expert], one.float())
    source.close()


@pytest.mark.parametrize("kind", QUANTIZABLE)
def test_quantized_tensors_are_what_the_package_makes_of_them(kind: str, tmp_path: Path) -> None:
    path = write_gguf("tiny-qwen2", tmp_path / "m.gguf", kind=kind)
    source = GgufSource(path)
    reference = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for name, info in source.tensors().items():
        tensor = reference[info.stored_name]
        expected = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
        read = source.read(name)
        assert torch.equal(read.float(), expected.view(read.shape)), name
        assert info.num_bytes == tensor.n_bytes
    source.close()


@pytest.mark.parametrize("num_blocks", [1, 2, 31, 32, 33, 255, 256, 257, 65_535, 65_536, 65_537])
@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K"])
def test_regrouped_blocks_give_the_same_numbers(kind: str, num_blocks: int) -> None:
    quant_type = gguf.GGMLQuantizationType[kind]
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[quant_type]
    num_blocks = min(num_blocks, 2**22 // block_size)
    raw = np.random.default_rng(num_blocks).integers(0, 60, num_blocks * block_bytes, dtype=np.uint8)
    out = np.full(num_blocks * block_size, np.nan, dtype=np.float32)
    dequantize_into(out, raw, kind)
    expected = gguf.quants.dequantize(raw.reshape(num_blocks, block_bytes), quant_type).reshape(-1)
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("kind", ["F32", "F16", "Q4_0", "Q5_1"])
@pytest.mark.parametrize("chunk", [500, 2048, 2**19])
def test_bytes_are_told_while_a_tensor_is_read(
    kind: str, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = GgufSource(write_gguf("tiny-qwen2", tmp_path / "m.gguf", kind=kind))
    whole = {name: source.read(name) for name in source.tensors()}
    monkeypatch.setattr(gguf_source, "_CHUNK_NUMBERS", chunk)
    monkeypatch.setattr(weight_file, "_CHUNK_BYTES", chunk)
    times: list[int] = []
    for name, info in source.tensors().items():
        told: list[int] = []
        assert torch.equal(source.read(name, told.append), whole[name])
        assert sum(told) == info.num_bytes
        assert all(count > 0 for count in told)
        times.append(len(told))
    assert (max(times) == 1) == (chunk == 2**19)
    source.close()


class GivenUpError(Exception):
    pass


@pytest.mark.parametrize("kind", ["F32", "Q4_0"])
def test_reading_that_is_given_up_ends_and_leaves_no_thread(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_source, "_CHUNK_NUMBERS", 64)
    monkeypatch.setattr(weight_file, "_CHUNK_BYTES", 64)
    source = GgufSource(write_gguf("tiny-qwen2", tmp_path / "m.gguf", kind=kind))
    told: list[int] = []

    def on_bytes(count: int) -> None:
        told.append(count)
        if len(told) == 3:
            raise GivenUpError

    with pytest.raises(GivenUpError):
        source.read("embed_tokens.weight", on_bytes)
    assert len(told) == 3
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("dequantise")]
    source.close()


def test_types_without_numbers_are_refused_by_name(tmp_path: Path) -> None:
    assert {"Q4_K", "Q6_K", "IQ4_XS", "MXFP4", "F16"} <= readable_dtypes()
    assert not {"I8", "I64", "Q8_K"} & readable_dtypes()


def test_llama3_frequency_factors_are_followed(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 16, dtype=np.float32)
    folder = open_model(write_gguf("tiny-llama-rope3", tmp_path / "m.gguf", rope_freqs__weight=factors))
    assert {layer.attention.rope.frequency_factors for layer in folder.spec.layers} == {
        tuple(factors.tolist())
    }
    assert "rope_freqs.weight" not in folder.tensors.tensors()
    folder.tensors.close()


@pytest.mark.parametrize(
    "factors", [np.ones(15, np.float32), np.zeros(16, np.float32), np.full(16, np.nan, np.float32)]
)
def test_impossible_frequency_factors_are_refused(factors: np.ndarray, tmp_path: Path) -> None:
    path = write_gguf("tiny-llama-rope3", tmp_path / "m.gguf", rope_freqs__weight=factors)
    with pytest.raises(ModelFileError, match="rope_freqs"):
        open_model(path)


def test_rotary_scaling_is_followed(tmp_path: Path) -> None:
    scaling = {"qwen2.rope.scaling.type": "yarn", "qwen2.rope.scaling.factor": 4.0}
    scaling["qwen2.rope.scaling.original_context_length"] = 1024
    folder = open_model(write_gguf("tiny-qwen2", tmp_path / "yarn.gguf", settings=scaling))
    rope = folder.spec.layers[0].attention.rope
    assert (rope.kind, rope.factor, rope.original_context_length) == ("yarn", 4.0, 1024)
    assert rope.attention_factor == pytest.approx(1.1386294, abs=1e-6)  # 0.1 ln 4 + 1
    folder.tensors.close()
    linear = {"qwen2.rope.scale_linear": 2.0}
    folder = open_model(write_gguf("tiny-qwen2", tmp_path / "linear.gguf", settings=linear))
    assert (folder.spec.layers[0].attention.rope.kind, folder.spec.layers[0].attention.rope.factor) == (
        "linear",
        2.0,
    )
    folder.tensors.close()


@pytest.mark.parametrize(
    ("setting", "value", "named"),
    [
        ("rope.scaling.type", "longrope", "longrope"),
        ("attention.sliding_window", 128, "sliding_window"),
        ("rope.dimension_count", 16, "rope.dimension_count"),
        ("pooling_type", 3, "pooling_type"),
        ("expert_count", 8, "expert_count"),
        ("attention.head_count_kv", [2, 2, 1, 2], "head_count_kv"),
    ],
)
def test_settings_that_change_the_mathematics_are_refused_by_name(
    setting: str, value: object, named: str, tmp_path: Path
) -> None:
    path = write_gguf("tiny-qwen2", tmp_path / "m.gguf", settings={f"qwen2.{setting}": value})
    with pytest.raises(UnsupportedModelError, match=named):
        open_model(path)


def test_unknown_settings_are_reported(tmp_path: Path) -> None:
    path = write_gguf("tiny-qwen2", tmp_path / "m.gguf", settings={"qwen2.novelty": 7})
    report = inspect_model(path)
    assert report.problems == ()
    assert [notice.code for notice in report.notices] == ["settings-unknown"]
    assert "qwen2.novelty" in report.notices[0].message


def test_settings_given_layer_by_layer_count_when_all_agree(tmp_path: Path) -> None:
    settings = {"qwen2.attention.head_count_kv": [2, 2, 2, 2], "qwen2.feed_forward_length": [256] * 4}
    folder = open_model(write_gguf("tiny-qwen2", tmp_path / "m.gguf", settings=settings))
    assert folder.spec.layers[0].attention.num_kv_heads == 2
    folder.tensors.close()


def test_a_file_without_output_matrix_is_tied(tmp_path: Path) -> None:
    folder = open_model(write_gguf("tiny-qwen3", tmp_path / "m.gguf"))
    assert gguf_name("lm_head.weight") not in GgufSource(tmp_path / "m.gguf").header.tensors
    assert folder.spec.tied_embeddings
    folder.tensors.close()


def test_every_cut_is_told(tmp_path: Path) -> None:
    """A download that stopped anywhere: in the magic, a count, a text, a vocabulary, the tensor list, the
    data.
    """
    whole = write_gguf("tiny-qwen3", tmp_path / "whole.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in (*range(0, 400, 7), *range(400, len(whole), 29_989), len(whole) - 1):
        cut.write_bytes(whole[:length])
        with pytest.raises(EngineError, match=r"cut\.gguf"):
            open_model(cut)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_in_the_head_never_escapes(data: st.DataObject, tmp_path: Path) -> None:
    """Wrong bytes anywhere in the settings or the tensor list: it opens, or it is refused with a sentence."""
    whole = tmp_path / "whole.gguf"
    if not whole.exists():
        write_gguf("tiny-qwen3", whole)
    raw = bytearray(whole.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(4, 12_000))] = data.draw(st.integers(0, 255))
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(raw)
    report = inspect_model(damaged)
    for problem in report.problems:
        assert problem.message.endswith(".")
        assert problem.message.isprintable()


def test_text_arrays_longer_than_the_first_chunk_are_read(tmp_path: Path) -> None:
    """9 MiB of text: more than is read at first."""
    texts = ["", "é" * 3_000_000, "x" * 3_000_000, "end"]
    raw = gguf_head(num_keys=2) + gguf_string("texts") + (9).to_bytes(4, "little") + (8).to_bytes(4, "little")
    raw += len(texts).to_bytes(8, "little") + b"".join(gguf_string(text) for text in texts)
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    file = WeightFile(path)
    assert read_gguf_header(file, type_sizes()).metadata["texts"] == texts
    file.close()


@pytest.mark.real
def test_header_of_a_real_file_is_what_the_package_reads(starter_model_path: Path) -> None:
    reference = gguf.GGUFReader(starter_model_path)
    source = GgufSource(starter_model_path)
    theirs = {
        name: field.contents() for name, field in reference.fields.items() if not name.startswith("GGUF.")
    }
    assert source.header.metadata == theirs
    for tensor in reference.tensors:
        ours = source.header.tensors[tensor.name]
        assert ours.shape == tuple(reversed(tensor.shape.tolist()))
        assert (ours.dtype, ours.start, ours.num_bytes) == (
            tensor.tensor_type.name,
            tensor.data_offset,
            tensor.n_bytes,
        )
    source.close()


def test_a_missing_package_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf("tiny-qwen3", tmp_path / "m.gguf")
    monkeypatch.setitem(sys.modules, "gguf.constants", None)
    with pytest.raises(UnsupportedModelError, match="gguf") as caught:
        open_model(path)
    assert "pip install gguf" in caught.value.hint
