"""Matrices that were quantised by others, as strips that stand for the same numbers.

Each function takes the tensors that a checkpoint stores for one matrix (N, K) and knows nothing of files.
All integer forms mean `(code - zero point) * scale` with unsigned codes; a strip's codes are the same ones
moved to be symmetric, and its offset is the rest of the zero point times the scale. With scales of 16 bits,
which is how they are stored, or without zero points, not a bit is lost. A scale for 64 or 128 inputs, or for
a whole row, stands in the strip once for every 32 of them.

Raises ModelFileError for tensors that contradict each other and UnsupportedModelError for what no strip can
hold; the caller names the matrix in front of the sentence.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.errors import ModelFileError, UnsupportedModelError
from engine.weights.strips import Bits, Group, Strip, fits

if TYPE_CHECKING:
    import torch

_GROUP: Group = 32
_WORD_BITS = 32  # codes lie in int32 words, the first in the lowest bits
_SIGN_BITS = 0x88  # of both codes in a byte: c and c - 8 as two's complement differ in nothing else
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # where in a word each of eight neighbouring outputs lies

_OTHER_FORM = "Pick the model's bf16 or fp16 folder, or a GGUF file."
_AGAIN = "Download the model again."


def gptq_strip(
    qweight: torch.Tensor,
    qzeros: torch.Tensor,
    scales: torch.Tensor,
    g_idx: torch.Tensor | None = None,
    *,
    zeros_less_one: bool = True,
) -> Strip:
    """GPTQ, 4 bits: qweight int32 (K / 8, N), qzeros int32 (groups, N / 8), scales (groups, N), g_idx (K,).

    zeros_less_one: zero points are stored less one, as everywhere but in the checkpoint format "gptq_v2". A
    stored 15 is then 0: one more than 15 exists nowhere else in the format.
    """
    _check_words("qweight", qweight)
    _check_words("qzeros", qzeros)
    rows, columns = qweight.shape[1], qweight.shape[0] * 8
    scales = _turned(scales)
    size = _group_size(columns, _num_groups(scales, rows))
    if g_idx is not None:
        _check_order(g_idx, columns, size)
    zeros = _unpacked(qzeros, 4)
    if zeros_less_one:
        zeros = zeros.add_(1).bitwise_and_(15)
    return _int4_strip(_repacked(qweight.t()), scales, zeros.t())


def awq_strip(qweight: torch.Tensor, qzeros: torch.Tensor | None, scales: torch.Tensor) -> Strip:
    """AWQ, 4 bits, version "gemm": qweight int32 (K, N / 8), qzeros int32 (groups, N / 8) or None where all
    zero points are 8, scales (groups, N).
    """
    _check_words("qweight", qweight)
    rows, columns = qweight.shape[1] * 8, qweight.shape[0]
    scales = _turned(scales)
    _group_size(columns, _num_groups(scales, rows))
    codes = _awq_repacked(qweight)
    if qzeros is None:
        return _int4_strip(codes, scales, None)
    _check_words("qzeros", qzeros)
    return _int4_strip(codes, scales, _in_awq_order(_unpacked(qzeros, 4)).t())


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
    (N, 1) or one number, zeros int32 (N * bits / 32, groups) or None. `columns` is K (weight_shape).

    None where no strip holds the codes: 8 bits with both -128 and 127 in one group of 32. Such a matrix is
    dequantised (`packed_values`) and quantised anew.
    """
    scales, zeros = _scales_and_zeros(packed, scales, zeros, bits=bits, columns=columns)
    size = _group_size(columns, scales.shape[1])
    if g_idx is not None and bool((g_idx >= 0).all()):  # -1 throughout where the inputs keep their order
        _check_order(g_idx, columns, size)
    if bits == 4:
        return _int4_strip(_repacked(packed), scales, zeros)
    return _int8_strip(_unpacked(packed, 8), scales, zeros)


def packed_values(
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    *,
    bits: Bits,
    columns: int,
) -> torch.Tensor:
    """float32 (N, K): what `packed_strip` takes, dequantised."""
    scales, zeros = _scales_and_zeros(packed, scales, zeros, bits=bits, columns=columns)
    _check_finite(scales)
    codes = _unpacked(packed, bits)[:, :columns]
    middle = 1 << (bits - 1)
    values = codes.float().contiguous().view(len(codes), scales.shape[1], -1)
    values.sub_(middle if zeros is None else _numbers("zero points", zeros, scales).unsqueeze(2))
    return values.mul_(scales.float().unsqueeze(2)).view(codes.shape)


def fp8_values(
    weight: torch.Tensor, scale: torch.Tensor, *, block: tuple[int, int] | None = None
) -> torch.Tensor:
    """float32 (N, K): 8-bit floats times their scale, to be quantised to q8.

    scale: one number, (N,) or (N, 1); with `block` (rows, columns) one for each block, (N / rows, K /
    columns) rounded up. Files call it weight_scale or weight_scale_inv; both are multiplied with.
    """
    if weight.ndim != 2 or not weight.is_floating_point() or weight.element_size() != 1:
        raise ModelFileError(f"It should be a matrix of 8-bit floats, not {_described(weight)}.", _AGAIN)
    _check_finite(scale)
    values = weight.float()
    num_rows, num_columns = values.shape
    factors = scale.float()
    if block is None:
        if factors.numel() not in (1, num_rows):
            raise _contradiction("scales", scale, f"one number or {num_rows:,}")
        return values.mul_(factors.view(-1, 1))
    expected = (math.ceil(num_rows / block[0]), math.ceil(num_columns / block[1]))
    if factors.shape != expected:
        raise _contradiction("scales", scale, str(expected))
    for i, row in enumerate(factors):
        values[i * block[0] : (i + 1) * block[0]] *= row.repeat_interleave(block[1])[:num_columns]
    return values


def _int4_strip(codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None) -> Strip:
    """codes: as a strip has them, but unsigned, and the caller's own. zeros uint8 (N, groups), None for 8."""
    offsets = None if zeros is None else 8 - _numbers("zero points", zeros, scales)
    wide, wide_offsets = _widened(scales, offsets, columns=2 * codes.shape[1])
    return Strip(4, _GROUP, codes.bitwise_xor_(_SIGN_BITS), wide, wide_offsets)


def _int8_strip(codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None) -> Strip | None:
    """codes uint8 (N, K), the caller's own, scales (N, groups), zeros uint8 (N, groups) or None for 128.

    -128 is no code of a strip. Where it is used, the whole group moves up by one, and its offset down.
    """
    import torch

    signed = codes.bitwise_xor_(128).view(torch.int8)  # less 128
    offsets = None if zeros is None else 128 - _numbers("zero points", zeros, scales)
    wide, wide_offsets = _widened(scales, offsets, columns=codes.shape[1])
    grouped = signed.view(len(codes), -1, _GROUP)
    low = (grouped == -128).any(2)
    if bool(low.any()):
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
    _check_finite(scales)
    repeats = columns // _GROUP // scales.shape[1]
    numbers = scales.float().contiguous()
    wide = numbers.repeat_interleave(repeats, 1)
    if offsets is None or not bool(offsets.any()):
        return wide, None
    return wide, offsets.mul(numbers).repeat_interleave(repeats, 1)


def _scales_and_zeros(
    packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, *, bits: Bits, columns: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scales and zero points (N, groups) of compressed-tensors, checked against the codes."""
    _check_words("weight_packed", packed)
    rows = len(packed)
    if packed.shape[1] != math.ceil(columns * bits / _WORD_BITS):
        raise _contradiction("codes", packed, f"rows of {columns:,}")
    if scales.numel() == 1:
        scales = scales.reshape(1, 1).expand(rows, 1)
    if columns % _num_groups(scales, rows):
        raise _contradiction("scales", scales, f"a divisor of {columns:,} a row")
    if zeros is None:
        return scales, None
    _check_words("weight_zero_point", zeros)
    return scales, _unpacked(zeros.t(), bits)[:, :rows].t()


def _unpacked(words: torch.Tensor, bits: Bits) -> torch.Tensor:
    """int32 (A, B) -> uint8 (A, B * 32 / bits), lowest bits first; new memory."""
    import torch

    octets = words.contiguous().view(torch.uint8)
    if bits == 8:
        return octets.clone()
    return torch.stack((octets & 15, octets >> 4), 2).view(len(octets), -1)


def _repacked(words: torch.Tensor) -> torch.Tensor:
    """int32 (N, K / 8) of codes in order -> uint8 (N, K / 2) in the order of a strip, never unpacked.

    Of 32 codes, byte i has 2 i and 2 i + 1 before; after, bytes 2 i and 2 i + 1 have them as their low
    halves, and as their high halves what byte i + 8 had before.
    """
    import torch

    octets = words.contiguous().view(torch.uint8).view(len(words), -1, 2, 8)
    first, second = octets.unbind(2)  # codes 0 … 15 and 16 … 31
    return torch.stack(_joined(first, second), 3).view(len(words), -1)


def _awq_repacked(words: torch.Tensor) -> torch.Tensor:
    """AWQ's int32 (K, N / 8) -> uint8 (N, K / 2) in the order of a strip."""
    import torch

    octets = words.contiguous().view(torch.uint8).view(-1, 2, 16, words.shape[1], 4)
    first, second = octets.unbind(1)  # inputs 0 … 15 and 16 … 31 of each 32
    places = torch.stack(_joined(first, second), 4).view(*first.shape[:3], 8)  # (K / 32, 16, N / 8, place)
    outputs = places.permute(2, 3, 0, 1)[:, list(_AWQ_PLACES)]
    return outputs.reshape(words.shape[1] * 8, -1)


def _joined(first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes of two codes each: the lower codes of both joined in one byte, and the higher codes."""
    return (second << 4).bitwise_or_(first & 15), (second & 0xF0).bitwise_or_(first >> 4)


def _in_awq_order(codes: torch.Tensor) -> torch.Tensor:
    """(A, N) as unpacked -> (A, N) with the outputs in their order."""
    return codes.view(len(codes), -1, len(_AWQ_PLACES))[:, :, list(_AWQ_PLACES)].reshape(codes.shape)


def _numbers(what: str, zeros: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The zero points as float32, one for each scale."""
    if zeros.shape != scales.shape:
        raise _contradiction(what, zeros, f"one for each of {tuple(scales.shape)} scales")
    return zeros.float()


def _turned(scales: torch.Tensor) -> torch.Tensor:
    """(groups, N) -> (N, groups)."""
    return scales.t() if scales.ndim == 2 else scales  # what has other axes is refused by `_num_groups`


def _num_groups(scales: torch.Tensor, rows: int) -> int:
    """Groups of inputs that scales (N, groups) stand for."""
    if scales.ndim != 2 or scales.shape[0] != rows or not scales.shape[1]:
        raise _contradiction("scales", scales, f"some for each of {rows:,} outputs")
    return scales.shape[1]


def _group_size(columns: int, num_groups: int) -> int:
    """Inputs that share a scale. Raises UnsupportedModelError where strips can't follow."""
    if columns % num_groups or not fits(columns // num_groups, _GROUP):
        raise UnsupportedModelError(
            f"Its {num_groups:,} scales for {columns:,} inputs don't divide into groups of {_GROUP}.",
            _OTHER_FORM,
        )
    return columns // num_groups


def _check_order(g_idx: torch.Tensor, columns: int, size: int) -> None:
    import torch

    if not torch.equal(g_idx.long(), torch.arange(columns) // size):
        raise UnsupportedModelError(
            "Its inputs are quantised in an order of their own (desc_act, also called act-order), which this "
            "engine doesn't do.",
            "Pick a version of the model that was made without it, or a GGUF file.",
        )


def _check_words(name: str, words: torch.Tensor) -> None:
    import torch

    if words.ndim != 2 or words.dtype != torch.int32:
        raise ModelFileError(f"Its {name} should be a matrix of int32, not {_described(words)}.", _AGAIN)


def _check_finite(scales: torch.Tensor) -> None:
    if not bool(scales.float().isfinite().all()):
        raise ModelFileError("Its scales are not all finite numbers.", _AGAIN)


def _contradiction(what: str, found: torch.Tensor, wanted: str) -> ModelFileError:
    return ModelFileError(f"Its {what} have the shape {tuple(found.shape)} instead of {wanted}.", _AGAIN)


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
