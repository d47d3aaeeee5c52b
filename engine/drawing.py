"""Where the tokens of one answer are drawn: on the device that computes their logits, or here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import ComputeFaultError

if TYPE_CHECKING:
    import torch


def check_finite(logits: torch.Tensor) -> None:
    """Raises ComputeFaultError when any logit is infinite or not a number."""
    if not logits.isfinite().all():
        raise no_numbers()


def no_numbers() -> ComputeFaultError:
    """For logits of which any is infinite or not a number."""
    return ComputeFaultError(
        "The model computed values that are not numbers.",
        "Its weights are damaged or too large for this arithmetic: load it again, or choose another.",
    )
