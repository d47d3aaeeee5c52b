"""Softmax-routed experts. A token's experts add up in ascending order, however many tokens run at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (the customary name)

from engine.cpu.matrices import Matrix
from engine.cpu.swiglu import swiglu
from engine.models.spec import MoeSpec

ROWS_ALIKE = 16
"""Rows of an expert's products. One of many experts gets few tokens of a page, and zeros cost as much."""


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


def mixture(moe: MoeWeights, x: torch.Tensor, valid: slice | None = None) -> torch.Tensor:
    """x (T, H) -> (T, H). An expert runs over the tokens that chose it.

    valid: the rows that are tokens; the others become zeros. With it a token's bits do not depend on how many
    others chose its experts: products with them always have the same number of rows.
    """
    logits = moe.router(x)
    if valid is None:
        return _mixture(moe, x, logits, _run)
    out = torch.zeros_like(x)
    out[valid] = _mixture(moe, x[valid], logits[valid], _run_alike)
    return out


def _mixture(
    moe: MoeWeights,
    x: torch.Tensor,
    logits: torch.Tensor,
    run: Callable[[MoeWeights, int, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
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
        out.index_add_(0, rows, run(moe, expert, x[rows]).mul_(scales[first : first + count]))
        first += count
    return out


def _run(moe: MoeWeights, expert: int, x: torch.Tensor) -> torch.Tensor:
    return moe.down[expert](swiglu(moe.gate_up[expert](x)))


def _run_alike(moe: MoeWeights, expert: int, x: torch.Tensor) -> torch.Tensor:
    """In products of ROWS_ALIKE rows, the last one filled up with zeros."""
    padded = F.pad(x, (0, 0, 0, -len(x) % ROWS_ALIKE))
    parts = [_run(moe, expert, part) for part in torch.split(padded, ROWS_ALIKE)]
    return torch.cat(parts)[: len(x)]
