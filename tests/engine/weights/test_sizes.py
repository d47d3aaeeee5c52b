"""Sizes by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.models.parameters import decoder_parameters
from engine.models.spec import AttentionSpec, DenseSpec, LayerSpec, ModelSpec, RopeSpec
from engine.weights.sizes import kv_bytes_per_token, kv_bytes_per_token_native, strip_bytes, weight_bytes
from engine.weights.source import StoredStrip, TensorInfo


def model(
    *, layers: int, heads: int, kv_heads: int, head_dim: int, hidden: int, inner: int, vocab: int
) -> ModelSpec:
    attention = AttentionSpec(heads, kv_heads, head_dim, scale=1.0, rope=RopeSpec(1e4, head_dim))
    return ModelSpec(
        "LlamaForCausalLM",
        "Llama",
        hidden,
        vocab,
        128,
        1e-5,
        (LayerSpec(attention, DenseSpec(inner)),) * layers,
        False,
    )


def test_cache_of_48_layers_and_8192_tokens() -> None:
    spec = model(layers=48, heads=32, kv_heads=4, head_dim=128, hidden=64, inner=64, vocab=8)
    assert spec.layers[0].attention.kv_dim == 512
    assert kv_bytes_per_token(spec) * 8192 == 415_236_096
    assert kv_bytes_per_token_native(spec) == 48 * 2 * 512 * 4


@pytest.mark.parametrize(
    ("num_inputs", "q8", "q4"),
    [
        (32, 32 + 4, 16 + 4),
        (96, 96 + 12, 48 + 12),
        (192, 192 + 24, 96 + 24),
        (288, 288 + 36, 144 + 36),
        (2880, 2880 + 360, 1440 + 360),
    ],
)
def test_strips_of_awkward_widths(num_inputs: int, q8: int, q4: int) -> None:
    assert strip_bytes(5, num_inputs, StoredStrip(8)) == 5 * q8
    assert strip_bytes(5, num_inputs, StoredStrip(4)) == 5 * q4


def test_embedding_and_norms_stay_native_and_the_head_is_a_strip() -> None:
    spec = model(layers=1, heads=2, kv_heads=1, head_dim=32, hidden=64, inner=96, vocab=10)
    parameters = decoder_parameters(spec)
    stored = {
        piece.source: TensorInfo(piece.shape, "BF16", 0, piece.source)
        for parameter in parameters
        for piece in parameter.pieces
    }
    embedding, norms = 10 * 64, 3 * 64
    kept = embedding * 2 + norms * 4  # vectors are widened
    matrices = [(128, 64), (64, 64), (192, 64), (64, 96), (10, 64)]  # qkv, output, gate_up, down, head
    sizes = weight_bytes(spec, parameters, stored)
    assert sizes.native == 2 * (embedding + norms + sum(n * k for n, k in matrices))
    assert sizes.q8 == kept + sum(n * (k + k // 32 * 4) for n, k in matrices)
    assert sizes.q4 == kept + sum(n * (k // 2 + k // 32 * 4) for n, k in matrices)
    tied = replace(spec, tied_embeddings=True)
    tied_sizes = weight_bytes(tied, decoder_parameters(tied), stored)
    assert tied_sizes.native == sizes.native - 2 * 10 * 64
    assert (tied_sizes.q8, tied_sizes.q4) == (sizes.q8, sizes.q4)


def test_matrices_that_do_not_divide_into_groups_stay_native() -> None:
    spec = model(layers=1, heads=2, kv_heads=1, head_dim=20, hidden=64, inner=100, vocab=10)
    sizes = weight_bytes(spec, decoder_parameters(spec), {})
    strips = [(80, 64), (200, 64), (10, 64)]  # qkv, gate_up, head
    kept = 10 * 64 + 3 * 64 + 64 * 40 + 64 * 100  # with output and down
    assert sizes.q8 == 4 * kept + sum(n * (k + k // 32 * 4) for n, k in strips)
    assert sizes.q4 == 4 * kept + sum(n * (k // 2 + k // 32 * 4) for n, k in strips)


def test_types_that_are_dequantized_count_as_float32() -> None:
    spec = model(layers=1, heads=2, kv_heads=1, head_dim=32, hidden=64, inner=96, vocab=10)
    parameters = decoder_parameters(spec)
    stored = {
        piece.source: TensorInfo(piece.shape, "Q4_1", 0, piece.source)
        for parameter in parameters
        for piece in parameter.pieces
    }
    assert weight_bytes(spec, parameters, stored).native == 4 * sum(each.num_elements for each in parameters)


def infos(spec: ModelSpec, dtype: str, **known: object) -> dict[str, TensorInfo]:
    return {
        piece.source: TensorInfo(piece.shape, dtype, 7 * piece.shape[0], piece.source, **known)  # type: ignore[arg-type]
        for parameter in decoder_parameters(spec)
        for piece in parameter.pieces
    }


@pytest.mark.parametrize("tied", [False, True])
def test_an_embedding_in_blocks_takes_what_the_file_takes(tied: bool) -> None:
    spec = replace(
        model(layers=1, heads=2, kv_heads=1, head_dim=32, hidden=64, inner=96, vocab=10), tied_embeddings=tied
    )
    plain = weight_bytes(spec, decoder_parameters(spec), infos(spec, "Q4_1"))
    blocks = weight_bytes(spec, decoder_parameters(spec), infos(spec, "Q4_1", blocks=True))
    saved = 10 * 64 * 4 - 7 * 10
    assert (blocks.native, blocks.q8, blocks.q4) == (plain.native, plain.q8 - saved, plain.q4 - saved)


def test_a_tied_embedding_that_is_a_strip_is_held_once() -> None:
    spec = replace(
        model(layers=1, heads=2, kv_heads=1, head_dim=32, hidden=64, inner=96, vocab=10), tied_embeddings=True
    )
    norms = 4 * 3 * 64
    num_rows_by_width = ((128 + 64 + 192 + 10, 64), (64, 96))
    stored_8 = infos(spec, "Q8_0", blocks=True, strip=StoredStrip(8))
    sizes = weight_bytes(spec, decoder_parameters(spec), stored_8)
    assert sizes.q8 == norms + sum(n * (k + k // 32 * 4) for n, k in num_rows_by_width)
    assert sizes.q4 == norms + 7 * 10 + sum(n * (k // 2 + k // 32 * 4) for n, k in num_rows_by_width)
    stored_4 = infos(spec, "Q4_0", blocks=True, strip=StoredStrip(4))
    sizes = weight_bytes(spec, decoder_parameters(spec), stored_4)
    assert sizes.q8 == sizes.q4 == norms + sum(n * (k // 2 + k // 32 * 4) for n, k in num_rows_by_width)


def test_groups_of_256_take_an_eighth_of_the_scales_where_rows_divide() -> None:
    spec = model(layers=1, heads=2, kv_heads=1, head_dim=48, hidden=512, inner=320, vocab=10)
    wide = [(192, 512), (640, 512), (10, 512)]  # qkv, gate_up, head
    narrow = [(512, 96), (512, 320)]  # output, down
    sizes = weight_bytes(spec, decoder_parameters(spec), {}, group=256)
    kept = 4 * (10 * 512 + 3 * 512)
    scales = sum(n * k // 256 * 4 for n, k in wide) + sum(n * k // 32 * 4 for n, k in narrow)
    assert sizes.q8 == kept + scales + sum(n * k for n, k in wide + narrow)
    assert sizes.q4 == kept + scales + sum(n * k // 2 for n, k in wide + narrow)
