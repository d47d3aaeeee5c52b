"""Matrices that were quantised by others, as strips that stand for the same numbers.

Each function takes the tensors that a checkpoint stores for one matrix (N, K) and knows nothing of files.
All integer forms mean `(code - zero point) * scale` with unsigned codes; a strip's codes are the same ones
moved to be symmetric, and its offset is the rest of the zero point times the scale. With scales of 16 bits,
which is how they are stored, or without zero points, not a bit is lost. A scale for 64 or 128 inputs, or for
a whole row, stands in the strip once for every 32 of them.

All of them return None where no strip holds the matrix: groups that aren't multiples of 32 inputs, inputs in
an order of their own (act-order), 8 bits with both -128 and 127 in one group of 32. Such a matrix is
dequantised (`ready_values.py`) and quantised anew.

Raises ModelFileError for tensors that contradict each other; the caller names the matrix in front of the
sentence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import ModelFileError
from engine.weights.ready_codes import (
    AGAIN,
    awq_places,
    check_finite,
    check_words,
    described,
    gptq_zeros,
    in_awq_order,
    in_order,
    num_groups,
    numbers,
    packed_scales_and_zeros,
    row_scales,
    signed_zeros,
    turned,
    unpacked,
)
from engine.weights.strips import Bits, Group, Strip, fits

if TYPE_CHECKING:
    import torch

_GROUP: Group = 32
_SIGN_BITS = (
    0x88888888 - 2**32
)  # of all codes in a word: c and c - 8 as two's complement differ in nothing else
_TOP_BITS = 0x80808080 - 2**32  # of the bytes of a word
_LOW_HALVES = 0x0F0F0F0F  # of the bytes of a word


def gptq_strip(
    qweight: torch.Tensor,
    qzeros: torch.Tensor,
    scales: torch.Tensor,
    g_idx: torch.Tensor | None = None,
    *,
    bits: Bits = 4,
    zeros_less_one: bool = True,
) -> Strip | None:
    """GPTQ: qweight int32 (K * bits / 32, N), qzeros int32 (groups, N * bits / 32), scales (groups, N), g_idx
    (K,). zeros_less_one: see `gptq_zeros`.
    """
    check_words("qweight", qweight)
    rows, columns = qweight.shape[1], qweight.shape[0] * 32 // bits
    scales = turned(scales)
    size = _group_size(columns, num_groups(scales, rows))
    zeros = gptq_zeros(qzeros, bits, less_one=zeros_less_one)
    if size is None or (g_idx is not None and not in_order(g_idx, columns, size)):
        return None
    if bits == 4:
        return _int4_strip(_repacked_turned(qweight.contiguous()), scales, zeros)
    return _int8_strip(unpacked(qweight.t(), 8), scales, zeros)


def awq_strip(qweight: torch.Tensor, qzeros: torch.Tensor | None, scales: torch.Tensor) -> Strip | None:
    """AWQ, 4 bits, version "gemm": qweight int32 (K, N / 8), qzeros int32 (groups, N / 8) or None where all
    zero points are 8, scales (groups, N).
    """
    check_words("qweight", qweight)
    rows, columns = qweight.shape[1] * 8, qweight.shape[0]
    scales = turned(scales)
    if _group_size(columns, num_groups(scales, rows)) is None:
        return None
    codes = _awq_repacked(qweight)
    if qzeros is None:
        return _int4_strip(codes, scales, None)
    check_words("qzeros", qzeros)
    return _int4_strip(codes, scales, in_awq_order(unpacked(qzeros, 4)).t())


def packed_strip(
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    g_idx: torch.Tensor | None = None,
    *,
    bits: Bits,
    columns: int,
) -> Strip | None:
    """compressed-tensors, format "pack-quantized": packed int32 (N, K * bits / 32), scales (N, groups),
    (N, 1) or one number, zeros int32 (N * bits / 32, groups), int8 as scales, or None. `columns` is K
    (weight_shape).
    """
    scales, zeros = packed_scales_and_zeros(packed, scales, zeros, bits=bits, columns=columns)
    size = _group_size(columns, scales.shape[1])
    if size is None:
        return None
    # -1 throughout where the inputs keep their order
    if g_idx is not None and bool((g_idx >= 0).all()) and not in_order(g_idx, columns, size):
        return None
    if bits == 4:
        return _int4_strip(_repacked(packed), scales, zeros)
    return _int8_strip(unpacked(packed, 8), scales, zeros)


def int8_strip(weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None = None) -> Strip | None:
    """compressed-tensors, formats "int-quantized" and "naive-quantized": weight int8 (N, K), scales (N,
    groups), (N, 1), (N,) or one number, zeros int8 as scales or None.
    """
    import torch

    check_int8(weight)
    scales = row_scales(scales, rows=weight.shape[0], columns=weight.shape[1])
    if _group_size(weight.shape[1], scales.shape[1]) is None:
        return None
    unsigned = None if zeros is None else signed_zeros(zeros, scales, middle=128)
    codes = weight.contiguous().view(torch.int32) ^ _TOP_BITS
    return _int8_strip(codes.view(torch.uint8), scales, unsigned)


def check_int8(weight: torch.Tensor) -> None:
    import torch

    if weight.ndim != 2 or weight.dtype != torch.int8:
        raise ModelFileError(f"It should be a matrix of int8, not {described(weight)}.", AGAIN)


def _int4_strip(codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None) -> Strip:
    """codes: as a strip has them, but unsigned, and the caller's own. zeros uint8 (N, groups), None for 8."""
    import torch

    offsets = None if zeros is None else 8 - numbers("zero points", zeros, scales)
    wide, wide_offsets = _widened(scales, offsets, columns=2 * codes.shape[1])
    codes.view(torch.int32).bitwise_xor_(_SIGN_BITS)
    return Strip(4, _GROUP, codes, wide, wide_offsets)


def _int8_strip(codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None) -> Strip | None:
    """codes uint8 (N, K), the caller's own, scales (N, groups), zeros uint8 (N, groups) or None for 128.

    -128 is no code of a strip. Where it is used, the whole group moves up by one, and its offset down.
    """
    import torch

    codes.view(torch.int32).bitwise_xor_(_TOP_BITS)  # less 128
    signed = codes.view(torch.int8)
    offsets = None if zeros is None else 128 - numbers("zero points", zeros, scales)
    wide, wide_offsets = _widened(scales, offsets, columns=codes.shape[1])
    if int(signed.numpy().min()) == -128:  # torch's own takes forty times as long
        grouped = signed.view(len(codes), -1, _GROUP)
        low = (grouped == -128).any(2)
        if bool((low & (grouped == 127).any(2)).any()):
            return None
        grouped += low.unsqueeze(2)
        down = torch.where(low, -wide, 0.0)
        wide_offsets = down if wide_offsets is None else wide_offsets + down
    return Strip(8, _GROUP, signed, wide, wide_offsets)


def _widened(
    scales: torch.Tensor, offsets: torch.Tensor | None, *, columns: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scales, and offsets in steps times scales, as float32 (N, K / 32). None where all offsets are 0."""
    check_finite(scales)
    repeats = columns // _GROUP // scales.shape[1]
    widened = scales.float().contiguous()
    wide = widened.repeat_interleave(repeats, 1)
    if offsets is None or not bool(offsets.any()):
        return wide, None
    return wide, offsets.mul(widened).repeat_interleave(repeats, 1)


def _repacked(words: torch.Tensor) -> torch.Tensor:
    """int32 (N, K / 8) of codes in order -> uint8 (N, K / 2) in the order of a strip, never unpacked."""
    return _repacked_turned(words.t().contiguous())


def _repacked_turned(words: torch.Tensor) -> torch.Tensor:
    """int32 (K / 8, N) of codes in order -> uint8 (N, K / 2) in the order of a strip, never unpacked.

    Four words of an output hold 32 codes. Of word j of the result, the low halves of the bytes are codes 4 j
    … 4 j + 3, one half of word j / 2 as stored, and the high halves are the same half of word j / 2 + 2.
    Whole words at a time, along the outputs: bytes one by one take twenty times as long.
    """
    import torch

    parts = words.view(-1, 4, words.shape[1]).unbind(1)  # each (K / 32, N)
    out = torch.empty_like(words).view(-1, 4, words.shape[1])
    for j in range(4):
        low, high = (_spread(parts[j // 2 + 2 * which], upper=j % 2 == 1) for which in (0, 1))
        torch.bitwise_or(low, high.bitwise_left_shift_(4), out=out[:, j])
    return out.view(words.shape).t().contiguous().view(torch.uint8)


def _spread(words: torch.Tensor, *, upper: bool) -> torch.Tensor:
    """The four codes of the upper or lower half of each word as the low halves of its four bytes."""
    half = (words >> 16 if upper else words) & 0xFFFF
    half = half.bitwise_or_(half << 8).bitwise_and_(0x00FF00FF)
    return half.bitwise_or_(half << 4).bitwise_and_(0x0F0F0F0F)


def _awq_repacked(words: torch.Tensor) -> torch.Tensor:
    """AWQ's int32 (K, N / 8) -> uint8 (N, K / 2) in the order of a strip.

    Inputs 0 … 15 of each 32 become low halves of bytes, 16 … 31 high ones. One half of the places in a word
    ends in the four bytes of one word, the other half in another.
    """
    import torch

    first, second = words.view(-1, 2, 16, words.shape[1]).unbind(1)  # each (K / 32, 16, N / 8)
    even = (first & _LOW_HALVES) | ((second & _LOW_HALVES) << 4)  # places 0, 2, 4 and 6
    odd = ((first >> 4) & _LOW_HALVES) | (second & ~_LOW_HALVES)
    out = torch.empty(words.shape[1], 8, words.shape[0] // 2, dtype=torch.uint8)
    for pair, places in ((even, range(0, 8, 2)), (odd, range(1, 8, 2))):
        octets = pair.view(words.shape[0] // 2, -1).view(torch.uint8)  # (K / 2, N / 2)
        turned_octets = octets.t().contiguous().view(words.shape[1], 4, -1)
        for position, place in enumerate(places):
            out[:, awq_places().index(place)] = turned_octets[:, position]
    return out.view(words.shape[1] * 8, -1)


def _group_size(columns: int, groups: int) -> int | None:
    """Inputs that share a scale; None where strips can't follow."""
    if columns % groups:
        raise ModelFileError(f"Its {groups:,} scales don't divide {columns:,} inputs.", AGAIN)
    size = columns // groups
    return size if fits(size, _GROUP) else None
