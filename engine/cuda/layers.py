"""One step through the layers, as launches. A prompt and a token differ in the number of rows alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.config import Activations
from engine.cuda.arguments import Activation, Mixture, Route, Router, Swiglu
from engine.cuda.attention import AttentionRunner, StepShape
from engine.cuda.driver import NOWHERE, Address
from engine.cuda.kernel_set import KernelSet
from engine.cuda.matrices import DeviceLinear
from engine.cuda.product_rows import Normed, Plain
from engine.cuda.products import ProductRunner
from engine.cuda.rope_tables import RopeTables
from engine.cuda.router_sizes import logits_a_block, router_bytes
from engine.cuda.step import StepBuffer
from engine.cuda.workspace import ROUTER_ROWS, Workspace
from engine.kv_geometry import KvGeometry
from engine.models.spec import AttentionSpec, MoeSpec

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
        self._eps = norm_eps
        self._products = ProductRunner(kernels, workspace, activations=activations, norm_eps=norm_eps)

    def run(self, layer: DeviceLayer, index: int, geometry: KvGeometry, shape: StepShape) -> None:
        """Changes the step's hidden states in place, and writes its rows of keys and values."""
        self._attention(layer, index, geometry, shape)
        if isinstance(layer.feed_forward, DeviceExperts):
            self._mixture(layer, layer.feed_forward, shape.rows)
        else:
            self._dense(layer, layer.feed_forward, shape.rows)

    def logits(self, final_norm: Address, head: DeviceLinear, *, first_row: int, rows: int) -> None:
        """Of some of the step's rows, into the workspace (rows, V)."""
        hidden = Address(self._step.hidden + 4 * first_row * head.columns)
        self._products.run(head, Normed(hidden, final_norm), self._space.logits, rows=rows)

    def _attention(self, layer: DeviceLayer, index: int, geometry: KvGeometry, shape: StepShape) -> None:
        spec, space, rows = layer.attention, self._space, shape.rows
        # A layer is much like the one before it.
        x = Normed(self._step.hidden, layer.attention_norm, layer.feed_forward.down)
        # Splits ask for what they have of the cache while others run, and the output product for weights.
        has_splits = shape.splits > 1
        self._products.run(layer.qkv, x, space.qkv, rows=rows, lets_early=has_splits)
        attended = self._products.rows_for(space.attended, spec.q_dim, [layer.output])
        self._attention_runner.run(
            spec,
            layer.qk_norm,
            index,
            geometry=geometry,
            shape=shape,
            out=attended,
            lets_early=has_splits and self._products.is_spread(layer.output, rows),
        )
        self._products.run(
            layer.output,
            attended,
            self._step.hidden,
            rows=rows,
            adds=True,
            lets_early=True,
            behind_splits=has_splits,
        )

    def _dense(self, layer: DeviceLayer, dense: DeviceDense, rows: int) -> None:
        space = self._space
        x = Normed(self._step.hidden, layer.feed_forward_norm, layer.output, is_near=True)
        gated = self._products.rows_for(space.gated, layer.intermediate_size, [dense.down])
        if not self._products.gates(dense.gate_up, x, gated, rows=rows, lets_early=True):
            self._products.run(dense.gate_up, x, space.gate_up, rows=rows)
            self._kernels.launch("swiglu", Swiglu(gate_up=space.gate_up, out=gated), grid=(rows, 1, 1))
        self._products.run(dense.down, gated, self._step.hidden, rows=rows, adds=True, lets_early=True)

    def _mixture(self, layer: DeviceLayer, experts: DeviceExperts, rows: int) -> None:
        space, spec = self._space, experts.spec
        both = experts.gate_up, experts.down
        choosing = self._products.choosing(*both, rows, taken=spec.top_k, count=spec.num_experts)
        x = self._route(layer, experts, rows, chooses=choosing is None)
        taken = rows * spec.top_k
        chosen = choosing or self._products.grouped(both, rows, taken=spec.top_k, count=spec.num_experts)
        gated: Activation | Plain | None = self._products.gates_of_experts(
            experts.gate_up, experts.down, x, rows=taken, experts=chosen
        )
        if gated is None:
            self._products.run(experts.gate_up, x, space.gate_up, rows=taken, experts=chosen)
            gated = self._products.rows_for(space.gated, spec.intermediate_size, [experts.down])
            self._kernels.launch("swiglu", Swiglu(gate_up=space.gate_up, out=gated), grid=(taken, 1, 1))
        each = replace(chosen, rows_each=1)
        self._products.run(experts.down, gated, space.expert_outputs, rows=taken, experts=each, known=True)
        width = experts.down.rows
        mixture = Mixture(
            y=space.expert_outputs,
            weights=NOWHERE if choosing else space.expert_weights,
            logits=space.router,
            hidden=self._step.hidden,
            width=width,
            chosen=spec.top_k,
            count=spec.num_experts,
            normalises=spec.normalise_top_k,
        )
        self._kernels.launch("mix_experts", mixture, grid=(-(-width // _MIX_COLUMNS), rows, 1))

    def _route(self, layer: DeviceLayer, experts: DeviceExperts, rows: int, *, chooses: bool) -> Activation:
        """The router's logits, and where it `chooses` which experts each row takes, into the workspace.
        Returns what these read.
        """
        space, spec, router = self._space, experts.spec, experts.router
        hidden = Normed(self._step.hidden, layer.feed_forward_norm)
        route = Route(
            logits=space.router,
            experts=space.experts,
            weights=space.expert_weights,
            count=spec.num_experts,
            chosen=spec.top_k,
            normalises=spec.normalise_top_k,
        )
        part = router.parts[0]
        at_once = rows <= ROUTER_ROWS and len(router.parts) == 1 and not router.bias
        each = logits_a_block(part)
        if at_once and each:
            out = self._products.rows_for(space.x, part.columns, [experts.gate_up])
            arguments = Router(
                x=hidden.values,
                norm=hidden.weight,
                out=out,
                weights=part.weights,
                route=route,
                arrivals=space.router_arrivals if chooses else NOWHERE,
                eps=self._eps,
                each=each,
            )
            # One more block leaves the row for the experts.
            grid = (-(-spec.num_experts // each) + 1, rows, 1)
            name = f"router_{part.kind}"
            self._kernels.launch(name, arguments, grid=grid, shared_bytes=router_bytes(part, each))
            return out
        x = self._products.normed(hidden, [router, experts.gate_up], rows)
        self._products.run(router, x, space.router, rows=rows)
        if chooses:
            self._kernels.launch("route", route, grid=(rows, 1, 1))
        return x
