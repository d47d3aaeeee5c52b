"""Which kernel multiplies several rows with strips in tiles, and with what grid: products of prompts and of
short turns, one matrix for all rows or one an expert. All give the same bits; this is about time alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.config import Activations
from engine.cuda.row_forms import INTEGER_FORMS, PLANES
from engine.cuda.tile_layout import TILE, TileLayout
from engine.weights.strips import BLOCK

_SHORT_ROWS = 16
_STEP_BLOCKS = {4: 4, 8: 2}  # of 32 inputs, by bits


@dataclass(frozen=True)
class _Shape:
    """One kernel's, as its text has it.

    warps: of a block. rows, outputs: that a block makes. plain: it can't do everything, see `is_plain`.
    staged: through shared memory, whose size the launch says. resident: blocks that a processor runs at a
    time. alone: of how many blocks that run together the time passes at least, since fewer don't keep it
    busy. effort: of an output, relative to the others: instructions for a block of 32 inputs of 16 outputs
    and 8 rows, counted for 4 bits and two planes, where the large one has 23.
    """

    warps: int
    rows: int
    outputs: int
    plain: bool = False
    staged: bool = True
    resident: int = 1
    alone: float = 1.0
    effort: float = 1.0


_SHAPES = {
    "short": _Shape(8, 16, 32, plain=True, staged=False, resident=2, effort=2.6),
    "turn": _Shape(8, 64, 32, plain=True, staged=False, effort=1.95),
    "general16": _Shape(8, 16, 32, staged=False, resident=2, effort=3.0),
    "general64": _Shape(8, 64, 32, staged=False, effort=2.2),
    "scattered": _Shape(4, 8, 128, plain=True, resident=5, alone=2.0, effort=2.0),
    "medium": _Shape(4, 32, 128, plain=True, resident=3, alone=1.5, effort=1.25),
    "large": _Shape(8, 64, 128, plain=True, resident=2, alone=1.2),
    "general": _Shape(4, 32, 128, resident=3, alone=1.5, effort=1.8),
}
_DENSE = ("turn", "medium", "large", "general64", "general")  # one matrix for all rows, which are not short
_GROUPED = ("scattered", "medium", "large")  # one an expert

PRODUCTS = {
    f"product_codes{bits}_{form}_{suffix}": 32 * shape.warps
    for bits in (4, 8)
    for form in INTEGER_FORMS
    for suffix, shape in _SHAPES.items()
}
KERNELS = {**PRODUCTS, "group_rows": 256, "quantise_rows": 256}
"""Threads of a block, by name."""


@dataclass(frozen=True)
class Launch:
    """rounds_gates: whether what is made of gates and ups comes in 8 bits as well, since a block makes all
    that share a scale.
    """

    kernel: str
    grid: tuple[int, int, int]
    shared_bytes: int = 0
    rounds_gates: bool = False


@dataclass(frozen=True)
class ManyRows:
    """A product with a matrix in tiles, or with those of experts.

    form: of the rows, one of INTEGER_FORMS. is_plain: scales are float16, and there are no offsets; then the
    quickest kernels can do it.
    """

    layout: TileLayout
    form: Activations
    is_plain: bool

    def launch(self, rows: int, *, multiprocessors: int) -> Launch:
        """One matrix for all of `rows` rows."""
        if rows <= _SHORT_ROWS:
            return self.launch_with("short" if self.is_plain else "general16", rows)
        return self.launch_with(
            min(self._suffixes(), key=lambda each: self._time(each, rows, multiprocessors)), rows
        )

    def launch_with(self, suffix: str, rows: int) -> Launch:
        """With the kernel whose name ends so."""
        return self._launch(suffix, -(-rows // _SHAPES[suffix].rows))

    def grouped_launch(self, rows: int, *, num_experts: int, tile_rows: int) -> Launch:
        """One matrix an expert, for rows in tiles (see `tile_rows_for`)."""
        names = _GROUPED if self.is_plain else ("general",)
        suffix = next(name for name in names if _SHAPES[name].rows == tile_rows)
        return self._launch(suffix, num_tiles(rows, num_experts=num_experts, tile_rows=tile_rows))

    def _suffixes(self) -> Iterator[str]:
        return (suffix for suffix in _DENSE if self.is_plain or not _SHAPES[suffix].plain)

    def _time(self, suffix: str, rows: int, multiprocessors: int) -> float:
        """In no unit, of the processor that has most to do: it takes its blocks in turns, as many at a time
        as it has room for.
        """
        shape = _SHAPES[suffix]
        blocks = -(-rows // shape.rows) * self._blocks_of_outputs(shape)
        turns, left = divmod(-(-blocks // multiprocessors), shape.resident)
        at_once = turns * shape.resident + (max(left, shape.alone) if left else 0)
        # Without shared memory a block leaves out the columns that aren't there.
        made = shape.rows if shape.staged else min(shape.rows, -(-rows // 8) * 8)
        return at_once * made * shape.outputs * shape.effort

    def _blocks_of_outputs(self, shape: _Shape) -> int:
        return -(-self.layout.tiles * TILE // shape.outputs)

    def _launch(self, suffix: str, blocks_of_rows: int) -> Launch:
        shape = _SHAPES[suffix]
        return Launch(
            f"product_codes{self.layout.bits}_{self.form}_{suffix}",
            (blocks_of_rows, self._blocks_of_outputs(shape), 1),
            self._shared_bytes(shape) if shape.staged else 0,
            rounds_gates=shape.outputs // 2 % BLOCK == 0,
        )

    def _shared_bytes(self, shape: _Shape) -> int:
        """Two steps, as `SharedStep` in kernels/product_many.cu lays them out."""
        blocks = _STEP_BLOCKS[self.layout.bits]
        rows = shape.rows * (PLANES[self.form] * BLOCK + 4 * (1 if shape.plain else 2))
        weights = shape.outputs * (BLOCK * self.layout.bits // 8 + 8 * shape.plain)
        padded = -(-(rows + weights) // 128) * 128 + 128 // blocks
        return 2 * blocks * padded


def tile_rows_for(rows: int, *, num_experts: int, is_plain: bool) -> int:
    """How many rows of one expert are a tile. is_plain: every matrix that is multiplied with them."""
    if not is_plain:
        return _SHAPES["general"].rows
    each = rows // num_experts
    return _SHAPES["scattered" if each < 12 else "medium" if each < 64 else "large"].rows


def num_tiles(rows: int, *, num_experts: int, tile_rows: int) -> int:
    """As many as there may be, however the rows are shared out."""
    return rows // tile_rows + num_experts


def most_tiles(rows: int, *, num_experts: int) -> int:
    """Of any tile size."""
    return num_tiles(rows, num_experts=num_experts, tile_rows=_SHAPES["scattered"].rows)
