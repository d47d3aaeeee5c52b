from __future__ import annotations

import pytest
import torch

from engine.cpu.matrices import Dense
from engine.cpu.moe import MoeWeights, mixture, route
from engine.models.spec import MoeSpec

HIDDEN, SIZE = 20, 12


def make_moe(num_experts: int, top_k: int, normalise: bool) -> tuple[MoeWeights, dict[str, torch.Tensor]]:
    raw = {
        "router": torch.randn(num_experts, HIDDEN) / HIDDEN**0.5,
        "gate": torch.randn(num_experts, SIZE, HIDDEN) / HIDDEN**0.5,
        "up": torch.randn(num_experts, SIZE, HIDDEN) / HIDDEN**0.5,
        "down": torch.randn(num_experts, HIDDEN, SIZE) / SIZE**0.5,
    }
    fused = torch.cat((raw["gate"], raw["up"]), dim=1)
    moe = MoeWeights(
        spec=MoeSpec(num_experts, top_k, SIZE, normalise_top_k=normalise),
        router=Dense(raw["router"]),
        gate_up=[Dense(expert) for expert in fused],
        down=[Dense(expert) for expert in raw["down"]],
    )
    return moe, raw


def every_expert(raw: dict[str, torch.Tensor], x: torch.Tensor, top_k: int, normalise: bool) -> torch.Tensor:
    """All experts over all tokens, those not chosen weighted with nothing."""
    probabilities = (x @ raw["router"].T).softmax(-1)
    chosen = probabilities >= probabilities.sort(-1, descending=True).values[:, top_k - 1 : top_k]
    weights = torch.where(chosen, probabilities, 0.0)
    if normalise:
        weights = weights / weights.sum(-1, keepdim=True)
    gate = torch.einsum("eih,th->tei", raw["gate"], x)
    up = torch.einsum("eih,th->tei", raw["up"], x)
    out = torch.einsum("ehi,tei->teh", raw["down"], gate * gate.sigmoid() * up)
    return (weights[..., None] * out).sum(1)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize(("num_experts", "top_k"), [(1, 1), (5, 1), (7, 3), (8, 8)])
@pytest.mark.parametrize("num_tokens", [1, 2, 33])
def test_mixture_equals_all_experts_weighted(
    num_tokens: int, num_experts: int, top_k: int, normalise: bool
) -> None:
    moe, raw = make_moe(num_experts, top_k, normalise)
    x = torch.randn(num_tokens, HIDDEN)
    expected = every_expert(raw, x, top_k, normalise)
    torch.testing.assert_close(mixture(moe, x), expected, atol=1e-5, rtol=1e-5)


def test_normalising_makes_the_weights_sum_to_one_and_leaving_it_does_not() -> None:
    logits = torch.randn(9, 6)
    normalised, _ = route(MoeSpec(6, 2, SIZE, normalise_top_k=True), logits)
    plain, _ = route(MoeSpec(6, 2, SIZE, normalise_top_k=False), logits)
    torch.testing.assert_close(normalised.sum(-1), torch.ones(9))
    assert (plain.sum(-1) < 0.999).all()
    torch.testing.assert_close(plain / plain.sum(-1, keepdim=True), normalised)


def test_a_token_alone_equals_the_token_in_company() -> None:
    moe, _ = make_moe(6, 2, True)
    x = torch.randn(30, HIDDEN)
    alone = torch.cat([mixture(moe, row[None]) for row in x])
    torch.testing.assert_close(alone, mixture(moe, x), atol=1e-5, rtol=1e-5)
