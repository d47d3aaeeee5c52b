"""Quantised blocks of GGUF files become strips without the loss of a bit."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ModelFileError
from engine.weights.gguf_strips import STRIP_FORMS, strip_from_blocks
from engine.weights.strips import dequantise, scales_fit

KINDS = sorted(STRIP_FORMS)


def reference(raw: npt.NDArray[np.uint8], kind: str, rows: int) -> npt.NDArray[np.float32]:
    """What the gguf package makes of the blocks."""
    return gguf.quants.dequantize(raw.reshape(rows, -1), gguf.GGMLQuantizationType[kind])


def bits_of(values: torch.Tensor) -> torch.Tensor:
    """So that -0 and 0 differ."""
    return values.view(torch.int32)


def random_blocks(kind: str, rows: int, blocks: int, seed: int) -> npt.NDArray[np.uint8]:
    """Any bytes that are finite scales and codes that a strip has. Flat."""
    rng = np.random.default_rng(seed)
    block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    raw = rng.integers(0, 256, (rows * blocks, block_bytes), dtype=np.uint8)
    scales = raw[:, :2].copy().view(np.float16)
    scales[~np.isfinite(scales)] = -0.0
    raw[:, :2] = scales.view(np.uint8)
    if kind == "Q8_0":
        raw[:, 2:][raw[:, 2:] == 0x80] = 0x81
    return raw.reshape(-1)


@pytest.mark.parametrize("kind", KINDS)
@given(rows=st.integers(1, 5), blocks=st.integers(1, 7), seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=60)
def test_every_value_is_that_of_the_gguf_package_to_the_bit(
    kind: str, rows: int, blocks: int, seed: int
) -> None:
    """With negative, zero and denormal scales."""
    raw = random_blocks(kind, rows, blocks, seed)
    stored = torch.from_numpy(raw.copy())
    strip = strip_from_blocks(stored, kind, rows=rows, columns=32 * blocks)
    assert strip is not None
    assert (strip.rows, strip.columns, strip.group) == (rows, 32 * blocks, 32)
    expected = torch.from_numpy(reference(raw, kind, rows).copy())
    assert torch.equal(bits_of(dequantise(strip)), bits_of(expected))
    assert torch.equal(stored, torch.from_numpy(raw))


@pytest.mark.parametrize("columns", [192, 288, 2880])
@pytest.mark.parametrize("kind", KINDS)
def test_what_the_package_writes_is_read_to_the_bit(kind: str, columns: int) -> None:
    weight = np.random.default_rng(columns).standard_normal((7, columns)).astype(np.float32)
    weight[3, 32:64] = 0
    raw = gguf.quants.quantize(weight, gguf.GGMLQuantizationType[kind])
    strip = strip_from_blocks(torch.from_numpy(raw.reshape(-1)), kind, rows=7, columns=columns)
    assert strip is not None
    assert scales_fit(strip, torch.float16)
    expected = torch.from_numpy(reference(raw, kind, 7).copy())
    assert torch.equal(bits_of(dequantise(strip)), bits_of(expected))


@pytest.mark.parametrize("wrong", [0x7C00, 0xFC00, 0x7E01])  # infinities, NaN
@pytest.mark.parametrize("kind", KINDS)
def test_scales_that_are_no_numbers_are_refused(kind: str, wrong: int) -> None:
    raw = random_blocks(kind, 2, 3, seed=1)
    raw.reshape(6, -1)[4, :2] = np.array([wrong], dtype="<u2").view(np.uint8)
    with pytest.raises(ModelFileError, match="not all finite"):
        strip_from_blocks(torch.from_numpy(raw), kind, rows=2, columns=96)


def test_a_code_that_strips_do_not_have_is_left_to_the_caller() -> None:
    raw = random_blocks("Q8_0", 2, 3, seed=1)
    raw.reshape(6, -1)[5, 33] = 0x80
    assert strip_from_blocks(torch.from_numpy(raw), "Q8_0", rows=2, columns=96) is None
    assert strip_from_blocks(torch.from_numpy(raw[: 34 * 3]), "Q8_0", rows=1, columns=96) is not None
