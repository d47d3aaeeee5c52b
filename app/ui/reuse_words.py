"""How much of a prompt was there already, and why it wasn't more, in words. No widget."""

from __future__ import annotations

from app.answer_stats import AnswerStats
from app.language import tr, tr_n
from app.ui.text_format import format_tokens
from engine.generation import ReuseReason


def reuse_words(stats: AnswerStats) -> str:
    """ "reused 20 of 30 tokens", and in brackets why it is so little; "" when no prompt was read, or when
    nothing is known (answers of earlier versions).
    """
    if not stats.prompt_tokens or not (stats.reused_tokens or stats.reuse_reason):
        return ""
    prompt = format_tokens(stats.prompt_tokens)
    words = tr("reused {count:,} of {prompt}", count=stats.reused_tokens, prompt=prompt)
    reason = _short_reason(stats)
    return tr("{words} ({reason})", words=words, reason=reason) if reason else words


def reuse_sentences(stats: AnswerStats) -> list[str]:
    """The same as whole sentences, for the tooltip."""
    if not stats.prompt_tokens:  # 0: stopped before it was read
        return []
    prompt = format_tokens(stats.prompt_tokens)
    sentences = [tr("The conversation so far was {prompt}.", prompt=prompt)]
    if stats.reused_tokens:
        sentences.append(
            tr("{count:,} of them were still in memory and not computed again.", count=stats.reused_tokens)
        )
    if reason := _long_reason(stats):
        sentences.append(reason)
    if stats.left_out:
        sentences.append(
            tr_n(
                "The {count:,} oldest message was left out, so that the rest had room.",
                "The {count:,} oldest messages were left out, so that the rest had room.",
                stats.left_out,
            )
        )
    return sentences


def _short_reason(stats: AnswerStats) -> str:
    match stats.reuse_reason:
        case ReuseReason.NEW.value:
            return tr("new conversation")
        case ReuseReason.HISTORY_REWRITTEN.value if stats.diverged_at is not None:
            return tr("history rewritten at token {position:,}", position=stats.diverged_at)
        case ReuseReason.HISTORY_REWRITTEN.value:
            return tr("history rewritten")
        case ReuseReason.OTHER_MODEL.value:
            return tr("other model")
        case ReuseReason.EVICTED.value:
            return tr("had to make room")
        case ReuseReason.NOT_KEPT.value:
            return tr("it was not kept")
        case ReuseReason.CONTEXT_POLICY.value:
            return tr("oldest messages left out")
    return ""


def _long_reason(stats: AnswerStats) -> str:
    match stats.reuse_reason:
        case ReuseReason.NEW.value if stats.reused_tokens:
            return tr("Nothing that is kept begins with more of this conversation.")
        case ReuseReason.NEW.value:
            return tr("Nothing that is kept begins as this conversation does.")
        case ReuseReason.HISTORY_REWRITTEN.value if stats.diverged_at is not None:
            return tr(
                "The model's template, or an edit, wrote the conversation differently from token "
                "{position:,} on, so what follows was read again.",
                position=stats.diverged_at,
            )
        case ReuseReason.HISTORY_REWRITTEN.value:
            return tr(
                "The model's template, or an edit, wrote the conversation differently, so what follows was "
                "read again."
            )
        case ReuseReason.OTHER_MODEL.value:
            return tr(
                "What was kept of it is another model's, or was computed with other settings, so it was read "
                "again."
            )
        case ReuseReason.EVICTED.value:
            return tr("What was kept of it had to make room for other conversations, so it was read again.")
        case ReuseReason.NOT_KEPT.value:
            return tr(
                "What was computed of this conversation before is not kept any more, so it was read again."
            )
        case ReuseReason.CONTEXT_POLICY.value:
            return tr("The oldest messages were left out, so what follows them had to be read again.")
    return ""
