"""The strip: a matrix (N, K) as small integer codes with one scale for each row and group of G inputs.

The value of a code is `code * scale`, or `code * scale + offset` where a checkpoint came with zero points;
both operations in float32, each rounded once. A scale may be negative, and in a strip that was read from a
file it may be 0: it is there to be multiplied with, never to be divided by.

q8 codes are int8 in [-127, 127], (N, K). q4 codes are two's complement nibbles in [-8, 7], two a byte, (N,
K / 2): a block of 32 inputs takes 16 bytes, and byte i of it holds code i in its low nibble and code i + 16
in its high one. So a block is one load of 16 bytes for a lane of a card; `byte & 0xF0` and `byte << 4` are
16 times the code without any sign extension; AVX2 gets 32 codes in order by widening the two halves; and
GGUF's Q4_0 has the same order. Blocks follow each other along the row, whatever G is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Bits = Literal[4, 8]
Group = Literal[32, 256]

BITS = (4, 8)
GROUPS = (32, 256)
BLOCK: Group = 32  # inputs whose q4 codes share 16 bytes
LARGEST_CODE = {4: 7, 8: 127}
SMALLEST_CODE = {4: -8, 8: -127}


@dataclass(frozen=True, eq=False)
class Strip:
    """One matrix (N, K). Raises ValueError when the tensors don't belong together; code values are not
    looked at.

    codes: int8 (N, K) for 8 bits, uint8 (N, K / 2) for 4. scales: float32 (N, K / G). offsets: None or as
    scales. All contiguous and on one device.
    """

    bits: Bits
    group: Group
    codes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None = None

    def __post_init__(self) -> None:
        import torch

        if self.bits not in BITS:
            raise ValueError(f"A strip has codes of 4 or 8 bits, not of {self.bits}.")
        dtype = torch.int8 if self.bits == 8 else torch.uint8
        if self.codes.ndim != 2 or self.codes.dtype != dtype:
            found = f"{self.codes.dtype} {tuple(self.codes.shape)}"
            raise ValueError(f"Codes of {self.bits} bits are a {dtype} matrix, not {found}.")
        check_width(self.columns, self.group)
        _check_numbers("scales", self.scales, self)
        if self.offsets is not None:
            _check_numbers("offsets", self.offsets, self)
        if not self.codes.is_contiguous():
            raise ValueError("The codes of a strip have to be contiguous.")

    @property
    def rows(self) -> int:
        """N, the number of outputs."""
        return self.codes.shape[0]

    @property
    def columns(self) -> int:
        """K, the number of inputs."""
        return self.codes.shape[1] * 8 // self.bits

    @property
    def nbytes(self) -> int:
        offsets = 0 if self.offsets is None else self.offsets.nbytes
        return self.codes.nbytes + self.scales.nbytes + offsets


def fits(num_inputs: int, group: int) -> bool:
    """Whether a matrix with this many inputs can be a strip; the others stay as they are stored."""
    return num_inputs > 0 and num_inputs % group == 0


def check_width(num_inputs: int, group: int) -> None:
    """Raises ValueError when a matrix with this many inputs can't be a strip."""
    if group not in GROUPS:
        raise ValueError(f"A scale is shared by 32 or 256 inputs, not by {group}.")
    if not fits(num_inputs, group):
        raise ValueError(f"Rows of {num_inputs} inputs don't divide into groups of {group}.")


def pack(codes: torch.Tensor) -> torch.Tensor:
    """int8 (N, K) in [-8, 7] -> uint8 (N, K / 2). K is a multiple of 32."""
    import torch

    low, high = torch.unflatten(codes.view(torch.uint8), 1, (-1, 2, BLOCK // 2)).unbind(2)
    return (low & 15).bitwise_or_(high << 4).flatten(1)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """uint8 (N, K / 2) -> int8 (N, K) in [-8, 7]."""
    import torch

    signed = packed.view(torch.int8)  # shifts of signed numbers keep the sign
    halves = [torch.unflatten(half, 1, (-1, BLOCK // 2)) for half in ((signed << 4) >> 4, signed >> 4)]
    return torch.stack(halves, 2).flatten(1)


def codes_of(strip: Strip) -> torch.Tensor:
    """int8 (N, K), unpacked; for 8 bits the strip's own tensor."""
    return strip.codes if strip.bits == 8 else unpack(strip.codes)


def dequantise(strip: Strip) -> torch.Tensor:
    """float32 (N, K), what the strip stands for. This is the definition that every kernel is measured
    against.
    """
    import torch

    values = codes_of(strip).float()
    grouped = torch.unflatten(values, 1, (-1, strip.group))
    grouped.mul_(strip.scales.unsqueeze(2))
    if strip.offsets is not None:
        grouped.add_(strip.offsets.unsqueeze(2))
    return values


def scales_fit(strip: Strip, dtype: torch.dtype) -> bool:
    """Whether scales and offsets lose nothing in `dtype` (float16, bfloat16)."""
    import torch

    numbers = [strip.scales] if strip.offsets is None else [strip.scales, strip.offsets]
    return all(torch.equal(each.to(dtype).float(), each) for each in numbers)


def take_rows(strip: Strip, start: int, stop: int) -> Strip:
    """Rows start … stop - 1 as a strip that shares their memory."""
    return replace(
        strip,
        codes=strip.codes[start:stop],
        scales=strip.scales[start:stop],
        offsets=None if strip.offsets is None else strip.offsets[start:stop],
    )


def pick_rows(strip: Strip, ids: torch.Tensor) -> Strip:
    """The rows `ids` (M,), int64, in that order, as a strip of its own memory."""
    return replace(
        strip,
        codes=strip.codes.index_select(0, ids),
        scales=strip.scales.index_select(0, ids),
        offsets=None if strip.offsets is None else strip.offsets.index_select(0, ids),
    )


def concatenate(strips: Sequence[Strip]) -> Strip:
    """One strip with the rows of all, in order. Raises ValueError unless bits, group and columns agree.

    Where only some have offsets, the others get offsets of 0.
    """
    import torch

    kinds = {(strip.bits, strip.group, strip.columns) for strip in strips}
    if len(kinds) != 1:
        raise ValueError(
            f"Strips of different kinds (bits, group, columns) can't be joined: {sorted(kinds)}."
        )
    offsets = None
    if any(strip.offsets is not None for strip in strips):
        offsets = torch.cat([_offsets_of(strip) for strip in strips])
    codes = torch.cat([strip.codes for strip in strips])
    return Strip(strips[0].bits, strips[0].group, codes, torch.cat([s.scales for s in strips]), offsets)


def _check_numbers(name: str, numbers: torch.Tensor, strip: Strip) -> None:
    import torch

    shape = (strip.rows, strip.columns // strip.group)
    if numbers.shape != shape or numbers.dtype != torch.float32:
        found = f"{numbers.dtype} {tuple(numbers.shape)}"
        raise ValueError(f"The {name} of this strip have to be torch.float32 {shape}, not {found}.")
    if not numbers.is_contiguous():
        raise ValueError(f"The {name} of a strip have to be contiguous.")
    if numbers.device != strip.codes.device:
        raise ValueError(f"The {name} of a strip lie on {numbers.device}, its codes on {strip.codes.device}.")


def _offsets_of(strip: Strip) -> torch.Tensor:
    import torch

    return torch.zeros_like(strip.scales) if strip.offsets is None else strip.offsets
