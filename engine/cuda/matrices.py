"""Weights on the card: the very bytes of the CPU's, so that both compute with the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.cpu.matrices import Dense, Joined, Matrix, Widened
from engine.cpu.strip_matrix import StripMatrix
from engine.cuda.driver import NOWHERE, Address, as_bytes
from engine.cuda.memory import CardMemory, Use
from engine.errors import UnsupportedModelError
from engine.weights.strips import BLOCK, Strip, scales_fit

_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


@dataclass(frozen=True)
class DeviceMatrix:
    """Matrices (N, K) of one kind, one behind the other: one, or one an expert.

    kind: "codes8", "codes4" or a type of numbers. scales, offsets: 0 where there are none. blocks_a_scale: of
    32 inputs.
    """

    kind: str
    rows: int
    columns: int
    weights: Address
    scales: Address = NOWHERE
    offsets: Address = NOWHERE
    blocks_a_scale: int = 1
    narrow_scales: bool = False

    @property
    def is_strip(self) -> bool:
        return self.kind.startswith("codes")


@dataclass(frozen=True)
class DeviceLinear:
    """One map of the model: the matrices that make its outputs, one below the other, and its bias (N,)."""

    parts: tuple[DeviceMatrix, ...]
    bias: Address

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def columns(self) -> int:
        return self.parts[0].columns

    @property
    def has_strips(self) -> bool:
        return any(part.is_strip for part in self.parts)

    @property
    def has_numbers(self) -> bool:
        return not all(part.is_strip for part in self.parts)


class Uploader:
    """Puts weights into the card's memory, and counts their bytes."""

    def __init__(self, memory: CardMemory) -> None:
        self._memory = memory
        self.num_bytes = 0

    def linear(self, matrices: Sequence[Matrix]) -> DeviceLinear:
        """One matrix, or those of all experts, which have no bias."""
        first = matrices[0]
        assert isinstance(first, Joined | StripMatrix | Dense | Widened)
        bias = first.bias
        assert bias is None or len(matrices) == 1
        members = [each.members if isinstance(each, Joined) else (each,) for each in matrices]
        parts = [self._stack(list(stack)) for stack in zip(*members, strict=True)]
        return DeviceLinear(tuple(parts), NOWHERE if bias is None else self.tensor(bias))

    def tensor(self, tensor: torch.Tensor) -> Address:
        return self._together([tensor])

    def _stack(self, matrices: Sequence[Matrix]) -> DeviceMatrix:
        strips = [each.strip for each in matrices if isinstance(each, StripMatrix)]
        if len(strips) == len(matrices):
            return self._strips(strips)
        numbers = [each.weight for each in matrices if isinstance(each, Dense | Widened)]
        if len(numbers) != len(matrices) or len({each.dtype for each in numbers}) > 1:
            raise UnsupportedModelError(
                "The experts of a layer are stored in different ways, which can't be run on the card yet.",
                "The model runs on the CPU.",
            )
        rows, columns = numbers[0].shape
        return DeviceMatrix(_DTYPES[numbers[0].dtype], rows, columns, self._together(numbers))

    def _strips(self, strips: Sequence[Strip]) -> DeviceMatrix:
        first = strips[0]
        assert len({(each.bits, each.group, each.codes.shape) for each in strips}) == 1
        narrow = all(scales_fit(each, torch.float16) for each in strips)
        dtype = torch.float16 if narrow else torch.float32
        offsets = NOWHERE
        if any(each.offsets is not None for each in strips):
            filled = [torch.zeros_like(e.scales) if e.offsets is None else e.offsets for e in strips]
            offsets = self._together([each.to(dtype) for each in filled])
        return DeviceMatrix(
            f"codes{first.bits}",
            first.rows,
            first.columns,
            self._together([each.codes for each in strips]),
            scales=self._together([each.scales.to(dtype) for each in strips]),
            offsets=offsets,
            blocks_a_scale=first.group // BLOCK,
            narrow_scales=narrow,
        )

    def _together(self, tensors: Sequence[torch.Tensor]) -> Address:
        num_bytes = sum(each.nbytes for each in tensors)
        address = self._memory.allocate(num_bytes, Use.WEIGHTS)
        at = address
        for each in tensors:
            self._memory.driver.upload(at, as_bytes(each.contiguous().view(-1).view(torch.uint8)))
            at = Address(at + each.nbytes)
        self.num_bytes += num_bytes
        return address
