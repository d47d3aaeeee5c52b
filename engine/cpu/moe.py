"""Softmax-routed experts. A token's experts add up in ascending order, however many tokens run at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.cpu.matrices import Matrix
from engine.cpu.ops import swiglu
from engine.models.spec import MoeSpec


@dataclass(frozen=True)
class MoeWeights:
    """`gate_up[e]` maps H to 2I and `down[e]` maps I to H."""

    spec: MoeSpec
    router: Matrix
    gate_up: Sequence[Matrix]
    down: Sequence[Matrix]

    @property
    def num_bytes(self) -> int:
        return sum(matrix.num_bytes for matrix in (self.router, *self.gate_up, *self.down))


def route(spec: MoeSpec, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Router logits (T, E) -> weights and experts, both (T, top_k), the most probable first."""
    weights, experts = logits.softmax(-1).topk(spec.top_k, dim=-1)
    if spec.normalise_top_k:
        weights.div_(weights.sum(-1, keepdim=True))
    return weights, experts


def mixture(moe: MoeWeights, x: torch.Tensor) -> torch.Tensor:
    """x (T, H) -> (T, H). An expert runs once, over the tokens that chose it."""
    weights, experts = route(moe.spec, moe.router(x))
    # Choices (token, expert) sorted by expert: each expert's tokens then are one slice, in ascending order.
    choices = experts.flatten()
    order = choices.argsort(stable=True)
    tokens = order.div(moe.spec.top_k, rounding_mode="floor")
    scales = weights.flatten()[order][:, None]
    out = torch.zeros_like(x)
    first = 0
    for expert, count in enumerate(choices.bincount().tolist()):
        if count == 0:
            continue
        rows = tokens[first : first + count]
        chosen_x = x[rows]
        if count == 1 and len(x) > 1:
            # A single row is rounded otherwise than one of many: as two, a token's bits don't depend on
            # whether another token of its block chose the same expert.
            chosen_x = chosen_x.repeat(2, 1)
        y = moe.down[expert](swiglu(moe.gate_up[expert](chosen_x)))[:count]
        out.index_add_(0, rows, y.mul_(scales[first : first + count]))
        first += count
    return out
