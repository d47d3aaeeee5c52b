"""Frequencies against the published formulas, written out number by number; the rotation by its purpose."""

from __future__ import annotations

import math

import pytest
import torch

from engine.cpu.rope import RopeTable, inverse_frequencies, rotate_
from engine.models.spec import RopeSpec


def plain_frequency(rope: RopeSpec, pair: int) -> float:
    return float(rope.theta ** (-2 * pair / rope.dim))


def llama3_frequency(rope: RopeSpec, pair: int) -> float:
    plain = plain_frequency(rope, pair)
    turns = rope.original_context_length * plain / (2 * math.pi)  # over the original context
    if turns < rope.low_freq_factor:
        return plain / rope.factor
    if turns > rope.high_freq_factor:
        return plain
    keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return keep * plain + (1 - keep) * plain / rope.factor


def yarn_frequency(rope: RopeSpec, pair: int) -> float:
    def pair_with(turns: float) -> float:
        """The pair that turns so often over the original context: L * theta^(-2p/d) = 2 pi turns, for p."""
        ratio = rope.original_context_length / (2 * math.pi * turns)
        return rope.dim / 2 * math.log(ratio) / math.log(rope.theta)

    low, high = pair_with(rope.beta_fast), pair_with(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    stretch = min(1.0, max(0.0, (pair - low) / (high - low)))
    plain = plain_frequency(rope, pair)
    return (1 - stretch) * plain + stretch * plain / rope.factor


@pytest.mark.parametrize("dim", [2, 22, 64, 128])
@pytest.mark.parametrize("theta", [500.0, 10_000.0, 5_000_000.0])
def test_default_frequencies_fall_geometrically(theta: float, dim: int) -> None:
    rope = RopeSpec(theta, dim)
    expected = torch.tensor([plain_frequency(rope, pair) for pair in range(dim // 2)])
    torch.testing.assert_close(inverse_frequencies(rope), expected)


def test_linear_scaling_divides_every_frequency() -> None:
    plain, scaled = RopeSpec(1e4, 32), RopeSpec(1e4, 32, "linear", factor=3.7)
    torch.testing.assert_close(inverse_frequencies(scaled) * 3.7, inverse_frequencies(plain))


@pytest.mark.parametrize(("low", "high", "original"), [(1.0, 4.0, 64), (1.0, 4.0, 8192), (2.0, 3.0, 512)])
def test_llama3_keeps_short_waves_and_stretches_long_ones(low: float, high: float, original: int) -> None:
    rope = RopeSpec(
        5e5,
        128,
        "llama3",
        factor=8.0,
        low_freq_factor=low,
        high_freq_factor=high,
        original_context_length=original,
    )
    expected = [llama3_frequency(rope, pair) for pair in range(64)]
    kinds = {round(frequency / plain_frequency(rope, pair), 3) for pair, frequency in enumerate(expected)}
    assert {1.0, 0.125} < kinds, "all three bands are in use"
    torch.testing.assert_close(inverse_frequencies(rope), torch.tensor(expected))


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(("fast", "slow", "original"), [(32.0, 1.0, 4096), (16.0, 2.0, 64), (32.0, 1.0, 100)])
def test_yarn_ramps_between_kept_and_stretched(
    fast: float, slow: float, original: int, truncate: bool
) -> None:
    rope = RopeSpec(
        1e4,
        64,
        "yarn",
        factor=4.0,
        original_context_length=original,
        beta_fast=fast,
        beta_slow=slow,
        truncate=truncate,
    )
    expected = [yarn_frequency(rope, pair) for pair in range(32)]
    torch.testing.assert_close(inverse_frequencies(rope), torch.tensor(expected))


def test_yarn_with_an_empty_ramp_stays_finite() -> None:
    rope = RopeSpec(1e4, 8, "yarn", factor=2.0, original_context_length=4)  # shorter than any wave
    assert inverse_frequencies(rope).isfinite().all()


def test_attention_factor_scales_the_rotated_features() -> None:
    rope = RopeSpec(1e4, 16, "yarn", factor=4.0, original_context_length=64, attention_factor=1.25)
    x = torch.randn(5, 3, 16)
    lengths = x.norm(dim=-1)
    rotate_(x, *RopeTable(rope).rows(7, 5))
    torch.testing.assert_close(x.norm(dim=-1), 1.25 * lengths)


def test_products_depend_only_on_the_distance() -> None:
    """What rotary embedding is for: a query at p and a key at p - 9 have the same product wherever p is."""
    table = RopeTable(RopeSpec(1e4, 32))
    q, k = torch.randn(1, 1, 32), torch.randn(1, 1, 32)

    def product(position: int) -> torch.Tensor:
        query, key = q.clone(), k.clone()
        rotate_(query, *table.rows(position, 1))
        rotate_(key, *table.rows(position - 9, 1))
        return (query * key).sum()

    torch.testing.assert_close(product(9), product(1000), atol=1e-4, rtol=0.0)
    assert (product(9) - (q * k).sum()).abs() > 1e-2, "the distance does matter"


def test_halves_are_rotated_against_each_other() -> None:
    x = torch.zeros(1, 1, 4)
    x[..., 0] = 1.0  # pairs with feature 2
    rotate_(x, *RopeTable(RopeSpec(1e4, 4)).rows(1, 1))
    torch.testing.assert_close(x[0, 0], torch.tensor([math.cos(1), 0.0, math.sin(1), 0.0]))


def test_features_past_dim_are_left_alone() -> None:
    x = torch.randn(4, 2, 24)
    before = x.clone()
    rotate_(x, *RopeTable(RopeSpec(1e4, 16)).rows(3, 4))
    assert torch.equal(x[..., 16:], before[..., 16:])
    assert not torch.equal(x[..., :16], before[..., :16])


def test_growing_changes_no_row() -> None:
    table = RopeTable(RopeSpec(1e4, 16))
    cos, sin = (rows.clone() for rows in table.rows(100, 50))
    table.rows(5000, 3)
    again = table.rows(100, 50)
    assert torch.equal(again[0], cos)
    assert torch.equal(again[1], sin)


@pytest.mark.parametrize("start", [0, 255, 256, 257, 4000])
def test_rows_are_those_of_their_positions(start: int) -> None:
    rope = RopeSpec(1e4, 8)
    cos, _ = RopeTable(rope).rows(start, 3)
    angles = torch.arange(start, start + 3)[:, None] * inverse_frequencies(rope)
    torch.testing.assert_close(cos[:, 0, 0], angles.cos())
