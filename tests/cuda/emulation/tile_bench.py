"""Products with strips in tiles on the emulated card, and the same in NumPy, step by step and bit for bit."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from emulated_card import EmulatedCard, EmulatedCompiler

import engine.cuda
from engine.cuda.arguments import Activation, Grouping, Quantise, Swiglu, TiledProduct, Tiles
from engine.cuda.driver import Address, as_bytes
from engine.cuda.many_rows import KERNELS, Launch, ManyRows
from engine.cuda.tile_layout import MOST_CHAINS, TileLayout

SOURCES = Path(engine.cuda.__file__).parent / "kernels"
MAIN = "tiled.cu"
TEXT = "\n".join(
    f'#include "{name}"'
    for name in ("product_many.cu", "product_short.cu", "grouping.cu", "quantise.cu", "experts.cu", "norm.cu")
)
_OTHERS = {"mix_experts": 256, "swiglu": 256}  # threads of a block
BLOCK = 32


@dataclass(frozen=True)
class Codes:
    """A matrix (N, K) as whole numbers, scales and offsets (N, K / 32): where a group has 256 inputs, eight
    neighbours are equal. Scales are float32, or float16 where narrow.
    """

    bits: int
    codes: np.ndarray
    scales: np.ndarray
    offsets: np.ndarray | None = None
    group: int = 32
    narrow: bool = True
    most_chains: int = MOST_CHAINS

    @property
    def rows(self) -> int:
        return self.codes.shape[0]

    @property
    def blocks(self) -> int:
        return self.layout.blocks

    @property
    def layout(self) -> TileLayout:
        rows, columns = self.codes.shape
        return TileLayout(self.bits, rows, columns, self.group, self.most_chains)

    def product(self, form: str) -> ManyRows:
        return ManyRows(self.layout, form, is_plain=self.narrow and self.offsets is None)


def random_codes(
    rows: int,
    columns: int,
    *,
    bits: int,
    group: int = 32,
    offsets: bool = False,
    narrow: bool = True,
    seed: int = 0,
) -> Codes:
    """With the smallest and largest codes in whole blocks, too: sums as large as they can be."""
    random = np.random.default_rng(seed)
    lowest, highest = (-8, 7) if bits == 4 else (-127, 127)
    codes = random.integers(lowest, highest + 1, (rows, columns))
    codes[::3, :BLOCK] = lowest
    codes[1::3, :BLOCK] = highest

    def numbers() -> np.ndarray:
        found = random.standard_normal((rows, columns // group)) * 10.0 ** random.integers(-3, 3, (rows, 1))
        kept = found.astype(np.float16 if narrow else np.float32).astype(np.float32)
        return np.repeat(kept, group // BLOCK, axis=1)

    return Codes(bits, codes, numbers(), numbers() if offsets else None, group, narrow)


@dataclass(frozen=True)
class Rows:
    """Rows (T, K) in 8 bits. low: None with one plane."""

    high: np.ndarray
    low: np.ndarray | None
    scales: np.ndarray  # (T, K / 32)

    @property
    def numbers(self) -> np.ndarray:
        return self.high.astype(np.int64) if self.low is None else 254 * self.high.astype(np.int64) + self.low

    @property
    def sums(self) -> np.ndarray:
        rows, columns = self.high.shape
        return self.numbers.reshape(rows, columns // BLOCK, BLOCK).sum(-1).astype(np.float32)

    def taken(self, rows: np.ndarray) -> Rows:
        return Rows(self.high[rows], None if self.low is None else self.low[rows], self.scales[rows])


def random_rows(rows: int, columns: int, *, planes: int, seed: int = 1) -> Rows:
    random = np.random.default_rng(seed)
    high = random.integers(-127, 128, (rows, columns))
    low = random.integers(-127, 128, (rows, columns))
    high[::2, :BLOCK], low[::2, :BLOCK] = 127, 127
    high[1::4, :BLOCK], low[1::4, :BLOCK] = -127, -127
    scales = np.abs(random.standard_normal((rows, columns // BLOCK))) * 10.0 ** random.integers(
        -6, 4, (rows, 1)
    )
    scales[random.random(scales.shape) < 0.05] = 0.0
    return Rows(high, low if planes == 2 else None, scales.astype(np.float32))


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c in float32, rounded once: in float64 to the odd neighbour, which leaves float32 nothing to
    decide wrongly.
    """
    product = a.astype(np.float64) * b.astype(np.float64)  # exact
    wide = c.astype(np.float64)
    total = product + wide
    back = total - product
    error = (product - (total - back)) + (wide - back)
    even = total.view(np.int64) % 2 == 0
    towards = np.where(error > 0, np.inf, -np.inf)
    return np.where((error != 0) & even, np.nextafter(total, towards), total).astype(np.float32)


def expected(matrix: Codes, x: Rows) -> np.ndarray:
    """(T, N) float32, in the one order that kernels have."""
    total, chain = None, matrix.layout.stretch
    numbers = x.numbers.astype(np.float64)  # all sums are exact
    for first in range(0, matrix.blocks, chain):
        sums = np.zeros((len(x.scales), matrix.rows), np.float32)
        for block in range(first, min(first + chain, matrix.blocks)):
            part = slice(block * BLOCK, (block + 1) * BLOCK)
            dots = (numbers[:, part] @ matrix.codes[:, part].astype(np.float64).T).astype(np.float32)
            scale = x.scales[:, block, None]
            sums = fused(dots * matrix.scales[None, :, block], np.broadcast_to(scale, sums.shape), sums)
            if matrix.offsets is not None:
                moved = matrix.offsets[None, :, block] * scale
                sums = fused(np.broadcast_to(x.sums[:, block, None], sums.shape), moved, sums)
        total = sums if total is None else total + sums
    assert total is not None
    return total


def _by_stage(matrix: Codes, blocks: np.ndarray) -> np.ndarray:
    """(rows, K / 32, ...) as (tiles, stages, stretches, half of the rows, r, ...), with zeros around."""
    layout = matrix.layout
    tiles, chains, stretch = layout.tiles, layout.chains, layout.stretch
    padded = np.zeros((16 * tiles, chains * 4 * stretch, *blocks.shape[2:]), blocks.dtype)
    padded[: matrix.rows, : matrix.blocks] = blocks
    parts = padded.reshape(tiles, 2, 8, chains, 4, stretch, *blocks.shape[2:])
    ordered = parts.transpose(0, 3, 5, 4, 1, 2, *range(6, parts.ndim))
    return ordered.reshape(tiles, layout.stages, 4, 2, 8, *blocks.shape[2:])


def tiled_weights(matrix: Codes) -> np.ndarray:
    """As bytes, in the order that kernels/tiles.cuh tells."""
    codes = matrix.codes.reshape(matrix.rows, matrix.blocks, 2, 16)  # halves of a block
    if matrix.bits == 4:
        codes = ((codes[:, :, :1] & 15) | (codes[:, :, 1:] & 15) << 4).astype(np.uint8)
    parts = _by_stage(
        matrix, codes.astype(np.uint8)
    )  # (tile, stage, stretch, half of the rows, r, piece, 16)
    units = np.ascontiguousarray(parts.transpose(0, 1, 3, 5, 2, 4, 6))
    for stretch in range(4):
        units[..., stretch, :, :] = units[..., stretch, [r ^ 2 * stretch for r in range(8)], :]
    return units.reshape(-1)


def tiled_scales(matrix: Codes, scales: np.ndarray) -> np.ndarray:
    if matrix.group == BLOCK:
        parts = _by_stage(matrix, scales).transpose(0, 1, 2, 4, 3)
    else:
        padded = np.zeros((16 * matrix.layout.tiles, matrix.blocks // 8), np.float32)
        padded[: matrix.rows] = scales[:, ::8]
        parts = padded.reshape(-1, 2, 8, matrix.blocks // 8).transpose(0, 3, 2, 1)
    return (
        np.ascontiguousarray(parts)
        .astype(np.float16 if matrix.narrow else np.float32)
        .reshape(-1)
        .view(np.uint8)
    )


def interleaved(plane: np.ndarray) -> np.ndarray:
    """Of each block codes 4 q ... 4 q + 3, then codes 16 + 4 q ..., for q = 0 ... 3."""
    rows, columns = plane.shape
    parts = plane.reshape(rows, columns // BLOCK, 2, 4, 4).transpose(0, 1, 3, 2, 4)
    return np.ascontiguousarray(parts).astype(np.int8).reshape(rows, columns)


@dataclass
class TileBench:
    card: EmulatedCard
    compiler: EmulatedCompiler
    _held: list[Address] = field(default_factory=list)

    def __post_init__(self) -> None:
        sources = {path.name: path.read_text(encoding="utf-8") for path in SOURCES.glob("*.cu*")}
        code = self.compiler.compile({**sources, MAIN: TEXT}, MAIN, card=self.card.info)
        self._kernels = self.card.load(code, [*KERNELS, *_OTHERS])

    def put(self, values: np.ndarray) -> Address:
        address = self.card.allocate(max(values.nbytes, 1))
        self._held.append(address)
        self.card.upload(address, as_bytes(values))
        return address

    def get(self, address: Address, like: np.ndarray) -> np.ndarray:
        found = np.empty_like(like)
        self.card.download(as_bytes(found), address)
        return found

    def free(self) -> None:
        if not self.card.failed:
            for address in self._held:
                self.card.free(address)
        self._held.clear()

    def matrix(self, *experts: Codes) -> Tiles:
        """Of one, or of several, one an expert."""
        first = experts[0]

        def put(scales: list[np.ndarray | None]) -> int:
            pairs = zip(experts, scales, strict=True)
            return self.put(
                np.concatenate([tiled_scales(one, found) for one, found in pairs if found is not None])
            )

        return Tiles(
            codes=self.put(np.concatenate([tiled_weights(each) for each in experts])),
            scales=put([each.scales for each in experts]),
            offsets=0 if first.offsets is None else put([each.offsets for each in experts]),
            rows=first.rows,
            columns=first.codes.shape[1],
            blocks_a_scale=first.group // BLOCK,
            narrow_scales=first.narrow,
            stretch=first.layout.stretch,
            chains=first.layout.chains,
        )

    def activation(self, x: Rows) -> Activation:
        return Activation(
            high=self.put(interleaved(x.high)),
            low=0 if x.low is None else self.put(interleaved(x.low)),
            scales=self.put(x.scales),
            sums=self.put(x.sums),
            width=x.high.shape[1],
        )

    def product(
        self, launch: Launch, weights: Tiles, x: Activation, *, y: np.ndarray, **more: object
    ) -> np.ndarray:
        """y (T, N), filled or added to."""
        target = self.put(y)
        values = {"rows": len(y), "rows_each": 1, "stride": y.shape[1], **more}
        self.launch(launch, TiledProduct(weights=weights, x=x, y=target, **values))
        return self.get(target, y)

    def gates(
        self, launch: Launch, weights: Tiles, x: Activation, out: Activation, *, rows: int, **more: object
    ) -> None:
        """What is made of gates and ups, (rows, N / 2)."""
        width = weights.rows // 2
        y = self.put(np.full((rows, width), np.nan, np.float32))
        given = {"weights": weights, "x": x, "rows": rows, "rows_each": 1, "gated": 1, **more}
        if launch.rounds_gates:
            self.launch(launch, TiledProduct(out=out, **given))
        else:
            self.launch(launch, TiledProduct(y=y, stride=width, **given))
            self.launch(Launch("quantise_rows", (rows, 1, 1)), Quantise(x=y, out=out))

    def launch(self, launch: Launch, arguments: ctypes.Structure) -> None:
        self.card.launch(
            self._kernels[launch.kernel],
            arguments,
            grid=launch.grid,
            block=(KERNELS | _OTHERS)[launch.kernel],
            shared_bytes=launch.shared_bytes,
        )

    def gated(self, gate_up: np.ndarray) -> tuple[np.ndarray, Rows]:
        """(T, I) of (T, 2 I), and in two planes, by the kernel that does nothing else."""
        out, like = self._room_for(len(gate_up), gate_up.shape[1] // 2)
        self.launch(Launch("swiglu", (len(like), 1, 1)), Swiglu(gate_up=self.put(gate_up), out=out))
        return self.get(Address(out.values), like), self._rows_of(out, like)

    def quantised(self, x: np.ndarray) -> Rows:
        """In two planes."""
        out, like = self._room_for(*x.shape)
        self.launch(Launch("quantise_rows", (len(x), 1, 1)), Quantise(x=self.put(x), out=out))
        assert np.array_equal(self.get(Address(out.values), like), x)
        return self._rows_of(out, like)

    def codes_of(self, x: np.ndarray, *, planes: int) -> dict[str, np.ndarray]:
        """Of numbers (T, K), by the kernel that does nothing else: all that is in the card's memory."""
        out = self.room_for(*x.shape, planes=planes, values=False)
        self.launch(Launch("quantise_rows", (len(x), 1, 1)), Quantise(x=self.put(x), out=out))
        return self.forms_of(out, len(x))

    def room_for(self, rows: int, width: int, *, planes: int, values: bool) -> Activation:
        out, _ = self._room_for(rows, width)
        if planes == 1:
            out.low = 0
        if not values:
            out.values = 0
        return out

    def forms_of(self, x: Activation, rows: int) -> dict[str, np.ndarray]:
        """All that is there, as it lies."""
        blocks = np.empty((rows, x.width // BLOCK), np.float32)
        codes = np.empty((rows, x.width), np.int8)
        numbers = np.empty((rows, x.width), np.float32)
        forms = {"values": numbers, "high": codes, "low": codes, "scales": blocks, "sums": blocks}
        there = {name: getattr(x, name) for name in forms}
        return {name: self.get(Address(at), forms[name]) for name, at in there.items() if at}

    def _room_for(self, rows: int, width: int) -> tuple[Activation, np.ndarray]:
        values = np.full((rows, width), np.nan, np.float32)
        padded = -(-width // BLOCK) * BLOCK  # codes are there only for whole blocks
        codes, scales = (
            np.full((rows, padded), -1, np.int8),
            np.full((rows, padded // BLOCK), np.nan, np.float32),
        )
        whole = width == padded
        out = Activation(
            values=self.put(values),
            high=self.put(codes) if whole else 0,
            low=self.put(codes) if whole else 0,
            scales=self.put(scales) if whole else 0,
            sums=self.put(scales) if whole else 0,
            width=width,
        )
        return out, values

    def _rows_of(self, x: Activation, like: np.ndarray) -> Rows:
        """Codes stay in the card's order."""
        codes, scales = np.zeros(like.shape, np.int8), like[:, ::BLOCK].copy()
        if not x.high:
            return Rows(codes, codes, scales)
        high, low = (self.get(Address(each), codes) for each in (x.high, x.low))
        return Rows(high, low, self.get(Address(x.scales), scales))

    def grouped(self, experts: np.ndarray, *, count: int, tile_rows: int) -> tuple[Address, Address]:
        """Order and tiles of rows that take these experts."""
        order = self.put(np.full(experts.size, -1, np.int32))
        tiles = self.put(np.full(3 * (experts.size // tile_rows + count), -1, np.int32))
        grouping = Grouping(
            experts=self.put(experts.astype(np.int32)),
            order=order,
            tiles=tiles,
            count=experts.size,
            num_experts=count,
            tile_rows=tile_rows,
        )
        self.launch(Launch("group_rows", (count, 1, 1)), grouping)
        return order, tiles
