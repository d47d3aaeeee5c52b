"""Products with the model's matrices, as launches: which kernel for which weights and how many rows."""

from __future__ import annotations

from collections.abc import Sequence

from engine.config import Activations
from engine.cuda.arguments import (
    Activation,
    Grouping,
    Norm,
    Product,
    ProductValues,
    Quantise,
    TiledProduct,
)
from engine.cuda.driver import NOWHERE, Address
from engine.cuda.few_products import GATED_SLOTS, GATED_VALUE_SLOTS, FewProducts
from engine.cuda.few_rows import MOST_TAKEN
from engine.cuda.kernel_set import KernelSet
from engine.cuda.many_rows import Launch, ManyRows, tile_rows_for
from engine.cuda.matrices import DeviceLinear, DeviceMatrix
from engine.cuda.product_rows import NO_TARGET, Experts, Normed, Plain, Target
from engine.cuda.row_forms import PLANES
from engine.cuda.workspace import Rows, Workspace

_OUTPUTS_A_BLOCK, _TILES_A_BLOCK = 8, 8  # of products of numbers: one a warp
_MANY_ROWS = 8  # at a time, as in kernels/product.cu
_FEW_TAKING = 4  # tokens whose experts are found one by one
_MOST_LISTED = 128  # experts that a warp chooses from, see kernels/route.cuh


class ProductRunner:
    """Of one model. Nothing here waits for the card."""

    def __init__(
        self, kernels: KernelSet, workspace: Workspace, *, activations: Activations, norm_eps: float
    ) -> None:
        self._kernels = kernels
        self._space = workspace
        self._form = activations
        self._planes = PLANES[activations]
        self._eps = norm_eps
        self._few = FewProducts(kernels, activations=activations, norm_eps=norm_eps)

    def run(
        self,
        linear: DeviceLinear,
        x: Activation | Normed | Plain,
        y: Address,
        *,
        rows: int,
        adds: bool = False,
        experts: Experts | None = None,
        known: bool = False,
        lets_early: bool = False,
        behind_splits: bool = False,
    ) -> None:
        """y (rows, N), set or added to. Plain rows are few, or of few rows' experts. known: which experts
        they take has been known since before the launch before this one. lets_early: see ProductFew.
        behind_splits: attention of several splits is launched before it, whose blocks leave one by one.
        """
        # What follows experts reads what was written two launches before without waiting.
        assert experts is None or not lets_early
        if isinstance(x, Normed) and not self._few.take(linear, rows, slots=1):
            x = self.normed(x, [linear], rows)
        first, behind = 0, self._few.behind(linear, x, rows, splits=behind_splits)
        for part in linear.parts:
            bias = Address(linear.bias + 4 * first) if linear.bias else NOWHERE
            target = Target(Address(y + 4 * first), linear.rows, bias, adds)
            if not (part.is_strip and self._planes):
                assert isinstance(x, Activation)
                self._numbers(part, x, target, rows, experts)
            elif experts is not None and not experts.tile_rows:
                takers = rows // experts.rows_each
                self._few.run(part, x, target, 1, experts=experts, takers=takers, known=known)
            elif experts is None and rows <= self._few.most_tokens(part, slots=1):
                taken = self._few.run(part, x, target, rows, lets_early=lets_early, behind=behind)
                behind = None if behind is None else taken  # of the next part
                self._few.remember(linear, taken)
            else:
                assert isinstance(x, Activation)
                self._many(part, x, target, rows, experts)
            first += part.rows

    def is_spread(self, output: DeviceLinear, rows: int) -> bool:
        """Whether each processor has one block of it behind attention of several splits."""
        return self._few.spreads(output, rows)

    def gates(
        self, linear: DeviceLinear, x: Normed, gated: Activation, *, rows: int, lets_early: bool = False
    ) -> bool:
        """Gates with their ups, and what comes of these. False where they aren't made together. lets_early:
        see ProductFew.
        """
        part = linear.parts[0]
        if not self._has_gates(linear):
            return False
        if rows == 1 and self._few.take(linear, rows, slots=GATED_SLOTS):  # sums of more take much memory
            behind = self._few.behind(linear, x, rows, splits=False)
            self._few.run(part, x, NO_TARGET, rows, gated=gated, behind=behind, lets_early=lets_early)
            return True
        target = Target(self._space.gate_up, part.rows // 2, NOWHERE, False)
        launch = self._many(part, self.normed(x, [linear], rows), target, rows, None, gated=gated)
        if not launch.rounds_gates:
            self._kernels.launch("quantise_rows", Quantise(x=target.y, out=gated), grid=(rows, 1, 1))
        return True

    def gates_of_experts(
        self, gate_up: DeviceLinear, down: DeviceLinear, x: Activation, *, rows: int, experts: Experts
    ) -> Activation | Plain | None:
        """What comes of experts' gates and ups (rows of y, I): of few rows as it is. None where they aren't
        made together.
        """
        part = gate_up.parts[0]
        if down.has_numbers or not self._has_gates(gate_up):
            return None
        if experts.tile_rows:
            rounded = self.rows_for(self._space.gated, part.rows // 2, [down])
            launch = self._many(part, x, NO_TARGET, rows, experts, gated=rounded)
            assert launch.rounds_gates
            return rounded
        gated = self._space.gated.of(part.rows // 2, values=True, planes=0)
        takers = rows // experts.rows_each
        # The router's blocks are on a few processors and small: nothing is in the way.
        self._few.run(part, x, NO_TARGET, 1, experts=experts, takers=takers, gated=gated, behind=0)
        return Plain(Address(gated.values))

    def _has_gates(self, linear: DeviceLinear) -> bool:
        part = linear.parts[0]
        is_one = len(linear.parts) == 1 and not linear.bias
        return is_one and part.is_strip and self._planes > 0 and part.rows // 2 % 32 == 0

    def normed(self, x: Normed, readers: Sequence[DeviceLinear], rows: int) -> Activation:
        """In the forms that their readers take."""
        out = self.rows_for(self._space.x, readers[0].columns, readers)
        norm = Norm(x=x.values, weight=x.weight, out=out, eps=self._eps)
        self._kernels.launch("rms_norm", norm, grid=(rows, 1, 1))
        return out

    def rows_for(self, rows: Rows, width: int, readers: Sequence[DeviceLinear]) -> Activation:
        has_strips = any(each.has_strips for each in readers)
        values = self._planes == 0 or any(each.has_numbers for each in readers)
        return rows.of(width, values=values, planes=self._planes if has_strips else 0)

    def grouped(self, readers: Sequence[DeviceLinear], rows: int, *, taken: int, count: int) -> Experts:
        """How `rows` rows that take `taken` of `count` experts each find them: those of the workspace."""
        strips = self._planes > 0 and not any(each.has_numbers for each in readers)
        parts = [part for each in readers for part in each.parts]
        fits = strips and all(self._few.most_tokens(part, slots=GATED_VALUE_SLOTS) > 0 for part in parts)
        if not strips or (fits and rows <= _FEW_TAKING and taken <= MOST_TAKEN):
            return Experts(self._space.experts, taken)
        is_plain = all(part.is_plain for part in parts)
        tile_rows = tile_rows_for(rows * taken, num_experts=count, is_plain=is_plain)
        grouping = Grouping(
            experts=self._space.experts,
            order=self._space.expert_order,
            tiles=self._space.expert_tiles,
            count=rows * taken,
            num_experts=count,
            tile_rows=tile_rows,
        )
        self._kernels.launch("group_rows", grouping, grid=(count, 1, 1))
        return Experts(self._space.experts, taken, tile_rows, count)

    def choosing(
        self, gate_up: DeviceLinear, down: DeviceLinear, rows: int, *, taken: int, count: int
    ) -> Experts | None:
        """A single token's experts, where each block of their products chooses them from the router's logits,
        those of the workspace, rather than wait for somebody to. None where they don't.
        """
        parts = [*gate_up.parts, *down.parts]
        chooses = (
            rows == 1
            and count <= _MOST_LISTED
            and taken <= MOST_TAKEN
            and self._has_gates(gate_up)
            and not down.has_numbers
            and not down.bias
            and all(part.is_of_one and self._few.most_tokens(part, slots=GATED_VALUE_SLOTS) for part in parts)
        )
        return Experts(NOWHERE, taken, count=count, logits=self._space.router) if chooses else None

    def _many(
        self,
        part: DeviceMatrix,
        x: Activation,
        target: Target,
        rows: int,
        experts: Experts | None,
        *,
        gated: Activation | None = None,
    ) -> Launch:
        many = ManyRows(part.layout, self._form, is_plain=part.is_plain)
        if experts is None:
            launch = many.launch(rows, multiprocessors=self._kernels.card.multiprocessors)
        else:
            launch = many.grouped_launch(rows, num_experts=experts.count, tile_rows=experts.tile_rows)
        product = TiledProduct(
            weights=part.tiles(),
            bias=target.bias,
            x=x,
            y=target.y,
            order=NOWHERE if experts is None else self._space.expert_order,
            row_tiles=NOWHERE if experts is None else self._space.expert_tiles,
            stride=target.stride,
            rows=rows,
            rows_each=1 if experts is None else experts.rows_each,
            adds=target.adds,
            gated=gated is not None,
        )
        if gated is not None:
            product.out = gated
        self._kernels.launch(launch.kernel, product, grid=launch.grid, shared_bytes=launch.shared_bytes)
        return launch

    def _numbers(
        self, part: DeviceMatrix, x: Activation, target: Target, rows: int, experts: Experts | None
    ) -> None:
        """Of numbers, or of codes with rows that stay numbers."""
        more = Experts(NOWHERE) if experts is None else experts
        common = {
            "bias": target.bias,
            "x": x,
            "y": target.y,
            "experts": more.chosen,
            "stride": target.stride,
            "rows": rows,
            "rows_each": more.rows_each,
            "adds": target.adds,
        }
        # Rows that take different matrices have nothing to share.
        at_once = 1 if rows == 1 or more.chosen else _MANY_ROWS
        suffix = "one" if at_once == 1 else "many"
        values: Product | ProductValues
        if part.is_strip:
            values = ProductValues(weights=part.tiles(), **common)
            blocks, name = -(-part.layout.tiles // _TILES_A_BLOCK), f"product_{part.kind}_float_{suffix}"
        else:
            values = Product(weights=part.weights, outputs=part.rows, **common)
            blocks, name = -(-part.rows // _OUTPUTS_A_BLOCK), f"product_{part.kind}_{suffix}"
        self._kernels.launch(name, values, grid=(blocks, -(-rows // at_once), 1))
