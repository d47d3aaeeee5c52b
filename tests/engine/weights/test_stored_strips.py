"""Strips of a file's tensors become those of the matrices that the model has."""

from __future__ import annotations

import pytest
import torch

from engine.models.spec import Parameter, Piece
from engine.weights.quantise import quantise
from engine.weights.stored_strips import matrices_of, members_of
from engine.weights.strips import Strip, dequantise


def same(a: Strip, b: Strip) -> bool:
    return torch.equal(a.codes, b.codes) and torch.equal(a.scales, b.scales)


@pytest.mark.parametrize("stacked", [False, True])
def test_experts_that_are_stored_as_strips_are_taken_apart(stacked: bool) -> None:
    gate, up = torch.randn(3, 2, 64), torch.randn(3, 2, 64)
    if stacked:
        pieces = (Piece("gate", (3, 2, 64)), Piece("up", (3, 2, 64)))
        stored = [quantise(each.view(6, 64), bits=4) for each in (gate, up)]
    else:
        pieces = tuple(Piece(f"{part}{i}", (2, 64)) for i in range(3) for part in ("gate", "up"))
        stored = [quantise(part[i], bits=4) for i in range(3) for part in (gate, up)]
    strips = matrices_of(Parameter("layers.0.experts.gate_up", (3, 4, 64), pieces), stored)
    assert len(strips) == 3
    for expert, strip in enumerate(strips):
        expected = quantise(torch.cat((gate[expert], up[expert])), bits=4)
        assert same(strip, expected)


def test_where_bits_differ_all_get_8_and_stand_for_the_same() -> None:
    parts = [torch.randn(rows, 64) for rows in (6, 2, 2)]
    pieces = tuple(Piece(name, tuple(part.shape)) for name, part in zip("qkv", parts, strict=True))
    stored = [quantise(part, bits=bits) for part, bits in zip(parts, (4, 4, 8), strict=True)]  # type: ignore[arg-type]
    [joined] = matrices_of(Parameter("layers.0.qkv", (10, 64), pieces), stored)
    assert joined.bits == 8
    assert torch.equal(dequantise(joined), torch.cat([dequantise(strip) for strip in stored]))


def test_members_are_the_rows_in_order() -> None:
    matrices = [quantise(torch.randn(11, 32), bits=4) for _ in range(3)]
    found = members_of(matrices, (6, 3, 2))
    assert [strip.rows for strip in found] == [6, 3, 2] * 3
    for index, matrix in enumerate(matrices):
        members = found[3 * index : 3 * index + 3]
        assert torch.equal(torch.cat([dequantise(strip) for strip in members]), dequantise(matrix))
    assert members_of(matrices, (11,)) == matrices
