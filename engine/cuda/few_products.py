"""Products of a few rows with tiles of codes, as launches: which kernel, and how its blocks find room."""

from __future__ import annotations

from engine.config import Activations
from engine.cuda.arguments import Activation, FewRows, ProductFew
from engine.cuda.driver import NOWHERE
from engine.cuda.few_rows import (
    few_launch,
    fits_rings,
    inverse,
    late_stages,
    most_tokens,
    near_stages,
    shared_bytes,
    takes_two_steps,
)
from engine.cuda.kernel_set import KernelSet
from engine.cuda.matrices import DeviceLinear, DeviceMatrix
from engine.cuda.product_rows import Experts, Normed, Plain, Target
from engine.cuda.row_forms import PLANES

GATED_SLOTS, GATED_VALUE_SLOTS = 4, 2  # tiles of gates and ups at a time, see kernels/product_one.cu
_ATTENTION_BYTES = 48 * 2**10  # of shared memory that a block of a token's attention takes, at most


class FewProducts:
    """Of one model."""

    def __init__(self, kernels: KernelSet, *, activations: Activations, norm_eps: float) -> None:
        self._kernels = kernels
        self._form = activations
        self._planes = PLANES[activations]
        self._eps = norm_eps
        self._last: tuple[DeviceLinear, int] | None = None

    def take(self, linear: DeviceLinear, rows: int, *, slots: int) -> bool:
        """Whether all of it is done here. Then rows may be numbers, behind a norm or not."""
        return (
            self._planes > 0
            and not linear.has_numbers
            and all(rows <= self.most_tokens(part, slots=slots) for part in linear.parts)
        )

    def most_tokens(self, part: DeviceMatrix, *, slots: int) -> int:
        """That a launch has room for; 0: none."""
        return most_tokens(part.layout, self._kernels.card, planes=self._planes, slots=slots)

    def behind(
        self, linear: DeviceLinear, x: Activation | Normed | Plain, tokens: int, *, splits: bool
    ) -> int | None:
        """How much of shared memory a block takes of the launch in front of the product with these rows, few
        of them; None where that isn't to be spread. See `few_launch`. splits: whether it is attention of
        several splits.
        """
        if splits and self.spreads(linear, tokens):
            return _ATTENTION_BYTES
        if not isinstance(x, Normed):
            return None
        if x.behind is None or x.behind.has_numbers:
            return 0
        if self._last is not None and self._last[0] is x.behind:
            return self._last[1]
        card = self._kernels.card
        return max(
            shared_bytes(part.layout, card, planes=self._planes, tokens=tokens, slots=1)
            for part in x.behind.parts
        )

    def remember(self, linear: DeviceLinear, shared_bytes: int) -> None:
        """That blocks of the last launch of this one took so much."""
        self._last = linear, shared_bytes

    def run(
        self,
        part: DeviceMatrix,
        x: Activation | Normed | Plain,
        target: Target,
        tokens: int,
        *,
        experts: Experts | None = None,
        takers: int = 1,
        gated: Activation | None = None,
        known: bool = False,
        lets_early: bool = False,
        behind: int | None = None,
    ) -> int:
        """A part of a matrix. takers: rows of x that take matrices of their own. behind: see there. Returns
        how much of shared memory a block takes.
        """
        rows = self._rows(part, x)
        card, taken = self._kernels.card, 1 if experts is None else experts.rows_each
        slots = _slots_for(gated)
        is_one = tokens == 1 and part.is_of_one
        is_wide = is_one and isinstance(x, Normed) and takes_two_steps(part.columns)
        is_wide = is_wide and slots != GATED_VALUE_SLOTS
        launch = few_launch(
            part.layout,
            card,
            planes=self._planes,
            tokens=tokens,
            slots=slots,
            taken=taken,
            takers=takers,
            behind=behind,
            knows_teams=is_one,
            two_steps=is_wide,
        )
        late, near = self._when_row_comes(part, x, slots=slots, teams=launch.teams)
        product = ProductFew(
            weights=part.tiles(),
            bias=target.bias,
            x=rows,
            y=target.y,
            experts=NOWHERE if experts is None else experts.chosen,
            stride=target.stride,
            tokens=tokens,
            taken=taken,
            jobs_each=launch.jobs,
            adds=target.adds,
            experts_known=known,
            by_chains=inverse(part.layout.chains, 8),
            by_jobs=0 if launch.jobs == 1 else inverse(launch.jobs, 32),
            lets_early=lets_early,
            teams_shift=launch.teams.bit_length() - 1,
            late_stages=late,
            near_stages=near,
        )
        if gated is not None:
            product.gated = gated
        if experts is not None and experts.logits:
            product.logits, product.num_experts = experts.logits, experts.count
            product.num_chosen = takers * taken
        self._kernels.launch(
            self._kernel(part, is_one=is_one, gated=gated, is_wide=is_wide, chooses=bool(product.logits)),
            product,
            grid=(launch.grid, takers, 1),
            shared_bytes=launch.shared_bytes,
        )
        return launch.shared_bytes

    def _when_row_comes(
        self, part: DeviceMatrix, x: Activation | Normed | Plain, *, slots: int, teams: int
    ) -> tuple[int, int]:
        """Stages of each warp that are asked for late, and that are brought near. Where rings hold all that
        the launch before reads, it has asked for that, and memory is free: then gates that rings don't hold
        ask for all they can, and when their row comes that is still on its way.
        """
        if not isinstance(x, Normed):
            return 0, 0
        card = self._kernels.card
        late, near = late_stages(part.layout, card), near_stages(part.layout, card)
        if not x.is_near:
            return 0, near
        before = () if x.behind is None else x.behind.parts
        has_asked = bool(before) and all(
            each.is_strip and each.is_of_one and fits_rings(each.layout, card, slots=1, teams=1)
            for each in before
        )
        if has_asked and not fits_rings(part.layout, card, slots=slots, teams=teams):
            return 0, 0
        return late, near

    def _rows(self, part: DeviceMatrix, x: Activation | Normed | Plain) -> FewRows:
        if isinstance(x, Activation):
            return FewRows(codes=x)
        norm = x.weight if isinstance(x, Normed) else NOWHERE
        return FewRows(codes=Activation(width=part.columns), values=x.values, norm=norm, eps=self._eps)

    def _kernel(
        self, part: DeviceMatrix, *, is_one: bool, gated: Activation | None, is_wide: bool, chooses: bool
    ) -> str:
        count, sink = "one" if is_one else "few", ""
        if gated is not None:
            sink = "_gated" if gated.high else "_gated_values"
        form = "_wide" * is_wide + "_choosing" * chooses
        return f"product_{part.kind}_{self._form}_{count}{sink}{form}"

    def spreads(self, linear: DeviceLinear, tokens: int) -> bool:
        """Whether each processor has one block of it behind attention of several splits."""
        processors = self._kernels.card.multiprocessors
        is_large = all(part.is_strip and part.layout.tiles >= processors for part in linear.parts)
        return tokens == 1 and is_large


def _slots_for(gated: Activation | None) -> int:
    """Tiles that a group of warps makes at a time: what is rounded comes in blocks of 32 outputs."""
    if gated is None:
        return 1
    return GATED_SLOTS if gated.high else GATED_VALUE_SLOTS
