"""Why an answer was computed on the processor where a card was to compute it: what stays with the answer."""

from __future__ import annotations

from collections.abc import Sequence

from engine.notices import Notice

MODEL_CODES = ("card-fallback", "card-failed", "card-lost-meanwhile")
"""Of notices that say it of a whole model."""

_NO_ROOM = "There was no room for this chat on the card, so the processor computed the answer."


def model_fallback(device: str, notices: Sequence[Notice]) -> str:
    """Of a model that runs on `device`; "" where it is as it was to be. The newest reason holds."""
    reasons = [notice.message for notice in notices if notice.code in MODEL_CODES]
    return reasons[-1] if device == "cpu" and reasons else ""


def answer_fallback(device: str, *, of_model: str, why_model: str, notices: Sequence[Notice]) -> str:
    """Of an answer that was computed on `device` by a model that runs on `of_model`, for the reason
    `why_model` if that is a fallback itself. notices: that came with the answer; a chat is told of only once.
    """
    if device in ("", of_model):
        return why_model
    told = (notice.message for notice in notices if notice.code == "state-fallback")
    return next(told, _NO_ROOM)
