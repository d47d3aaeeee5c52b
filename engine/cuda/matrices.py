"""Weights on the card: the very bytes of the CPU's, so that both compute with the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from engine.cpu.matrices import Dense, Joined, Matrix, Widened
from engine.cpu.strip_matrix import StripMatrix
from engine.cuda.driver import NOWHERE, Address, as_bytes
from engine.cuda.memory import CardMemory, Use
from engine.errors import UnsupportedModelError
from engine.weights.strips import BLOCK, Strip, scales_fit

if TYPE_CHECKING:
    from engine.cuda.driver import Bytes

_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
_ALIGNMENT = 256


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


@dataclass(frozen=True)
class _Piece:
    """A tensor of the computer's memory, and where it goes as numbers of what type."""

    offset: int
    tensor: torch.Tensor
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return self.tensor.numel() * self.dtype.itemsize

    def converted(self) -> torch.Tensor:
        """The tensor itself where there is nothing to do."""
        return self.tensor.to(self.dtype).contiguous()


@dataclass(frozen=True)
class LinearImage:
    """One map of the model as it is to lie in one buffer of the card, at a multiple of 256."""

    num_bytes: int
    _linear: DeviceLinear  # in a buffer at 0
    _pieces: tuple[_Piece, ...]

    def at(self, address: Address) -> DeviceLinear:
        """With a buffer there."""

        def moved(offset: Address) -> Address:
            return NOWHERE if offset == NOWHERE else Address(address + offset)

        parts = [
            replace(
                part,
                weights=Address(address + part.weights),
                scales=moved(part.scales),
                offsets=moved(part.offsets),
            )
            for part in self._linear.parts
        ]
        return DeviceLinear(tuple(parts), moved(self._linear.bias))

    def send(self, address: Address, upload: Callable[[Address, Bytes], None]) -> None:
        """Has every byte uploaded to a buffer there."""
        for piece in self._pieces:
            data = piece.converted().view(-1).view(torch.uint8)
            upload(Address(address + piece.offset), as_bytes(data))

    def converted(self) -> LinearImage:
        """The same, with nothing left to convert when it is sent, for what that takes of the computer's
        memory: codes stay where they are.
        """
        return replace(
            self, _pieces=tuple(replace(piece, tensor=piece.converted()) for piece in self._pieces)
        )


def linear_image(matrices: Sequence[Matrix]) -> LinearImage:
    """Of one matrix, or of those of all experts, which have no bias. Raises UnsupportedModelError."""
    first = matrices[0]
    assert isinstance(first, Joined | StripMatrix | Dense | Widened)
    bias = first.bias
    assert bias is None or len(matrices) == 1
    members = [each.members if isinstance(each, Joined) else (each,) for each in matrices]
    layout = _Layout()
    parts = tuple(_stack(list(stack), layout) for stack in zip(*members, strict=True))
    linear = DeviceLinear(parts, NOWHERE if bias is None else layout.add([bias], bias.dtype))
    return LinearImage(layout.num_bytes, linear, tuple(layout.pieces))


class _Layout:
    """Where things go in a buffer at 0. The first is weights, so that 0 is no place of anything else."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self.pieces: list[_Piece] = []

    def add(self, tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> Address:
        """One behind the other."""
        start = -(-self.num_bytes // _ALIGNMENT) * _ALIGNMENT
        self.num_bytes = start
        for each in tensors:
            piece = _Piece(self.num_bytes, each, dtype)
            self.pieces.append(piece)
            self.num_bytes += piece.num_bytes
        return Address(start)


def _stack(matrices: Sequence[Matrix], layout: _Layout) -> DeviceMatrix:
    strips = [each.strip for each in matrices if isinstance(each, StripMatrix)]
    if len(strips) == len(matrices):
        return _strips(strips, layout)
    numbers = [each.weight for each in matrices if isinstance(each, Dense | Widened)]
    if len(numbers) != len(matrices) or len({each.dtype for each in numbers}) > 1:
        raise UnsupportedModelError(
            "The experts of a layer are stored in different ways, which can't be run on the card yet.",
            "The model runs on the CPU.",
        )
    rows, columns = numbers[0].shape
    dtype = numbers[0].dtype
    return DeviceMatrix(_DTYPES[dtype], rows, columns, layout.add(numbers, dtype))


def _strips(strips: Sequence[Strip], layout: _Layout) -> DeviceMatrix:
    first = strips[0]
    assert len({(each.bits, each.group, each.codes.shape) for each in strips}) == 1
    narrow = all(scales_fit(each, torch.float16) for each in strips)
    dtype = torch.float16 if narrow else torch.float32
    weights = layout.add([each.codes for each in strips], first.codes.dtype)
    offsets = NOWHERE
    if any(each.offsets is not None for each in strips):
        filled = [torch.zeros_like(e.scales) if e.offsets is None else e.offsets for e in strips]
        offsets = layout.add(filled, dtype)
    return DeviceMatrix(
        f"codes{first.bits}",
        first.rows,
        first.columns,
        weights,
        scales=layout.add([each.scales for each in strips], dtype),
        offsets=offsets,
        blocks_a_scale=first.group // BLOCK,
        narrow_scales=narrow,
    )


class Uploader:
    """Puts what stays into the card's memory, and counts its bytes."""

    def __init__(self, memory: CardMemory) -> None:
        self._memory = memory
        self.num_bytes = 0

    def linear(self, matrices: Sequence[Matrix]) -> DeviceLinear:
        """As for `linear_image`."""
        return self.image(linear_image(matrices))

    def image(self, image: LinearImage) -> DeviceLinear:
        address = self._allocate(image.num_bytes)
        image.send(address, self._memory.driver.upload)
        return image.at(address)

    def tensor(self, tensor: torch.Tensor) -> Address:
        address = self._allocate(tensor.nbytes)
        self._memory.driver.upload(address, as_bytes(tensor.contiguous().view(-1).view(torch.uint8)))
        return address

    def _allocate(self, num_bytes: int) -> Address:
        address = self._memory.allocate(num_bytes, Use.WEIGHTS)
        self.num_bytes += num_bytes
        return address
