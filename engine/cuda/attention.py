"""Attention of one step's rows, as launches: from the QKV product's rows to what the output product reads.

Over 8-bit pages a single token is one launch. Many are two, of which the first writes keys and values and the
second goes through the same splits with the same sums, so that a token has the same bits either way. Behind a
long conversation a few would keep few of the card's processors busy with that, so there splits are gone
through all at once (`kernels/attend_short.cu`), and put together by another launch. Heads
whose width tensor cores can't take or of which an odd part turns, and pages of float32, have slower kernels:
`kernels/attention.cu`.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.cuda.arguments import (
    Activation,
    Attention,
    CodeAttention,
    PageLayout,
    Rotary,
    ShortAttention,
)
from engine.cuda.driver import Address
from engine.cuda.kernel_set import KernelSet
from engine.cuda.rope_tables import RopeTables
from engine.cuda.step import StepBuffer
from engine.cuda.workspace import SPLIT, Workspace
from engine.kv_geometry import KvGeometry
from engine.models.spec import AttentionSpec

# As in kernels/attend_rows.cuh and attend_short.cu.
_BLOCK_ROWS = 32  # tokens times heads that share keys
_ROWS_SHARED_BYTES = 53248
_SHORT_RESIDENT = 2  # blocks of a processor at once
_JOIN_ROWS = 8  # of a block
_CHUNK = 128  # features
_QUERY_BYTES = 64  # of shared memory, for each feature
_TOKEN_WIDTHS = (128, 512)  # of heads, up to which there are kernels
_TOKEN_GROUP = 8  # heads that share keys, up to which the first of these goes
_ROWS_WIDTHS = (128, 256, 512)
_WIDTH_UNIT = 32
_ROTATED_UNIT = 8  # features: four neighbours turn with four neighbours
_HEADS_AT_ONCE = 8  # that a block rotates
_NARROW_HEAD = 128  # features; wider ones have kernels of their own


@dataclass(frozen=True)
class StepShape:
    """What of a step its launches depend on. rows: its tokens. splits: of attention, enough for the last of
    them (`splits_for`); where there are more, nothing happens in these.
    """

    rows: int
    splits: int


def splits_for(length: int) -> int:
    """How many splits the first `length` tokens are in."""
    return -(-length // SPLIT)


def splits_at_once(spec: AttentionSpec, shape: StepShape) -> int:
    """How many splits the rows of one block see, at most."""
    if not spec.window:
        return shape.splits
    group = spec.num_heads // spec.num_kv_heads
    tokens = min(shape.rows, (_BLOCK_ROWS - 2) // group + 2)  # the first and the last one not with all heads
    return min(shape.splits, (spec.window + tokens - 1 + SPLIT - 2) // SPLIT + 1)


def joining_blocks(kv_heads: int, multiprocessors: int) -> int:
    """How many blocks of each head of keys and values may put a token's splits together. All but the last of
    them wait for others, which may not have begun: a processor has to be left for these.
    """
    return 1 + (multiprocessors - 1) // kv_heads


def _suits_tensor_cores(spec: AttentionSpec) -> bool:
    width, rotated = spec.head_dim, spec.rope.dim
    return width % _WIDTH_UNIT == 0 and width <= _ROWS_WIDTHS[-1] and rotated % _ROTATED_UNIT == 0


class AttentionRunner:
    """Launches attention of one model's layers. Nothing here waits for the card."""

    def __init__(
        self,
        kernels: KernelSet,
        workspace: Workspace,
        step: StepBuffer,
        tables: RopeTables,
        *,
        norm_eps: float,
    ) -> None:
        self._kernels = kernels
        self._space = workspace
        self._step = step
        self._tables = tables
        self._eps = norm_eps

    def run(
        self,
        spec: AttentionSpec,
        qk_norm: Address,
        index: int,
        *,
        geometry: KvGeometry,
        shape: StepShape,
        out: Activation,
        lets_early: bool = False,
    ) -> None:
        """Of the workspace's rows of queries, keys and values, which change. Writes the step's rows of keys
        and values into pages, and `out` (T, A * D). qk_norm: float32 (A + G, D), or 0. index: the layer's.
        lets_early: whether the launch behind it may begin before these rows are there.
        """
        layout = PageLayout(
            offset=geometry.layer_offsets[index], heads=spec.num_kv_heads, width=spec.head_dim
        )
        suffix = "codes" if geometry.format == "int8" else "numbers"
        is_quick = suffix == "codes" and _suits_tensor_cores(spec)
        if is_quick and shape.rows == 1:
            self._attend_token(spec, qk_norm, layout, out, shape, lets_early=lets_early)
            return
        self._rotate_and_keep(f"rotate_and_keep_{suffix}", spec, qk_norm, layout, shape)
        if is_quick:
            self._attend_rows(spec, qk_norm, layout, out, shape)
        else:
            self._attend_slowly(f"attend_{suffix}", spec, layout, out, shape)

    def _attend_token(
        self,
        spec: AttentionSpec,
        qk_norm: Address,
        layout: PageLayout,
        out: Activation,
        shape: StepShape,
        *,
        lets_early: bool,
    ) -> None:
        group = spec.num_heads // spec.num_kv_heads
        is_small = spec.head_dim <= _TOKEN_WIDTHS[0] and group <= _TOKEN_GROUP
        width = _TOKEN_WIDTHS[0 if is_small else 1]
        arguments = self._code_attention(spec, qk_norm, layout, out, shape)
        arguments.lets_early = lets_early
        grid = (spec.num_kv_heads, shape.splits, 1)
        self._kernels.launch(f"attend_token_{width}", arguments, grid=grid)

    def _attend_rows(
        self, spec: AttentionSpec, qk_norm: Address, layout: PageLayout, out: Activation, shape: StepShape
    ) -> None:
        width = next(width for width in _ROWS_WIDTHS if spec.head_dim <= width)
        tiles = -(-shape.rows * (spec.num_heads // spec.num_kv_heads) // _BLOCK_ROWS)
        arguments = self._code_attention(spec, qk_norm, layout, out, shape)
        splits, pairs = splits_at_once(spec, shape), tiles * spec.num_kv_heads
        room = self._space.partial_bytes // (4 * _BLOCK_ROWS * splits * (width + 2))
        if splits > 1 and pairs < self._kernels.card.multiprocessors and room > 0:
            for first in range(0, pairs, room):
                count = min(room, pairs - first)
                short = ShortAttention(
                    all=arguments, tiles=tiles, first_pair=first, pairs=count, splits=splits
                )
                self._attend_short(short, width)
            return
        self._kernels.launch(
            f"attend_rows_{width}",
            arguments,
            grid=(tiles, spec.num_kv_heads, 1),
            shared_bytes=_ROWS_SHARED_BYTES + _QUERY_BYTES * width,
        )

    def _attend_short(self, arguments: ShortAttention, width: int) -> None:
        """All splits of pairs of 32 rows and a head of keys and values, as many at once as there is room
        for.
        """
        pairs = arguments.pairs
        resident = _SHORT_RESIDENT * self._kernels.card.multiprocessors
        self._kernels.launch(
            f"attend_short_{width}",
            arguments,
            grid=(min(pairs * arguments.splits, resident), 1, 1),
            shared_bytes=_ROWS_SHARED_BYTES + _QUERY_BYTES * width,
        )
        self._kernels.launch(
            "join_short", arguments, grid=(pairs, _BLOCK_ROWS // _JOIN_ROWS, width // _CHUNK)
        )

    def _code_attention(
        self, spec: AttentionSpec, qk_norm: Address, layout: PageLayout, out: Activation, shape: StepShape
    ) -> CodeAttention:
        cosines, sines = self._tables.of(spec.rope)
        return CodeAttention(
            step=self._step.step_of(shape.rows),
            qkv=self._space.qkv,
            norm=qk_norm,
            cosines=cosines,
            sines=sines,
            partials=self._space.partials,
            arrivals=self._space.arrivals,
            out=out,
            layout=layout,
            query_heads=spec.num_heads,
            window=spec.window or 0,
            rows=shape.rows,
            rotated=spec.rope.dim,
            joining=joining_blocks(spec.num_kv_heads, self._kernels.card.multiprocessors),
            scale=spec.scale,
            eps=self._eps,
        )

    def _rotate_and_keep(
        self, kernel: str, spec: AttentionSpec, qk_norm: Address, layout: PageLayout, shape: StepShape
    ) -> None:
        cosines, sines = self._tables.of(spec.rope)
        arguments = Rotary(
            step=self._step.step_of(shape.rows),
            qkv=self._space.qkv,
            norm=qk_norm,
            cosines=cosines,
            sines=sines,
            layout=layout,
            query_heads=spec.num_heads,
            rotated=spec.rope.dim,
            eps=self._eps,
        )
        heads = spec.num_heads + 2 * spec.num_kv_heads
        if spec.head_dim > _NARROW_HEAD:
            kernel += "_wide"
        self._kernels.launch(kernel, arguments, grid=(shape.rows, -(-heads // _HEADS_AT_ONCE), 1))

    def _attend_slowly(
        self, kernel: str, spec: AttentionSpec, layout: PageLayout, out: Activation, shape: StepShape
    ) -> None:
        """As many rows at a time as the workspace has room for."""
        at_once = self._space.partial_rows(spec, shape.splits)
        for first_row in range(0, shape.rows, at_once):
            rows = min(at_once, shape.rows - first_row)
            arguments = Attention(
                step=self._step.step_of(shape.rows),
                qkv=self._space.qkv,
                partials=self._space.partials,
                out=out,
                layout=layout,
                query_heads=spec.num_heads,
                window=spec.window or 0,
                first_row=first_row,
                splits=shape.splits,
                scale=spec.scale,
            )
            self._kernels.launch(kernel, arguments, grid=(shape.splits, spec.num_heads, rows))
            self._kernels.launch("combine_splits", arguments, grid=(rows, 1, 1))
