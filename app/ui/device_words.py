"""What computes a model, in words. No widget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.language import tr, translated

if TYPE_CHECKING:
    from engine.model_summary import ModelSummary


def device_words(summary: ModelSummary) -> str:
    """The engine's description, such as "NVIDIA H200, 4-bit weights", in the language that is set."""
    description = summary.device_description
    card, comma, how = description.partition(", ")
    if summary.device == "cpu" or not comma:
        return translated(description)
    return tr("{name}, {details}", name=card, details=translated(how))


def device_sentence(summary: ModelSummary) -> str:
    """What computes, and, when it isn't the card, that it isn't."""
    device = device_words(summary)
    if summary.device == "cpu" and any(notice.code.startswith("card-") for notice in summary.notices):
        return tr("{device} — no graphics card is used", device=device)
    return device
