"""How much of a prompt was there already, and why it wasn't more, in words. Pure functions; no widget."""

from __future__ import annotations

from app.answer_stats import AnswerStats
from engine.generation import ReuseReason
from engine.wording import format_tokens


def reuse_words(stats: AnswerStats) -> str:
    """ "reused 20 of 30 tokens", and in brackets why it is so little; "" when no prompt was read, or when
    nothing is known (answers of earlier versions).
    """
    if not stats.prompt_tokens or not (stats.reused_tokens or stats.reuse_reason):
        return ""
    words = f"reused {stats.reused_tokens:,} of {format_tokens(stats.prompt_tokens)}"
    reason = _short_reason(stats)
    return f"{words} ({reason})" if reason else words


def reuse_sentences(stats: AnswerStats) -> list[str]:
    """The same as whole sentences, for the tooltip."""
    if not stats.prompt_tokens:  # 0: stopped before it was read
        return []
    sentences = [f"The conversation so far was {format_tokens(stats.prompt_tokens)}."]
    if stats.reused_tokens:
        sentences.append(f"{stats.reused_tokens:,} of them were still in memory and not computed again.")
    if reason := _long_reason(stats):
        sentences.append(reason)
    if stats.left_out:
        them = "message was" if stats.left_out == 1 else "messages were"
        sentences.append(f"The {stats.left_out} oldest {them} left out, so that the rest had room.")
    return sentences


def _short_reason(stats: AnswerStats) -> str:
    at = f" at token {stats.diverged_at:,}" if stats.diverged_at is not None else ""
    return {
        ReuseReason.NEW.value: "new conversation",
        ReuseReason.HISTORY_REWRITTEN.value: f"history rewritten{at}",
        ReuseReason.OTHER_MODEL.value: "other model",
        ReuseReason.EVICTED.value: "had to make room",
        ReuseReason.NOT_KEPT.value: "it was not kept",
        ReuseReason.CONTEXT_POLICY.value: "oldest messages left out",
    }.get(stats.reuse_reason, "")


def _long_reason(stats: AnswerStats) -> str:
    at = f" from token {stats.diverged_at:,} on" if stats.diverged_at is not None else ""
    return {
        ReuseReason.NEW.value: (
            "Nothing that is kept begins with more of this conversation."
            if stats.reused_tokens
            else "Nothing that is kept begins as this conversation does."
        ),
        ReuseReason.HISTORY_REWRITTEN.value: (
            f"The model's template, or an edit, wrote the conversation differently{at}, "
            "so what follows was read again."
        ),
        ReuseReason.OTHER_MODEL.value: (
            "What was kept of it is another model's, or was computed with other settings, so it was read "
            "again."
        ),
        ReuseReason.EVICTED.value: (
            "What was kept of it had to make room for other conversations, so it was read again."
        ),
        ReuseReason.NOT_KEPT.value: (
            "What was computed of this conversation before is not kept any more, so it was read again."
        ),
        ReuseReason.CONTEXT_POLICY.value: (
            "The oldest messages were left out, so what follows them had to be read again."
        ),
    }.get(stats.reuse_reason, "")
