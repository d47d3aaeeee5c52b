"""The small pieces of mathematics that every layer is made of, in float32.

Letters for shapes stand in `engine/models/spec.py`; T is the number of tokens that are run at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812  (the customary name)

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _onednn_product() -> Product | None:
    """oneDNN's matrix product, or None where this build of torch has none or it isn't exact float32.

    torch's own float32 `linear` always goes to the BLAS, and MKL's kernels are slow on processors that aren't
    Intel's. On two Zen 5 cores oneDNN reads a 49152 x 576 matrix at 48 GB/s where the BLAS reads 16, and
    multiplies 512 rows at 480 GFLOP/s against 210. It also gives each row the same bits whatever the number
    of rows (from two rows on), so a prompt that is read in pieces comes out as if read whole. The operator is
    the one that torch.compile uses; it isn't documented, hence the trial, and `linear` beside it.
    """
    try:
        operator = torch.ops.mkldnn._linear_pointwise.default
    except AttributeError:
        return None

    def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, operator(x, weight, None, "none", [], ""))

    return product if is_exact(product) else None


def is_exact(product: Product) -> bool:
    """Whether `product` can be called at all and computes in float32."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 160, generator=generator)
    for rows in (1, 5):
        x = torch.randn(rows, 160, generator=generator)
        try:
            y = product(x, weight)
        except (NotImplementedError, RuntimeError, TypeError):
            return False  # built without it, or it takes other arguments in this version
        # Results have a standard deviation of about 13: bfloat16 or TF32 would be off by 0.02 or more.
        if not torch.allclose(y, F.linear(x, weight), rtol=0.0, atol=1e-3):
            return False
    return True


matrix_product: Product = _onednn_product() or F.linear
"""x (T, K) and a contiguous weight (N, K), both float32 -> (T, N)."""


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x divided by its root mean square over the last axis, times `weight`, which broadcasts against x."""
    if x.numel() == x.shape[-1]:
        # One row, as in decoding, has one factor: as a Python number it takes half the calls (4 us, not 7).
        norm = float(torch.linalg.vector_norm(x))
        return x.mul(1 / math.sqrt(norm * norm / x.numel() + eps)).mul_(weight)
    return (x * x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()).mul_(weight)
