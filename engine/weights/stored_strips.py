"""From the strips that a file has, one for each of its tensors, to those of the matrices they make up."""

from __future__ import annotations

from collections.abc import Sequence

from engine.models.spec import Parameter, Piece
from engine.weights.strips import Strip, codes_of, concatenate, take_rows


def matrices_of(parameter: Parameter, pieces: Sequence[Strip]) -> list[Strip]:
    """One strip for each matrix of the parameter, from those of its pieces (see `Parameter`). Where some have
    8 bits and some 4, all get 8.
    """
    strips = pieces
    if len({strip.bits for strip in strips}) > 1:
        strips = [_with_8_bits(strip) for strip in strips]
    if len(parameter.shape) == 2:
        return [strips[0] if len(strips) == 1 else concatenate(strips)]
    num_experts = parameter.shape[0]
    stacked = len(parameter.pieces[0].shape) == 3
    if not stacked:
        per_expert = len(strips) // num_experts
        return [
            concatenate(strips[first : first + per_expert]) for first in range(0, len(strips), per_expert)
        ]
    return [
        concatenate(
            [
                _expert_rows(piece, strip, expert)
                for piece, strip in zip(parameter.pieces, strips, strict=True)
            ]
        )
        for expert in range(num_experts)
    ]


def members_of(matrices: Sequence[Strip], rows: Sequence[int]) -> list[Strip]:
    """Each matrix cut into strips of so many rows, which share its memory."""
    if len(rows) == 1:
        return list(matrices)
    found = []
    for matrix in matrices:
        first = 0
        for count in rows:
            found.append(take_rows(matrix, first, first + count))
            first += count
    return found


def _with_8_bits(strip: Strip) -> Strip:
    return Strip(8, strip.group, codes_of(strip), strip.scales, strip.offsets)


def _expert_rows(piece: Piece, strip: Strip, expert: int) -> Strip:
    rows = piece.shape[1]
    return take_rows(strip, expert * rows, (expert + 1) * rows)
