"""Rotary position embedding in the rotate-half layout: frequencies of every kind, and a table of cosines and
sines.

Frequencies are computed in float32 and in the order in which Hugging Face transformers computes them: an
angle is position times frequency, so at position 100,000 a last-bit difference in a frequency already shows.
"""

from __future__ import annotations

import math

import torch

from engine.models.spec import RopeSpec

_FIRST_POSITIONS = 256


def inverse_frequencies(rope: RopeSpec) -> torch.Tensor:
    """Radians per position of each pair of features: (dim / 2,) float32."""
    frequencies = _frequencies_of_kind(rope)
    return frequencies / torch.tensor(rope.frequency_factors) if rope.frequency_factors else frequencies


def _frequencies_of_kind(rope: RopeSpec) -> torch.Tensor:
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.int64).to(torch.float32) / rope.dim
    plain = 1.0 / (rope.theta**exponents)
    match rope.kind:
        case "default":
            return plain
        case "linear":
            return plain / rope.factor
        case "llama3":
            return _llama3(plain, rope)
        case "yarn":
            return _yarn(rope, exponents)


def _llama3(plain: torch.Tensor, rope: RopeSpec) -> torch.Tensor:
    """Long waves are stretched by `factor`, short ones kept, those between blended (Llama 3.1)."""
    original = rope.original_context_length
    wavelength = 2 * math.pi / plain
    longest_kept = original / rope.high_freq_factor
    shortest_stretched = original / rope.low_freq_factor
    stretched = torch.where(wavelength > shortest_stretched, plain / rope.factor, plain)
    keep = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - keep) * stretched / rope.factor + keep * stretched
    between = ~(wavelength < longest_kept) & ~(wavelength > shortest_stretched)
    return torch.where(between, blended, stretched)


def _yarn(rope: RopeSpec, exponents: torch.Tensor) -> torch.Tensor:
    """A ramp from kept to stretched frequencies between two dimensions (arXiv 2309.00071, "NTK-by-parts")."""

    def dimension_of(rotations: float) -> float:
        """The dimension whose wave turns `rotations` times over the original context."""
        waves = math.log(rope.original_context_length / (rotations * 2 * math.pi))
        return rope.dim * waves / (2 * math.log(rope.theta))

    low, high = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    if low == high:
        high += 0.001  # the ramp is a step then; this keeps it from dividing by zero
    powers = rope.theta**exponents
    ramp = ((torch.arange(rope.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    keep = 1 - ramp
    return (1.0 / (rope.factor * powers)) * (1 - keep) + (1.0 / powers) * keep


class RopeTable:
    """Cosines and sines by position, for one RopeSpec. Grows by doubling; rows once made never change."""

    def __init__(self, rope: RopeSpec) -> None:
        self._rope = rope
        self._frequencies = inverse_frequencies(rope)
        self._cos = torch.empty(0)
        self._sin = torch.empty(0)
        self._grow(_FIRST_POSITIONS)

    def rows(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views for `count` positions: cos (count, 1, 1, dim / 2), sin (count, 1, 2, dim / 2).

        The sine of the first half carries a minus, so a rotation is x * cos + swapped halves of x * sin.
        """
        end = start + count
        if end > self._cos.shape[0]:
            self._grow(max(end, 2 * self._cos.shape[0]))
        return self._cos[start:end], self._sin[start:end]

    def _grow(self, positions: int) -> None:
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * self._frequencies  # (P, dim / 2)
        sin = angles.sin() * self._rope.attention_factor
        self._cos = (angles.cos() * self._rope.attention_factor)[:, None, None]
        self._sin = torch.stack((-sin, sin), dim=1)[:, None]


def rotate_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate the first `dim` features of x (T, heads, D) in place by the rows of a RopeTable."""
    half = cos.shape[-1]
    pairs = x[..., : 2 * half].view(*x.shape[:-1], 2, half)  # (T, heads, 2, dim / 2)
    swapped = pairs.flip(2)
    pairs.mul_(cos).addcmul_(swapped, sin)
