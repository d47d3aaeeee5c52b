"""Softmax-routed experts. A token's experts add up in ascending order, however many tokens run at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (the customary name)

from engine.cpu.matrices import Matrix
from engine.cpu.swiglu import swiglu
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


def mixture(
    moe: MoeWeights, x: torch.Tensor, valid: slice | None = None, *, rows_alike: int = 1
) -> torch.Tensor:
    """x (T, H) -> (T, H). An expert runs over the tokens that chose it.

    valid: the rows that are tokens; the others become zeros. With it a token's bits do not depend on how many
    others chose its experts: their products always have `rows_alike` rows.
    """
    logits = moe.router(x)
    if valid is None:
        return _mixture(moe, x, logits, None)
    out = torch.zeros_like(x)
    out[valid] = _mixture(moe, x[valid], logits[valid], rows_alike)
    return out


def _mixture(moe: MoeWeights, x: torch.Tensor, logits: torch.Tensor, rows_alike: int | None) -> torch.Tensor:
    weights, experts = route(moe.spec, logits)
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
        if rows_alike is None:
            y = run_expert(moe, expert, x[rows])
        else:
            padded = F.pad(x[rows], (0, 0, 0, -count % rows_alike))
            parts = [run_expert(moe, expert, part) for part in torch.split(padded, rows_alike)]
            y = torch.cat(parts)[:count]
        out.index_add_(0, rows, y.mul_(scales[first : first + count]))
        first += count
    return out


def run_expert(moe: MoeWeights, expert: int, x: torch.Tensor) -> torch.Tensor:
    """(T, H) -> (T, H)"""
    return moe.down[expert](swiglu(moe.gate_up[expert](x)))
