"""Rows of the embedding on the card: the very bits that the computer looks up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from emulated_card import EmulatedCard, EmulatedCompiler

from engine.cpu.matrices import Embedding, RowLookup, StripRows
from engine.cuda.driver import as_bytes
from engine.cuda.embedding import HostEmbedding, embedding_image
from engine.cuda.kernel_set import KernelSet
from engine.cuda.memory import CardMemory, Use
from engine.weights.gguf_blocks import BlockMatrix
from engine.weights.quantise import quantise
from engine.weights.strips import Strip

IDS = [5, 0, 36, 5, 17]
ROWS = 37


@pytest.fixture
def memory(card: EmulatedCard) -> Iterator[CardMemory]:
    memory = CardMemory(card)
    yield memory
    memory.free_all()


def random(columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(ROWS, columns, generator=torch.Generator().manual_seed(seed))


def rows_on_card(
    lookup: RowLookup, columns: int, memory: CardMemory, compiler: EmulatedCompiler
) -> torch.Tensor:
    image = embedding_image(lookup)
    assert image is not None
    embedding = image.upload(memory)
    assert memory.num_bytes[Use.WEIGHTS] == image.num_bytes == embedding.num_bytes
    tokens = memory.allocate(4 * len(IDS), Use.WORKSPACE)
    hidden = memory.allocate(4 * len(IDS) * columns, Use.WORKSPACE)
    memory.driver.upload(tokens, as_bytes(np.array(IDS, np.int32)))
    embedding.launch(KernelSet(memory.driver, compiler), tokens, hidden, rows=len(IDS))
    found = torch.empty(len(IDS), columns)
    memory.driver.download(as_bytes(found), hidden)
    return found


def assert_same_bits(lookup: RowLookup, columns: int, memory: CardMemory, compiler: EmulatedCompiler) -> None:
    found = rows_on_card(lookup, columns, memory, compiler)
    expected = lookup.rows(torch.tensor(IDS))
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("columns", [1, 255, 257, 520])
def test_numbers(
    dtype: torch.dtype, columns: int, memory: CardMemory, card_compiler: EmulatedCompiler
) -> None:
    assert_same_bits(Embedding(random(columns).to(dtype)), columns, memory, card_compiler)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 256])
@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("narrow", [False, True])
def test_strips(
    bits: Any,
    group: Any,
    offsets: bool,
    narrow: bool,
    memory: CardMemory,
    card_compiler: EmulatedCompiler,
) -> None:
    strip = quantise(random(512), bits=bits, group=group)
    added = random(512 // group, seed=1) if offsets else None
    if narrow:
        added = None if added is None else added.half().float()
        strip = Strip(bits, group, strip.codes, strip.scales.half().float(), added)
    else:
        strip = Strip(bits, group, strip.codes, strip.scales * 1.0001, added)
    assert_same_bits(StripRows(strip), 512, memory, card_compiler)


def blocks(dtype: str, columns: int = 256) -> BlockMatrix:
    kind = gguf.GGMLQuantizationType[dtype]
    raw = gguf.quants.quantize(random(columns).numpy(), kind)
    return BlockMatrix(torch.from_numpy(raw), dtype, columns)


@pytest.mark.parametrize("dtype", ["Q8_0", "Q4_0"])
def test_blocks_that_are_strips_in_all_but_layout(
    dtype: str, memory: CardMemory, card_compiler: EmulatedCompiler
) -> None:
    assert_same_bits(blocks(dtype), 256, memory, card_compiler)


def test_a_code_that_no_strip_holds_leaves_the_rows_to_the_computer() -> None:
    matrix = blocks("Q8_0")
    matrix.raw[3, 5] = 0x80
    assert embedding_image(matrix) is None


def test_blocks_of_another_type_are_looked_up_by_the_computer(memory: CardMemory) -> None:
    matrix = blocks("Q5_0")
    assert embedding_image(matrix) is None
    hidden = memory.allocate(4 * len(IDS) * 256, Use.WORKSPACE)
    HostEmbedding(matrix, memory).send(IDS, hidden)
    found = torch.empty(len(IDS), 256)
    memory.driver.download(as_bytes(found), hidden)
    assert torch.equal(found, matrix.rows(torch.tensor(IDS)))
