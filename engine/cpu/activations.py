"""Activations as a card's integer products see them, for the CPU to compute the same.

The exact words stand in `engine/cuda/kernels/activation.cuh`: each 32 neighbours of a row share a scale, the
largest magnitude's 127th part. One plane of 8 bits costs about 0.5% of a product's size, two planes next to
nothing.
"""

from __future__ import annotations

import torch

from engine.config import Activations
from engine.kv_geometry import LARGEST_CODE
from engine.weights.strips import BLOCK

_LOW_STEPS = 254  # of the low plane in one of the high one


def rounded(x: torch.Tensor, form: Activations) -> torch.Tensor:
    """x (T, K), K a multiple of 32 -> what stands for it in that form, float32 (T, K)."""
    if form == "float":
        return x
    steps = LARGEST_CODE if form == "int8" else LARGEST_CODE * _LOW_STEPS
    grouped = torch.unflatten(x, -1, (-1, BLOCK))
    largest = grouped.abs().amax(-1, keepdim=True)
    scales = largest * torch.tensor(1 / steps, dtype=torch.float32)
    counts = scales >= torch.finfo(torch.float32).tiny
    scales = torch.where(counts, scales, 0.0)
    scales = torch.where(grouped.isfinite().all(-1, keepdim=True), scales, torch.nan)
    inverses = torch.full_like(largest, LARGEST_CODE) / largest  # a plain number over a tensor rounds twice
    quotients = torch.where(counts, grouped * inverses, 0.0)
    high = quotients.round()
    if form == "int8":
        return (high * scales).flatten(-2)
    low = ((quotients - high) * _LOW_STEPS).round()
    return ((high * _LOW_STEPS + low) * scales).flatten(-2)
