"""What the engine counted, in words. Pure functions; no widget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.language import tr, tr_n
from app.ui.text_format import format_tokens

if TYPE_CHECKING:
    from engine.metrics import LayerUse, Metrics, TokenWork


def copies_in_words(work: TokenWork) -> str:
    """ "2.1 in, 1 out": for each token, to the card and back."""
    return tr("{up:.3g} in, {back:.3g} out", up=work.h2d_per_token, back=work.d2h_per_token)


def shown_work(metrics: Metrics | None) -> TokenWork | None:
    """Of the answer that is being written, as soon as it has tokens; else of the last one."""
    if metrics is None:
        return None
    if metrics.this_answer is not None and metrics.this_answer.tokens:
        return metrics.this_answer
    return metrics.last_answer.token_work if metrics.last_answer is not None else None


def work_sentence(work: TokenWork) -> str:
    """What the card was asked to do for a token, for the tooltip."""
    if not work.tokens:
        return ""
    return tr(
        "For each token {launches:,.0f} pieces of work are started on the card; copies to it and back: "
        "{copies}.",
        launches=work.launches_per_token,
        copies=copies_in_words(work),
    )


def layers_in_words(use: LayerUse) -> str:
    """ "All 30", or "7 of 94 at a time"."""
    if use.is_window:
        return tr("{part:,} of {whole:,} at a time", part=use.at_once, whole=use.total)
    return tr("All {count:,}", count=use.total)


def moves_in_words(use: LayerUse, rate: float) -> str:
    """How many layers came up since the load; rate: a second, now."""
    if rate < 1:
        return f"{use.brought:,}"
    return tr("{count:,} ({rate:,.0f} a second)", count=use.brought, rate=rate)


def use_sentence(metrics: Metrics) -> str:
    """How full the pool is, and what had to leave it."""
    lines = [
        tr(
            "{slots} of {most_slots} places are taken, with {pages:,} of {most_pages:,} pages.",
            slots=metrics.slots,
            most_slots=metrics.most_slots,
            pages=metrics.memory.cache_pages,
            most_pages=metrics.most_pages,
        ),
        tr(
            "{tokens} needed not be read again since the model was loaded.",
            tokens=format_tokens(metrics.reused_tokens),
        ),
    ]
    if metrics.evictions:
        lines.append(
            tr_n(
                "A chat had to make room for another once.",
                "A chat had to make room for another {count:,} times.",
                metrics.evictions,
            )
        )
    if metrics.fallbacks:
        lines.append(
            tr_n(
                "A chat found no place once, and was computed elsewhere.",
                "A chat found no place {count:,} times, and was computed elsewhere.",
                metrics.fallbacks,
            )
        )
    return "\n".join(lines)
