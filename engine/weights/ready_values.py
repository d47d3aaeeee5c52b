"""Matrices that were quantised by others, as float32: for those that no strip holds as they are stored, and
for parts of a model that are no strips.

The tensors are those that the functions of `ready_quantised.py` take. Raises ModelFileError for what
contradicts itself; the caller names the matrix.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.errors import ModelFileError
from engine.weights.ready_codes import (
    AGAIN,
    check_finite,
    check_words,
    contradiction,
    described,
    gptq_zeros,
    in_awq_order,
    num_groups,
    numbers,
    packed_scales_and_zeros,
    row_scales,
    signed_zeros,
    turned,
    unpacked,
)
from engine.weights.ready_quantised import check_int8
from engine.weights.strips import Bits
from engine.wording import phrase

if TYPE_CHECKING:
    import torch


def gptq_values(
    qweight: torch.Tensor,
    qzeros: torch.Tensor,
    scales: torch.Tensor,
    g_idx: torch.Tensor | None = None,
    *,
    bits: Bits = 4,
    zeros_less_one: bool = True,
) -> torch.Tensor:
    """float32 (N, K). With g_idx, input k belongs to group g_idx[k], in whatever order."""
    check_words("qweight", qweight)
    rows = qweight.shape[1]
    scales = turned(scales)
    num_groups(scales, rows)
    zeros = gptq_zeros(qzeros, bits, less_one=zeros_less_one)
    return _values(unpacked(qweight.t(), bits), scales, zeros, g_idx, bits=bits)


def awq_values(qweight: torch.Tensor, qzeros: torch.Tensor | None, scales: torch.Tensor) -> torch.Tensor:
    """float32 (N, K)."""
    check_words("qweight", qweight)
    scales = turned(scales)
    num_groups(scales, qweight.shape[1] * 8)
    zeros = None
    if qzeros is not None:
        check_words("qzeros", qzeros)
        zeros = in_awq_order(unpacked(qzeros, 4)).t()
    return _values(in_awq_order(unpacked(qweight, 4)).t(), scales, zeros, bits=4)


def packed_values(
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    g_idx: torch.Tensor | None = None,
    *,
    bits: Bits,
    columns: int,
) -> torch.Tensor:
    """float32 (N, K)."""
    scales, zeros = packed_scales_and_zeros(packed, scales, zeros, bits=bits, columns=columns)
    order = g_idx if g_idx is not None and bool((g_idx >= 0).all()) else None
    return _values(unpacked(packed, bits)[:, :columns], scales, zeros, order, bits=bits)


def int8_values(
    weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None = None
) -> torch.Tensor:
    """float32 (N, K)."""
    import torch

    check_int8(weight)
    scales = row_scales(scales, rows=weight.shape[0], columns=weight.shape[1])
    unsigned = None if zeros is None else signed_zeros(zeros, scales, middle=128)
    return _values(weight.contiguous().view(torch.uint8) ^ 128, scales, unsigned, bits=8)


def fp8_values(
    weight: torch.Tensor, scale: torch.Tensor, *, block: tuple[int, int] | None = None
) -> torch.Tensor:
    """float32 (N, K): 8-bit floats times their scale.

    scale: one number, (N,) or (N, 1); with `block` (rows, columns) one for each block, (N / rows, K /
    columns) rounded up. Files call it weight_scale or weight_scale_inv; both are multiplied with.
    """
    if weight.ndim != 2 or not weight.is_floating_point() or weight.element_size() != 1:
        raise ModelFileError(f"It should be a matrix of 8-bit floats, not {described(weight)}.", AGAIN)
    check_finite(scale)
    values = weight.float()
    num_rows, num_columns = values.shape
    factors = scale.float()
    if block is None:
        if factors.numel() not in (1, num_rows):
            raise contradiction(phrase("scales"), scale, f"one number or {num_rows:,}")
        return values.mul_(factors.view(-1, 1))
    expected = (math.ceil(num_rows / block[0]), math.ceil(num_columns / block[1]))
    if factors.shape != expected:
        raise contradiction(phrase("scales"), scale, str(expected))
    height, width = block[0], min(block[1], num_columns)
    for i, row in enumerate(factors):
        values[i * height : (i + 1) * height] *= row.repeat_interleave(width)[:num_columns]
    return values


def _values(
    codes: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    group_of: torch.Tensor | None = None,
    *,
    bits: Bits,
) -> torch.Tensor:
    """codes (N, K), scales and zeros (N, groups); zeros None where all are the middle one. group_of (K,): the
    group of each input; None where they follow each other.
    """
    check_finite(scales)
    columns, groups = codes.shape[1], scales.shape[1]
    steps = scales.float()
    middle = numbers("zero points", zeros, scales) if zeros is not None else None
    values = codes.float()
    if group_of is not None:
        order = group_of.long()
        if order.shape != (columns,) or not bool(((order >= 0) & (order < groups)).all()):
            raise contradiction("g_idx", group_of, f"{columns:,} numbers of {groups:,} groups")
        values.sub_(1 << (bits - 1) if middle is None else middle[:, order])
        return values.mul_(steps[:, order])
    if columns % groups:
        raise ModelFileError(f"Its {groups:,} scales don't divide {columns:,} inputs.", AGAIN)
    grouped = values.contiguous().view(len(values), groups, -1)
    grouped.sub_(1 << (bits - 1) if middle is None else middle.unsqueeze(2))
    return grouped.mul_(steps.unsqueeze(2)).view(codes.shape)
