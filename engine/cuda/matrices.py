"""Weights on the card: the very numbers of the CPU's, with codes in the order that tensor cores take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from engine.cpu.matrices import Dense, Joined, Matrix, Widened
from engine.cpu.strip_matrix import StripMatrix
from engine.cuda import arguments
from engine.cuda.driver import NOWHERE, Address, CardDriver, as_bytes
from engine.cuda.kernel_set import KernelSet
from engine.cuda.tile_layout import MOST_CHAINS, TILE, TileLayout, most_chains
from engine.errors import UnsupportedModelError
from engine.weights.strips import BLOCK, Strip, scales_fit

if TYPE_CHECKING:
    from engine.cuda.driver import Bytes

_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
_ALIGNMENT = 256
_RELAY_THREADS = 256


@dataclass(frozen=True)
class DeviceMatrix:
    """Matrices (N, K) of one kind, one behind the other: one, or one an expert.

    kind: "codes8", "codes4" or a type of numbers. scales, offsets: 0 where there are none. blocks_a_scale: of
    32 inputs. most_chains: see `TileLayout`. Codes, scales and offsets lie in tiles.
    """

    kind: str
    rows: int
    columns: int
    weights: Address
    scales: Address = NOWHERE
    offsets: Address = NOWHERE
    blocks_a_scale: int = 1
    narrow_scales: bool = False
    most_chains: int = MOST_CHAINS

    @property
    def is_strip(self) -> bool:
        return self.kind.startswith("codes")

    @property
    def layout(self) -> TileLayout:
        """Of a strip."""
        bits = 4 if self.kind == "codes4" else 8
        group = self.blocks_a_scale * BLOCK
        return TileLayout(bits, self.rows, self.columns, group, self.most_chains)

    @property
    def is_plain(self) -> bool:
        """Of a strip: scales are float16, and there are no offsets."""
        return self.narrow_scales and not self.offsets

    @property
    def is_of_one(self) -> bool:
        """Of a strip: whether a single row's product is made by kernels/product_one.cu."""
        return self.blocks_a_scale == 1 and self.is_plain

    def tiles(self) -> arguments.Tiles:
        """As a kernel takes it."""
        return arguments.Tiles(
            codes=self.weights,
            scales=self.scales,
            offsets=self.offsets,
            rows=self.rows,
            columns=self.columns,
            blocks_a_scale=self.blocks_a_scale,
            narrow_scales=self.narrow_scales,
            stretch=self.layout.stretch,
            chains=self.layout.chains,
        )

    def moved(self, by: int) -> DeviceMatrix:
        """The same in a buffer that begins there, where this is in one at 0."""
        scales, offsets = _moved(self.scales, by), _moved(self.offsets, by)
        return replace(self, weights=Address(self.weights + by), scales=scales, offsets=offsets)


def _moved(offset: Address, by: int) -> Address:
    return NOWHERE if offset == NOWHERE else Address(offset + by)


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


@dataclass
class _Layout:
    """Where things go in a buffer at 0. The first is weights, so that 0 is no place of anything else."""

    num_bytes: int = 0
    pieces: list[_Piece] = field(default_factory=list)

    def room(self, num_bytes: int) -> Address:
        start = -(-self.num_bytes // _ALIGNMENT) * _ALIGNMENT
        self.num_bytes = start + num_bytes
        return Address(start)

    def add(self, tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> Address:
        """One behind the other."""
        start = self.room(sum(each.numel() for each in tensors) * dtype.itemsize)
        offset = int(start)
        for each in tensors:
            self.pieces.append(_Piece(offset, each, dtype))
            offset += self.pieces[-1].num_bytes
        return start


@dataclass(frozen=True)
class _Part:
    """raw: as it is uploaded, row after row. laid: as products read it. Both in buffers at 0. count: of
    matrices.
    """

    raw: DeviceMatrix
    laid: DeviceMatrix
    count: int


@dataclass(frozen=True)
class LinearImage:
    """One map of the model as it is to lie in one buffer of the card, at a multiple of 256.

    It comes up as the computer has it, into a buffer of `raw_bytes`, and is laid from there to where it
    stays.
    """

    num_bytes: int
    raw_bytes: int
    _parts: tuple[_Part, ...]
    _bias: tuple[Address, Address]  # raw and laid, 0 where there is none
    _pieces: tuple[_Piece, ...]

    def at(self, address: Address) -> DeviceLinear:
        """Laid into a buffer there."""
        return DeviceLinear(
            tuple(part.laid.moved(address) for part in self._parts), _moved(self._bias[1], address)
        )

    def send(self, address: Address, upload: Callable[[Address, Bytes], None]) -> None:
        """Has every byte uploaded to a raw buffer there."""
        for piece in self._pieces:
            data = piece.converted().view(-1).view(torch.uint8)
            upload(Address(address + piece.offset), as_bytes(data))

    def lay(self, raw: Address, address: Address, kernels: KernelSet, driver: CardDriver) -> DeviceLinear:
        """From the raw buffer to the other one, on the card, behind all work of before."""
        for part in self._parts:
            source, target = part.raw.moved(raw), part.laid.moved(address)
            if source.is_strip:
                _lay_strips(source, target, part.count, kernels)
            else:
                num_bytes = part.count * source.rows * source.columns * _item_bytes(source.kind)
                driver.copy(target.weights, source.weights, num_bytes)
        linear = self.at(address)
        if linear.bias:
            driver.copy(linear.bias, Address(raw + self._bias[0]), 4 * linear.rows)
        return linear

    def converted(self) -> LinearImage:
        """The same, with nothing left to convert when it is sent, for what that takes of the computer's
        memory: codes stay where they are.
        """
        return replace(
            self, _pieces=tuple(replace(piece, tensor=piece.converted()) for piece in self._pieces)
        )


def _item_bytes(kind: str) -> int:
    return 4 if kind == "float32" else 2


def _lay_strips(source: DeviceMatrix, target: DeviceMatrix, count: int, kernels: KernelSet) -> None:
    layout = target.layout
    relay = arguments.Relay(
        codes=source.weights,
        scales=source.scales,
        offsets=source.offsets,
        to=target.tiles(),
        bits=layout.bits,
    )
    for name, threads in (
        ("relay_codes", layout.pieces),
        ("relay_scales", layout.num_scales),
    ):
        kernels.launch(name, relay, grid=(-(-threads // _RELAY_THREADS), count, 1))


def linear_image(matrices: Sequence[Matrix], *, chains: int | None = None) -> LinearImage:
    """Of one matrix, or of those of all experts, which have no bias. chains: that a row may be cut into;
    None: as `most_chains` says. Raises UnsupportedModelError.
    """
    first = matrices[0]
    assert isinstance(first, Joined | StripMatrix | Dense | Widened)
    bias = first.bias
    assert bias is None or len(matrices) == 1
    members = [list(each.members) if isinstance(each, Joined) else [each] for each in matrices]
    raw, laid = _Layout(), _Layout()
    parts = tuple(_stack(stacks, raw, laid, chains) for stacks in _joined(members))
    places = (NOWHERE, NOWHERE)
    if bias is not None:
        places = raw.add([bias], bias.dtype), laid.room(bias.nbytes)
    return LinearImage(laid.num_bytes, raw.num_bytes, parts, places, tuple(raw.pieces))


def _joined(members: Sequence[Sequence[Matrix]]) -> Iterator[list[list[Matrix]]]:
    """For each part, the matrices below one another that it has of each expert: as many as can be one."""
    positions = list(zip(*members, strict=True))  # what each expert has there
    first = 0
    for end in range(1, len(positions) + 1):
        if end == len(positions) or not _are_one([*positions[first], *positions[end]]):
            yield [list(each[first:end]) for each in members]
            first = end


def _are_one(matrices: Sequence[Matrix]) -> bool:
    """Strips of one form, in whole tiles."""
    strips = [each.strip for each in matrices if isinstance(each, StripMatrix)]
    whole = all(strip.rows % TILE == 0 for strip in strips)
    return whole and len(strips) == len(matrices) and len({(e.bits, e.group) for e in strips}) == 1


def _stack(stacks: list[list[Matrix]], raw: _Layout, laid: _Layout, chains: int | None) -> _Part:
    flat = [each for stack in stacks for each in stack]
    strips = [each.strip for each in flat if isinstance(each, StripMatrix)]
    if len(strips) == len(flat):
        return _strips(strips, len(stacks), raw, laid, chains)
    numbers = [each.weight for each in flat if isinstance(each, Dense | Widened)]
    if len(numbers) != len(flat) or len({(each.dtype, each.shape) for each in numbers}) > 1:
        raise mixed_experts()
    rows, columns = numbers[0].shape
    dtype = numbers[0].dtype
    matrix = DeviceMatrix(_DTYPES[dtype], rows, columns, raw.add(numbers, dtype))
    num_bytes = sum(each.nbytes for each in numbers)
    return _Part(matrix, replace(matrix, weights=laid.room(num_bytes)), len(numbers))


def mixed_experts() -> UnsupportedModelError:
    """What to tell of a layer whose experts a kernel can't find by their numbers."""
    return UnsupportedModelError(
        "The experts of a layer are stored in different ways, which can't be run on the card yet.",
        "The model runs on the CPU.",
    )


def _strips(strips: Sequence[Strip], count: int, raw: _Layout, laid: _Layout, chains: int | None) -> _Part:
    """count: of matrices, each of the same number of strips below one another."""
    first, each_has = strips[0], len(strips) // count
    rows = [sum(e.rows for e in strips[at : at + each_has]) for at in range(0, len(strips), each_has)]
    if len({(e.bits, e.group, e.columns) for e in strips}) > 1 or len(set(rows)) > 1:
        raise mixed_experts()
    narrow = all(scales_fit(each, torch.float16) for each in strips)
    dtype = torch.float16 if narrow else torch.float32
    weights = raw.add([each.codes for each in strips], first.codes.dtype)
    scales, offsets = raw.add([each.scales for each in strips], dtype), NOWHERE
    if any(each.offsets is not None for each in strips):
        filled = [torch.zeros_like(e.scales) if e.offsets is None else e.offsets for e in strips]
        offsets = raw.add(filled, dtype)
    matrix = DeviceMatrix(
        f"codes{first.bits}",
        rows[0],
        first.columns,
        weights,
        scales=scales,
        offsets=offsets,
        blocks_a_scale=first.group // BLOCK,
        narrow_scales=narrow,
        most_chains=most_chains(rows[0], count) if chains is None else chains,
    )
    layout = matrix.layout
    scale_bytes = count * layout.num_scales * dtype.itemsize
    on_card = replace(
        matrix,
        weights=laid.room(count * layout.code_bytes),
        scales=laid.room(scale_bytes),
        offsets=laid.room(scale_bytes) if offsets else NOWHERE,
    )
    return _Part(matrix, on_card, count)
