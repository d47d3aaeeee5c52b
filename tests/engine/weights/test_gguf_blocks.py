"""Rows looked up in a file's own blocks are the rows of the dequantised matrix."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf_files import write_gguf
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.weights.calibrated_strip import calibrated_strip
from engine.weights.gguf_blocks import BlockMatrix
from engine.weights.gguf_package import PLAIN_DTYPES, readable_dtypes
from engine.weights.gguf_source import GgufSource
from engine.weights.input_statistics import InputObserver
from engine.weights.strips import Bits

KINDS = sorted(readable_dtypes() - PLAIN_DTYPES)


def bits_of(values: torch.Tensor) -> torch.Tensor:
    """So that -0 and 0 differ."""
    return values.view(torch.int32)


def test_every_type_that_is_read_is_here() -> None:
    assert {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "IQ4_XS", "TQ1_0"} <= set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
@given(
    rows=st.integers(1, 40),
    blocks=st.integers(1, 5),
    picks=st.lists(st.integers(0, 10**6), max_size=70),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None, max_examples=30)
def test_rows_are_those_of_the_whole_matrix_to_the_bit(
    kind: str, rows: int, blocks: int, picks: list[int], seed: int
) -> None:
    """In any order, repeated, many, one or none."""
    quant_type = gguf.GGMLQuantizationType[kind]
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[quant_type]
    # Bytes below 60 are finite float16 scales wherever they come to lie.
    raw = np.random.default_rng(seed).integers(0, 60, (rows, blocks * block_bytes), dtype=np.uint8)
    whole = torch.from_numpy(gguf.quants.dequantize(raw, quant_type).copy())
    matrix = BlockMatrix(torch.from_numpy(raw), kind, blocks * block_size)
    ids = torch.tensor([pick % rows for pick in picks], dtype=torch.int64)
    found = matrix.rows(ids)
    assert found.shape == (len(picks), blocks * block_size)
    assert torch.equal(bits_of(found), bits_of(whole[ids]))
    assert matrix.num_bytes == raw.nbytes
    assert matrix.shape == whole.shape
    first, last = sorted(pick % (rows + 1) for pick in (*picks, 0, rows)[:2])
    assert torch.equal(bits_of(matrix[first:last]), bits_of(whole[first:last]))


@pytest.mark.parametrize("bits", [4, 8])
def test_strips_are_the_same_from_blocks_as_from_all_numbers_at_once(bits: Bits, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("engine.weights.quantise.CHUNK_ELEMENTS", 1000)
    monkeypatch.setattr("engine.weights.code_descent._ROWS", 50)
    kind = gguf.GGMLQuantizationType.Q5_0
    raw = gguf.quants.quantize(np.random.default_rng(4).normal(size=(131, 96)).astype(np.float32), kind)
    matrix = BlockMatrix(torch.from_numpy(raw), "Q5_0", 96)
    observer = InputObserver(96, widest_block=256)
    observer.add(torch.randn(300, 96, generator=torch.Generator().manual_seed(2)))
    done: list[float] = []
    found, expected = (
        calibrated_strip(weight, observer_statistics, bits=bits, group=32, sweeps=2, on_rows=done.append)
        for observer_statistics in [observer.statistics()]
        for weight in (matrix, matrix[:])
    )
    assert torch.equal(found.codes, expected.codes)
    assert torch.equal(bits_of(found.scales), bits_of(expected.scales))
    assert sum(done) == pytest.approx(2 * 131)


@pytest.mark.parametrize("kind", ["Q4_1", "Q5_0", "Q8_0"])
def test_blocks_of_a_file_are_what_it_reads_dequantised(kind: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Also those of q and k of a llama file, whose rows lie in another order."""
    source = GgufSource(write_gguf("tiny-llama-rope3", tmp_path / "m.gguf", kind=kind))
    found = 0
    for name, info in source.tensors().items():
        if info.blocks:
            told: list[int] = []
            blocks = source.read_blocks(name, told.append)
            every = torch.arange(info.shape[0])
            assert torch.equal(bits_of(blocks.rows(every)), bits_of(source.read(name)))
            assert blocks.num_bytes == sum(told) == info.num_bytes
            found += 1
    assert found > 20
    source.close()


@pytest.mark.parametrize("wrong", [-1, 4])
def test_a_row_that_is_not_there_is_a_mistake(wrong: int) -> None:
    matrix = BlockMatrix(torch.zeros(4, 34, dtype=torch.uint8), "Q8_0", 32)
    with pytest.raises((IndexError, RuntimeError)):
        matrix.rows(torch.tensor([wrong]))
