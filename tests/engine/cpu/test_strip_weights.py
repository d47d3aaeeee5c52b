"""Whole tiny models with their matrices as strips."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from gguf_files import write_gguf
from model_files import TINY_MODELS
from strip_loads import load, logits, one_layer_spec, random_tensors, shelf_in

from engine.checkpoints.model_folder import open_model
from engine.config import WeightFormat
from engine.cpu.backend import CpuBackend
from engine.cpu.calibration import effort_for
from engine.cpu.strip_weights import load_strips
from engine.errors import ModelFileError
from engine.models.experts import ExpertLayout
from engine.models.parameters import decoder_parameters
from engine.models.spec import (
    AttentionSpec,
    DenseSpec,
    LayerSpec,
    ModelSpec,
    MoeSpec,
    Parameter,
    Piece,
    RopeSpec,
)
from engine.progress import no_progress
from engine.weights import calibrated_strip, packing
from engine.weights.packing import STRIP_PARAMETERS
from engine.weights.quantise import quantise
from engine.weights.sizes import MatrixCounts, weight_bytes
from engine.weights.source import TensorInfo
from engine.weights.strip_cache import StripCache
from engine.weights.strip_file import StripKey
from engine.weights.strip_shelf import StripShelf
from engine.weights.strips import dequantise
from engine.weights.weight_file import OnBytes, unwatched

MODELS = ["tiny-llama-rope3", "tiny-qwen2", "tiny-qwen3", "tiny-qwen3moe-mix", "tiny-qwen3vlmoe"]
SomeIds = Callable[[int], list[int]]


class ChangedTensors:
    """A source with some of its tensors replaced or changed."""

    def __init__(self, source, change: Callable[[str, torch.Tensor], torch.Tensor]) -> None:  # type: ignore[no-untyped-def]
        self._source = source
        self._change = change

    def tensors(self) -> dict[str, TensorInfo]:
        return dict(self._source.tensors())

    def read(self, name: str, on_bytes: OnBytes = unwatched) -> torch.Tensor:
        return self._change(name, self._source.read(name, on_bytes))

    def close(self) -> None:
        self._source.close()


def through_strips(tensor: torch.Tensor, piece: Piece, *, bits: int) -> torch.Tensor:
    """`tensor` as it is once it has been a strip."""
    rows = tensor.transpose(-1, -2).contiguous() if piece.transpose else tensor
    strip = quantise(rows.view(-1, rows.shape[-1]), bits=bits, scale_dtype="float32")  # type: ignore[arg-type]
    values = dequantise(strip).view(rows.shape)
    return values.transpose(-1, -2).contiguous() if piece.transpose else values


def greedy(backend: CpuBackend, ids: Sequence[int], count: int) -> list[int]:
    cache = backend.new_cache()
    found = [int(backend.forward(ids, cache).argmax())]
    while len(found) < count:
        found.append(int(backend.forward(found[-1:], cache).argmax()))
    return found


def nll(backend: CpuBackend, ids: Sequence[int]) -> float:
    found = logits(backend, ids)[:-1].double().log_softmax(-1)
    return -float(found.gather(1, torch.tensor(ids[1:])[:, None]).mean())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_strips_is_the_model_of_what_they_stand_for(
    name: str, bits: int, some_ids: SomeIds, given_tensors, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    """The reference has every matrix replaced by its dequantised strip, and is run natively."""
    ids = some_ids(70)
    folder = open_model(TINY_MODELS / name)
    parameters = folder.parameters
    if folder.spec.tied_embeddings:
        embed = parameters[0]
        parameters = (*parameters, Parameter("head", embed.shape, (Piece("head", embed.shape),)))
    tensors = {info: folder.tensors.read(info) for info in folder.tensors.tensors()}
    tensors.setdefault("head", tensors["embed_tokens.weight"])
    for parameter in parameters:
        if parameter.name.split(".", 2)[-1] in STRIP_PARAMETERS:
            for piece in parameter.pieces:
                tensors[piece.source] = through_strips(tensors[piece.source], piece, bits=bits)
    spec = replace(folder.spec, tied_embeddings=False)
    reference = CpuBackend.load(spec, parameters, given_tensors(tensors))
    # Scales of float32 don't depend on what else is in the matrix, so pieces can be packed one by one.
    monkeypatch.setattr(calibrated_strip, "quantise", partial(quantise, scale_dtype="float32"))
    backend = load(folder, bits)
    folder.tensors.close()
    torch.testing.assert_close(logits(backend, ids), logits(reference, ids), rtol=0, atol=1e-4)
    assert greedy(backend, ids, 12) == greedy(reference, ids, 12)


@pytest.mark.parametrize("name", MODELS)
def test_8_bits_hardly_change_a_model_and_4_bits_a_little(
    name: str, load_backend: Callable[[str], CpuBackend], some_ids: SomeIds
) -> None:
    ids = some_ids(200)
    native = nll(load_backend(name), ids)
    with_8 = nll(load(open_model(TINY_MODELS / name), 8), ids)
    with_4 = nll(load(open_model(TINY_MODELS / name), 4, some_ids(100)), ids)
    assert abs(with_8 / native - 1) < 0.001
    assert abs(with_4 / native - 1) < 0.03
    assert with_4 != native


@pytest.mark.parametrize("name", MODELS)
def test_loading_twice_gives_the_same_bits(name: str, some_ids: SomeIds) -> None:
    once, twice = (load(open_model(TINY_MODELS / name), 4, some_ids(700)) for _ in range(2))
    assert torch.equal(logits(once, some_ids(9)), logits(twice, some_ids(9)))


def test_calibration_lowers_the_error_of_the_outputs(some_ids: SomeIds) -> None:
    """Weighted by what the layers' inputs are like, the last hidden states come closer to native ones."""
    name, ids = "tiny-qwen3", some_ids(200)
    folder = open_model(TINY_MODELS / name)
    loud = torch.ones(folder.spec.hidden_size)
    loud[::7] = 30.0  # some inputs are much larger than others, as in every real model

    def change(source: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor * loud if "norm" in source and len(tensor) == len(loud) else tensor

    source = ChangedTensors(folder.tensors, change)
    native = logits(CpuBackend.load(folder.spec, folder.parameters, source), ids)
    errors = [
        float((logits(load(folder, 4, seen, source=source), ids) - native).square().mean())
        for seen in (some_ids(300), [])
    ]
    folder.tensors.close()
    assert errors[0] < 0.9 * errors[1]


def test_counts_and_sizes_of_a_model_with_experts() -> None:
    folder = open_model(TINY_MODELS / "tiny-qwen3moe-mix")
    backend = load(folder, 8)
    matrices = sum(
        math.prod(parameter.shape[:-2]) if len(parameter.shape) == 3 else 1
        for parameter in folder.parameters
        if parameter.name.split(".", 2)[-1] in STRIP_PARAMETERS
    )
    assert backend.counts == MatrixCounts(q8=matrices)
    assert backend.notices == ()


GGUF_KINDS = ["F32", "F16", "Q8_0", "Q5_0", "Q4_1", "Q4_0"]
GGUF_MODELS = ["tiny-qwen2", "tiny-llama-rope3"]  # embeddings tied, and not


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", GGUF_KINDS)
@pytest.mark.parametrize("name", GGUF_MODELS)
def test_size_in_memory_is_the_one_that_the_card_tells(
    name: str, kind: str, bits: int, tmp_path: Path
) -> None:
    """With embeddings as they are stored, in the file's blocks, and shared with the head."""
    folder = open_model(write_gguf(name, tmp_path / "model.gguf", kind=kind))
    backend = load(folder, bits)
    sizes = weight_bytes(folder.spec, folder.parameters, folder.tensors.tensors())
    folder.tensors.close()
    assert backend.weight_bytes == (sizes.q8 if bits == 8 else sizes.q4)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", GGUF_KINDS)
@pytest.mark.parametrize("name", GGUF_MODELS)
def test_rows_of_the_embedding_are_those_of_the_file_to_the_bit(
    name: str, kind: str, bits: int, tmp_path: Path
) -> None:
    """Whatever becomes of the head, and also after the file was closed."""
    folder = open_model(write_gguf(name, tmp_path / "model.gguf", kind=kind))
    stored = folder.tensors.read("embed_tokens.weight").float()
    backend = load(folder, bits)
    folder.tensors.close()
    ids = torch.tensor([5, 0, 511, 5, 17])
    rows = backend.weights.embedding.rows(ids)
    assert torch.equal(rows.view(torch.int32), stored[ids].view(torch.int32))


@pytest.mark.parametrize("bits", [4, 8])
def test_groups_of_256_are_taken_where_rows_divide_and_the_others_are_told(bits: int, given_tensors) -> None:  # type: ignore[no-untyped-def]
    """The reference has every matrix replaced by what its strip stands for."""
    spec = one_layer_spec(vocab_size=50, hidden_size=256, tied=True)  # output: 64 inputs, down: 96
    parameters = decoder_parameters(spec)
    tensors = random_tensors(parameters)
    backend = CpuBackend.load(
        spec, parameters, given_tensors(tensors), weights="q8" if bits == 8 else "q4", group=256
    )
    assert [notice.code for notice in backend.notices] == ["matrices-in-small-groups"]
    assert backend.notices[0].message.startswith("2 of 5 ")
    sizes = weight_bytes(spec, parameters, given_tensors(tensors).tensors(), group=256)
    assert backend.weight_bytes == (sizes.q8 if bits == 8 else sizes.q4)

    head = Parameter("head", (50, 256), (Piece("head", (50, 256)),))
    packed = dict(tensors, head=tensors["embed_tokens.weight"])
    for parameter in (*parameters, head):
        if parameter.name.split(".", 2)[-1] in STRIP_PARAMETERS:
            pieces = [piece.source for piece in parameter.pieces]
            group = 256 if parameter.shape[1] == 256 else 32
            strip = quantise(torch.cat([packed[name] for name in pieces]), bits=bits, group=group)  # type: ignore[arg-type]
            rows = [len(packed[name]) for name in pieces]
            packed |= zip(pieces, torch.split(dequantise(strip), rows), strict=True)
    reference = CpuBackend.load(
        replace(spec, tied_embeddings=False), (*parameters, head), given_tensors(packed)
    )
    for ids in ([1, 2, 3], [7]):
        torch.testing.assert_close(logits(backend, ids), logits(reference, ids), rtol=0, atol=1e-4)


def test_groups_of_256_are_kept_beside_those_of_32_and_told_again(tmp_path: Path, given_tensors) -> None:  # type: ignore[no-untyped-def]
    spec = one_layer_spec(vocab_size=50, hidden_size=256)
    parameters = decoder_parameters(spec)
    source = given_tensors(random_tensors(parameters))

    def load_wide() -> CpuBackend:
        key = StripKey(model="model", bits=8, group=256, quantiser_version=1)
        shelf = StripShelf(StripCache(tmp_path, 10**9), key, lambda: "model")
        backend = CpuBackend.load(spec, parameters, source, weights="q8", group=256, shelf=shelf)
        shelf.wait()
        return backend

    made, kept = load_wide(), load_wide()
    assert made.notices == kept.notices
    assert [notice.code for notice in kept.notices] == ["matrices-in-small-groups"]
    assert torch.equal(logits(made, [1, 2, 3]), logits(kept, [1, 2, 3]))


def test_an_embedding_shared_with_the_head_survives_a_code_that_strips_lack(tmp_path: Path) -> None:
    """-128 of Q8_0: the head is quantised anew, and its rows are no longer those of the file."""
    path = write_gguf("tiny-qwen2", tmp_path / "model.gguf", kind="Q8_0")
    folder = open_model(path)
    info = folder.tensors.tensors()["embed_tokens.weight"]
    start = folder.tensors._tensors["embed_tokens.weight"].start  # type: ignore[attr-defined]
    folder.tensors.close()
    with path.open("r+b") as file:
        file.seek(start + 34 * 9 + 2)
        file.write(b"\x80")
    folder = open_model(path)
    stored = folder.tensors.read("embed_tokens.weight")
    backend = load(folder, 8)
    every = torch.arange(info.shape[0])
    assert torch.equal(backend.weights.embedding.rows(every), stored)
    again = CpuBackend.load(
        folder.spec, folder.parameters, folder.tensors, weights="q8", shelf=shelf_in(tmp_path / "kept")
    )
    kept = CpuBackend.load(
        folder.spec, folder.parameters, folder.tensors, weights="q8", shelf=shelf_in(tmp_path / "kept")
    )
    folder.tensors.close()
    for each in (again, kept):
        assert torch.equal(each.weights.embedding.rows(every), stored)
        assert torch.equal(logits(each, [1, 2, 3]), logits(backend, [1, 2, 3]))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "name",
    ["embed_tokens.weight", "layers.1.mlp.gate.weight", "layers.0.input_layernorm.weight", "norm.weight"],
)
@pytest.mark.parametrize("weights", ["native", "q8", "q4"])
def test_what_stays_as_it_is_is_refused_by_name_too(name: str, bad: float, weights: WeightFormat) -> None:
    folder = open_model(TINY_MODELS / "tiny-qwen3moe-mix")

    def change(source: str, tensor: torch.Tensor) -> torch.Tensor:
        if source == name:
            tensor.view(-1)[-1] = bad
        return tensor

    source = ChangedTensors(folder.tensors, change)
    with pytest.raises(ModelFileError, match=f"{name}.*not finite"):
        CpuBackend.load(folder.spec, folder.parameters, source, weights=weights)
    folder.tensors.close()


@pytest.mark.parametrize("kind", ["Q5_0", "Q8_0"])
@pytest.mark.parametrize("name", ["tiny-qwen2", "tiny-qwen3"])
def test_a_scale_of_an_embedding_in_blocks_that_is_no_number_is_refused_by_name(
    name: str, kind: str, tmp_path: Path
) -> None:
    path = write_gguf(name, tmp_path / "model.gguf", kind=kind)
    folder = open_model(path)
    info = folder.tensors._tensors["embed_tokens.weight"]  # type: ignore[union-attr]
    folder.tensors.close()
    with path.open("r+b") as file:
        file.seek(info.start + info.num_bytes * 400 // info.shape[0])  # where row 400 begins
        file.write(b"\x00\x7e")
    folder = open_model(path)
    with pytest.raises(ModelFileError, match=r"token_embd\.weight.*not (all )?finite"):
        load(folder, 8)
    folder.tensors.close()


def test_one_number_among_experts_that_is_none_is_found_in_native_weights() -> None:
    folder = open_model(TINY_MODELS / "tiny-qwen3moe-mix")
    name = next(
        piece.source for each in folder.parameters for piece in each.pieces if "experts" in piece.source
    )

    def change(source: str, tensor: torch.Tensor) -> torch.Tensor:
        if source == name:
            tensor.view(-1)[-1] = math.nan
        return tensor

    with pytest.raises(ModelFileError, match=f"{name}.*not finite"):
        CpuBackend.load(folder.spec, folder.parameters, ChangedTensors(folder.tensors, change))
    folder.tensors.close()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["layers.2.self_attn.k_proj.weight", "layers.0.mlp.down_proj.weight"])
@pytest.mark.parametrize("ids", [[], [1, 2, 3]])
def test_weights_that_are_no_numbers_are_refused_by_name(name: str, bad: float, ids: list[int]) -> None:
    folder = open_model(TINY_MODELS / "tiny-qwen3")

    def change(source: str, tensor: torch.Tensor) -> torch.Tensor:
        if source == name:
            tensor[3, 5] = bad
        return tensor

    with pytest.raises(ModelFileError, match=f"{name}.*not finite"):
        load(folder, 4, ids, source=ChangedTensors(folder.tensors, change))
    folder.tensors.close()


@pytest.mark.parametrize("tied", [False, True])
def test_rows_that_do_not_divide_stay_as_they_are_and_are_counted(tied: bool, given_tensors) -> None:  # type: ignore[no-untyped-def]
    attention = AttentionSpec(2, 1, 20, scale=0.2, rope=RopeSpec(1e4, 20))  # output: 40 inputs
    spec = ModelSpec("X", "Llama", 64, 30, 128, 1e-5, (LayerSpec(attention, DenseSpec(100)),) * 2, tied)
    parameters = decoder_parameters(spec)
    source = given_tensors(random_tensors(parameters))
    loaded = load_strips(
        spec, parameters, source, bits=8, calibration_ids=(), on_progress=no_progress, cancel=None
    )
    assert loaded.counts == MatrixCounts(native=4, q8=5)
    assert [notice.code for notice in loaded.notices] == ["matrices-not-packed"]
    native = CpuBackend.load(spec, parameters, source)
    packed = CpuBackend(spec, loaded.weights)
    torch.testing.assert_close(logits(packed, [1, 2, 3]), logits(native, [1, 2, 3]), rtol=0, atol=0.1)


@pytest.mark.parametrize(("kind", "bits"), [("Q8_0", 8), ("Q4_0", 4), ("Q4_0", 8)])
@pytest.mark.parametrize("name", ["tiny-qwen2", "tiny-llama-rope3"])
def test_blocks_of_a_gguf_file_are_taken_as_they_are(
    name: str, kind: str, bits: int, tmp_path: Path, some_ids: SomeIds
) -> None:
    """So the model computes what its native form computes, which dequantises the same blocks."""
    path = write_gguf(name, tmp_path / "model.gguf", kind=kind)
    folder = open_model(path)
    native = CpuBackend.load(folder.spec, folder.parameters, folder.tensors)
    backend = load(folder, bits, some_ids(50))
    folder.tensors.close()
    assert backend.counts is not None
    assert backend.counts.native == 0
    assert (backend.counts.q8 == 0) == (kind == "Q4_0")
    torch.testing.assert_close(logits(backend, some_ids(40)), logits(native, some_ids(40)), rtol=0, atol=1e-4)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("experts", [0, 3])
@pytest.mark.parametrize(("head_dim", "inner"), [(6, 96), (8, 98), (10, 98)])
def test_members_with_odd_numbers_of_rows_are_strips_of_their_own(
    head_dim: int, inner: int, experts: int, bits: int, tmp_path: Path, given_tensors
) -> None:  # type: ignore[no-untyped-def]
    """The reference has all fused. Also kept and read again, and with biases."""
    attention = AttentionSpec(3, 1, head_dim, scale=0.3, rope=RopeSpec(1e4, head_dim), qkv_bias=True)
    moe = MoeSpec(experts, 2, inner, normalise_top_k=True)
    layer = LayerSpec(attention, moe if experts else DenseSpec(inner, bias=True))
    spec = ModelSpec("X", "Llama", 64, 50, 128, 1e-5, (layer,) * 2, False)
    parameters = decoder_parameters(spec, ExpertLayout({}, fused=False, in_out=False).parameters)
    source = given_tensors(random_tensors(parameters))
    weights: WeightFormat = "q8" if bits == 8 else "q4"
    backends = []
    for _ in range(2):
        shelf = shelf_in(tmp_path / "kept")
        backends.append(CpuBackend.load(spec, parameters, source, weights=weights, shelf=shelf))
        shelf.wait()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "ROWS_AT_ONCE", 1)
        fused = CpuBackend.load(spec, parameters, source, weights=weights)
    for backend in backends:
        more = 2 * (2 * (head_dim % 4 != 0) + max(1, experts) * (inner % 4 != 0))
        assert num_strips(backend) == num_strips(fused) + more
        assert backend.weight_bytes == fused.weight_bytes
        for ids in ([1, 2, 3], [7]):
            torch.testing.assert_close(logits(backend, ids), logits(fused, ids), rtol=0, atol=1e-4)


def num_strips(backend: CpuBackend) -> int:
    assert backend.counts is not None
    return backend.counts.q8 + backend.counts.q4


def test_larger_models_are_calibrated_with_less_work() -> None:
    small, medium, large = map(effort_for, (135_000_000, 1_500_000_000, 30_000_000_000))
    assert small.num_tokens > medium.num_tokens > large.num_tokens >= 512
    assert small.sweeps > medium.sweeps == large.sweeps == 1
    assert small.widest_block > medium.widest_block == large.widest_block >= 256
    assert effort_for(0).num_tokens == effort_for(1000).num_tokens  # text is short enough for any small model
