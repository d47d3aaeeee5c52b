"""What the engine counted, in words. Pure functions; no widget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.wording import format_tokens

if TYPE_CHECKING:
    from engine.metrics import AnswerMetrics, LayerUse, Metrics


def copies_in_words(answer: AnswerMetrics) -> str:
    """ "2.1 in, 1 out": for each token, to the card and back."""
    return f"{answer.h2d_per_token:.3g} in, {answer.d2h_per_token:.3g} out"


def work_sentence(answer: AnswerMetrics) -> str:
    """What the card was asked to do for a token, for the tooltip."""
    if not answer.decode.tokens:
        return ""
    return (
        f"For each token of the last answer {answer.launches_per_token:,.0f} pieces of work were started on "
        f"the card; copies to it and back: {copies_in_words(answer)}."
    )


def layers_in_words(use: LayerUse) -> str:
    """ "All 30", or "7 of 94 at a time"."""
    return f"{use.at_once:,} of {use.total:,} at a time" if use.is_window else f"All {use.total:,}"


def moves_in_words(use: LayerUse, rate: float) -> str:
    """How many layers came up since the load; rate: a second, now."""
    return f"{use.brought:,} ({rate:,.0f} a second)" if rate >= 1 else f"{use.brought:,}"


def use_sentence(metrics: Metrics) -> str:
    """How full the pool is, and what had to leave it."""
    lines = [
        f"{metrics.slots} of {metrics.most_slots} places are taken, with {metrics.memory.cache_pages:,} of "
        f"{metrics.most_pages:,} pages.",
        f"{format_tokens(metrics.reused_tokens)} needed not be read again since the model was loaded.",
    ]
    if metrics.evictions:
        times = "once" if metrics.evictions == 1 else f"{metrics.evictions:,} times"
        lines.append(f"A chat had to make room for another {times}.")
    if metrics.fallbacks:
        times = "once" if metrics.fallbacks == 1 else f"{metrics.fallbacks:,} times"
        lines.append(f"A chat found no place {times}, and was computed elsewhere.")
    return "\n".join(lines)
