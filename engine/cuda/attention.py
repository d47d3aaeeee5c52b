"""Attention of one step's rows, as launches: from the QKV product's rows to what the output product reads."""

from __future__ import annotations

from dataclasses import dataclass

from engine.cuda.arguments import Activation, Attention, PageLayout, Rotary
from engine.cuda.driver import Address
from engine.cuda.kernel_set import KernelSet
from engine.cuda.rope_tables import RopeTables
from engine.cuda.step import StepBuffer
from engine.cuda.workspace import SPLIT, Workspace
from engine.kv_geometry import KvGeometry
from engine.models.spec import AttentionSpec


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
    ) -> None:
        """Of the workspace's rows of queries, keys and values, which change. Writes the step's rows of keys
        and values into pages, and `out` (T, A * D). qk_norm: float32 (A + G, D), or 0. index: the layer's.
        """
        layout = PageLayout(
            offset=geometry.layer_offsets[index], heads=spec.num_kv_heads, width=spec.head_dim
        )
        suffix = "codes" if geometry.format == "int8" else "numbers"
        self._rotate_and_keep(f"rotate_and_keep_{suffix}", spec, qk_norm, layout, shape)
        self._attend(f"attend_{suffix}", spec, layout, out, shape)

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
        self._kernels.launch(kernel, arguments, grid=(shape.rows, heads, 1))

    def _attend(
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
