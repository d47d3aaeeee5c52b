"""One step through the layers, as launches. A prompt and a token differ in the number of rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from engine.cuda.arguments import Activation, Mixture, Norm, Product, Route, Swiglu
from engine.cuda.attention import AttentionRunner, StepShape
from engine.cuda.driver import NOWHERE, Address
from engine.cuda.kernel_set import KernelSet
from engine.cuda.matrices import DeviceLinear, DeviceMatrix
from engine.cuda.rope_tables import RopeTables
from engine.cuda.step import StepBuffer
from engine.cuda.workspace import Rows, Workspace
from engine.kv_geometry import KvGeometry
from engine.models.spec import AttentionSpec, MoeSpec

Activations = Literal["float", "int8", "int8x2"]
PLANES = {"float": 0, "int8": 1, "int8x2": 2}

_OUTPUTS_A_BLOCK = 8  # of products: one a warp
_MANY_ROWS = 8  # of products, as in kernels/product.cu
_MIX_COLUMNS = 256


@dataclass(frozen=True)
class DeviceExperts:
    spec: MoeSpec
    router: DeviceLinear
    gate_up: DeviceLinear
    down: DeviceLinear


@dataclass(frozen=True)
class DeviceDense:
    gate_up: DeviceLinear
    down: DeviceLinear


@dataclass(frozen=True)
class DeviceLayer:
    """Norms are float32 (H,); qk_norm (A + G, D), or 0."""

    attention: AttentionSpec
    attention_norm: Address
    qkv: DeviceLinear
    qk_norm: Address
    output: DeviceLinear
    feed_forward_norm: Address
    feed_forward: DeviceDense | DeviceExperts
    intermediate_size: int


class LayerRunner:
    """Launches layers of one model. Nothing here waits for the card."""

    def __init__(
        self,
        kernels: KernelSet,
        workspace: Workspace,
        step: StepBuffer,
        tables: RopeTables,
        *,
        activations: Activations,
        norm_eps: float,
    ) -> None:
        self._kernels = kernels
        self._space = workspace
        self._step = step
        self._attention_runner = AttentionRunner(kernels, workspace, step, tables, norm_eps=norm_eps)
        self._form = activations
        self._planes = PLANES[activations]
        self._eps = norm_eps

    def run(self, layer: DeviceLayer, index: int, geometry: KvGeometry, shape: StepShape) -> None:
        """Changes the step's hidden states in place, and writes its rows of keys and values."""
        self._attention(layer, index, geometry, shape)
        if isinstance(layer.feed_forward, DeviceExperts):
            self._mixture(layer, layer.feed_forward, shape.rows)
        else:
            self._dense(layer, layer.feed_forward, shape.rows)

    def logits(self, final_norm: Address, head: DeviceLinear, *, first_row: int, rows: int) -> None:
        """Of some of the step's rows, into the workspace (rows, V)."""
        hidden = self._hidden_row(first_row, head.columns)
        x = self._norm(hidden, final_norm, [head], rows)
        self._product(head, x, self._space.logits, rows=rows)

    def _hidden_row(self, row: int, width: int) -> Address:
        return Address(self._step.hidden + 4 * row * width)

    def _attention(self, layer: DeviceLayer, index: int, geometry: KvGeometry, shape: StepShape) -> None:
        spec, space, rows = layer.attention, self._space, shape.rows
        x = self._norm(self._step.hidden, layer.attention_norm, [layer.qkv], rows)
        self._product(layer.qkv, x, space.qkv, rows=rows)
        attended = self._rows_for(space.attended, spec.q_dim, [layer.output])
        self._attention_runner.run(spec, layer.qk_norm, index, geometry=geometry, shape=shape, out=attended)
        self._product(layer.output, attended, self._step.hidden, rows=rows, adds=True)

    def _dense(self, layer: DeviceLayer, dense: DeviceDense, rows: int) -> None:
        space = self._space
        x = self._norm(self._step.hidden, layer.feed_forward_norm, [dense.gate_up], rows)
        self._product(dense.gate_up, x, space.gate_up, rows=rows)
        gated = self._rows_for(space.gated, layer.intermediate_size, [dense.down])
        self._kernels.launch("swiglu", Swiglu(gate_up=space.gate_up, out=gated), grid=(rows, 1, 1))
        self._product(dense.down, gated, self._step.hidden, rows=rows, adds=True)

    def _mixture(self, layer: DeviceLayer, experts: DeviceExperts, rows: int) -> None:
        space, spec = self._space, experts.spec
        x = self._norm(self._step.hidden, layer.feed_forward_norm, [experts.router, experts.gate_up], rows)
        self._product(experts.router, x, space.router, rows=rows)
        route = Route(
            logits=space.router,
            experts=space.experts,
            weights=space.expert_weights,
            count=spec.num_experts,
            chosen=spec.top_k,
            normalises=spec.normalise_top_k,
        )
        self._kernels.launch("route", route, grid=(rows, 1, 1))
        chosen_rows = rows * spec.top_k
        self._product(
            experts.gate_up, x, space.gate_up, rows=chosen_rows, experts=space.experts, each=spec.top_k
        )
        gated = self._rows_for(space.gated, spec.intermediate_size, [experts.down])
        self._kernels.launch("swiglu", Swiglu(gate_up=space.gate_up, out=gated), grid=(chosen_rows, 1, 1))
        self._product(experts.down, gated, space.expert_outputs, rows=chosen_rows, experts=space.experts)
        width = experts.down.rows
        mixture = Mixture(
            y=space.expert_outputs,
            weights=space.expert_weights,
            hidden=self._step.hidden,
            width=width,
            chosen=spec.top_k,
        )
        self._kernels.launch("mix_experts", mixture, grid=(-(-width // _MIX_COLUMNS), rows, 1))

    def _norm(self, x: Address, weight: Address, readers: Sequence[DeviceLinear], rows: int) -> Activation:
        """Rows of x behind RMSNorm, in the forms that their readers take."""
        out = self._rows_for(self._space.x, readers[0].columns, readers)
        self._kernels.launch("rms_norm", Norm(x=x, weight=weight, out=out, eps=self._eps), grid=(rows, 1, 1))
        return out

    def _rows_for(self, rows: Rows, width: int, readers: Sequence[DeviceLinear]) -> Activation:
        has_strips = any(each.has_strips for each in readers)
        values = self._planes == 0 or any(each.has_numbers for each in readers)
        return rows.of(width, values=values, planes=self._planes if has_strips else 0)

    def _product(
        self,
        linear: DeviceLinear,
        x: Activation,
        y: Address,
        *,
        rows: int,
        adds: bool = False,
        experts: Address = NOWHERE,
        each: int = 1,
    ) -> None:
        """y (rows, N). each: rows of y that share one of x. experts: which matrix each row takes."""
        first = 0
        for part in linear.parts:
            arguments = Product(
                weights=part.weights,
                scales=part.scales,
                offsets=part.offsets,
                bias=0 if not linear.bias else linear.bias + 4 * first,
                x=x,
                y=y + 4 * first,
                experts=experts,
                stride=linear.rows,
                outputs=part.rows,
                rows=rows,
                rows_each=each,
                blocks_a_scale=part.blocks_a_scale,
                narrow_scales=part.narrow_scales,
                adds=adds,
            )
            # Rows that take different matrices have nothing to share.
            at_once = 1 if rows == 1 or experts else _MANY_ROWS
            kernel = f"{self._product_name(part)}_{'one' if at_once == 1 else 'many'}"
            grid = (-(-part.rows // _OUTPUTS_A_BLOCK), -(-rows // at_once), 1)
            self._kernels.launch(kernel, arguments, grid=grid)
            first += part.rows

    def _product_name(self, part: DeviceMatrix) -> str:
        return f"product_{part.kind}_{self._form}" if part.is_strip else f"product_{part.kind}"
