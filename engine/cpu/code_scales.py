"""The scale that numbers share which become codes of 8 bits, be it a row of the cache or inputs of a product.
The words for it stand in `engine/kv_geometry.py`.
"""

from __future__ import annotations

import torch

from engine.kv_geometry import LARGEST_CODE


def code_scales(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x (..., D) float32 -> x / scale (..., D), not yet rounded, and scales (..., 1)."""
    scales = x.abs().amax(-1, keepdim=True) / LARGEST_CODE
    scales = torch.where(scales >= torch.finfo(torch.float32).tiny, scales, 0.0)
    scales = torch.where(x.isfinite().all(-1, keepdim=True), scales, torch.nan)
    return torch.where(scales > 0, x / scales, 0.0), scales
