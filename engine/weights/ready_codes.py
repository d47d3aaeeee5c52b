"""What the readers of quantised checkpoints share: codes out of their words, and whether tensors of one
matrix (N, K) belong together.

Codes of 4 or 8 bits lie in int32 words, the first in the lowest bits. Scales and zero points come out as
(N, groups), whichever way a format stores them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.errors import ModelFileError
from engine.weights.strips import Bits
from engine.wording import phrase

if TYPE_CHECKING:
    import torch

WORD_BITS = 32
AGAIN = "Download the model again."

_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # where in a word each of eight neighbouring outputs lies


def unpacked(words: torch.Tensor, bits: Bits) -> torch.Tensor:
    """int32 (A, B) -> uint8 (A, B * 32 / bits), lowest bits first; new memory."""
    import torch

    octets = words.contiguous().view(torch.uint8)
    if bits == 8:
        return octets.clone()
    return torch.stack((octets & 15, octets >> 4), 2).view(len(octets), -1)


def in_awq_order(codes: torch.Tensor) -> torch.Tensor:
    """(A, N) as unpacked -> (A, N) with the outputs in their order."""
    return codes.view(len(codes), -1, len(_AWQ_PLACES))[:, :, list(_AWQ_PLACES)].reshape(codes.shape)


def awq_places() -> list[int]:
    """Where in a word each of eight neighbouring outputs of AWQ lies."""
    return list(_AWQ_PLACES)


def gptq_zeros(qzeros: torch.Tensor, bits: Bits, *, less_one: bool) -> torch.Tensor:
    """int32 (groups, N * bits / 32) -> uint8 (N, groups).

    less_one: zero points are stored less one, as everywhere but in the checkpoint format "gptq_v2". The
    largest code is then 0: one more than it exists nowhere else in the format.
    """
    check_words("qzeros", qzeros)
    zeros = unpacked(qzeros, bits)
    if less_one:
        zeros = zeros.add_(1).bitwise_and_((1 << bits) - 1)
    return zeros.t()


def packed_scales_and_zeros(
    packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, *, bits: Bits, columns: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scales and zero points (N, groups) of compressed-tensors' packed codes, checked against them.

    Zero points are packed along the outputs, but for one zero point for all, and from earlier versions: then
    they are int8 and signed, as the codes are before they are packed.
    """
    import torch

    check_words("weight_packed", packed)
    if packed.shape[1] != math.ceil(columns * bits / WORD_BITS):
        raise contradiction(phrase("codes"), packed, f"rows of {columns:,}")
    scales = row_scales(scales, rows=len(packed), columns=columns)
    if zeros is None:
        return scales, None
    if zeros.dtype == torch.int8:
        return scales, signed_zeros(zeros, scales, middle=1 << (bits - 1))
    check_words("weight_zero_point", zeros)
    return scales, unpacked(zeros.t(), bits)[:, : len(packed)].t()


def signed_zeros(zeros: torch.Tensor, scales: torch.Tensor, *, middle: int) -> torch.Tensor:
    """int8 zero points, one for each scale (N, groups), a row or all -> uint8 (N, groups) as of unsigned
    codes.
    """
    import torch

    spread = row_scales(zeros, rows=scales.shape[0], columns=scales.shape[1], name="zero points")
    if spread.shape != scales.shape:
        raise contradiction("zero points", zeros, f"one for each of {tuple(scales.shape)} scales")
    return spread.to(torch.int16).add_(middle).to(torch.uint8)


def row_scales(
    scales: torch.Tensor, *, rows: int, columns: int, name: str = phrase("scales")
) -> torch.Tensor:
    """(N, groups) of what is (N, groups), (N,), or one number for all."""
    if scales.numel() == 1:
        return scales.reshape(1, 1).expand(rows, 1)
    if scales.ndim == 1:
        scales = scales[:, None]
    if columns % num_groups(scales, rows, name=name):
        raise contradiction(name, scales, f"a divisor of {columns:,} a row")
    return scales


def numbers(what: str, zeros: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The zero points as float32, one for each scale."""
    if zeros.shape != scales.shape:
        raise contradiction(what, zeros, f"one for each of {tuple(scales.shape)} scales")
    return zeros.float()


def turned(scales: torch.Tensor) -> torch.Tensor:
    """(groups, N) -> (N, groups)."""
    return scales.t() if scales.ndim == 2 else scales  # what has other axes is refused by `num_groups`


def num_groups(scales: torch.Tensor, rows: int, *, name: str = phrase("scales")) -> int:
    """Groups of inputs that scales (N, groups) stand for."""
    if scales.ndim != 2 or scales.shape[0] != rows or not scales.shape[1]:
        raise contradiction(name, scales, f"some for each of {rows:,} outputs")
    return scales.shape[1]


def in_order(g_idx: torch.Tensor, columns: int, size: int) -> bool:
    """Whether the inputs stand in the order of their groups of `size`."""
    import torch

    return torch.equal(g_idx.long(), torch.arange(columns) // size)


def check_words(name: str, words: torch.Tensor) -> None:
    import torch

    if words.ndim != 2 or words.dtype != torch.int32:
        raise ModelFileError(f"Its {name} should be a matrix of int32, not {described(words)}.", AGAIN)


def check_finite(scales: torch.Tensor) -> None:
    if not bool(scales.float().isfinite().all()):
        raise ModelFileError("Its scales are not all finite numbers.", AGAIN)


def contradiction(what: str, found: torch.Tensor, wanted: str) -> ModelFileError:
    return ModelFileError(f"Its {what} have the shape {tuple(found.shape)} instead of {wanted}.", AGAIN)


def described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
