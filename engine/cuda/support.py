"""What no kernel does, known from a model's shape alone. No torch."""

from __future__ import annotations

from engine.errors import UnsupportedModelError
from engine.models.spec import ModelSpec, MoeSpec

_WIDEST_HEAD, _HEAD_UNIT = 512, 4  # see kernels/attention.cu
_MOST_EXPERTS, _MOST_CHOSEN = 1024, 64  # see kernels/experts.cu


def check_supported(spec: ModelSpec) -> None:
    """Raises UnsupportedModelError for what no kernel does."""
    for layer in spec.layers:
        width = layer.attention.head_dim
        if width > _WIDEST_HEAD or width % _HEAD_UNIT:
            raise UnsupportedModelError(
                f"Attention heads of {width} features can't be run on the card.", "The model runs on the CPU."
            )
        experts = layer.feed_forward
        if isinstance(experts, MoeSpec) and (
            experts.num_experts > _MOST_EXPERTS or experts.top_k > _MOST_CHOSEN
        ):
            raise UnsupportedModelError(
                f"{experts.num_experts:,} experts, {experts.top_k} at a time, can't be run on the card.",
                "The model runs on the CPU.",
            )
