"""Names of tensors as checkpoints write them, and the one form that the engine knows."""

from __future__ import annotations

import re

# Longest first. The same family is found with each of them, and with none.
_PREFIXES = (
    "model.language_model.model.",
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "model.",
)

_VISION = "vision or audio"
_PREDICTION = "multi-token prediction"
_TABLES = "rotary table"

_LEFT_OUT: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"^(model\.)?(visual|vision_tower|vision_model|vision_embed_tokens|multi_modal_projector|mm_projector"
            r"|audio_tower|audio_model|connector|image_newline)(\.|$)"
        ),
        _VISION,
    ),
    (re.compile(r"^(model\.|model\.language_model\.|language_model\.)?mtp(_layers)?\."), _PREDICTION),
    (re.compile(r"(^|\.)rotary_emb\.(inv_freq|cos_cached|sin_cached)$"), _TABLES),
)


def left_out_kind(stored_name: str) -> str | None:
    """What kind of tensor it is that a text model has no use for; None for all others."""
    for pattern, kind in _LEFT_OUT:
        if pattern.search(stored_name):
            return kind
    return None


def canonical_name(stored_name: str) -> str:
    """The name without the model's prefix: "layers.0.mlp.down_proj.weight", "lm_head.weight"."""
    for prefix in _PREFIXES:
        if stored_name.startswith(prefix):
            return stored_name[len(prefix) :]
    return stored_name
