"""How much was reused, and why it wasn't more, as it stands under every answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.answer_stats import AnswerStats
from app.ui.reuse_words import reuse_sentences, reuse_words
from engine.generation import ReuseReason

STATS = AnswerStats(1234, 1200, 0.1, 40, 2.0, "end", "cpu")


def test_what_was_reused_is_said_of_every_prompt_that_was_read() -> None:
    assert reuse_words(STATS) == "reused 1,200 of 1,234 tokens"
    assert reuse_words(replace(STATS, reused_tokens=0, reuse_reason="new")) == (
        "reused 0 of 1,234 tokens (new conversation)"
    )


@pytest.mark.parametrize(
    ("reason", "diverged_at", "short", "long"),
    [
        ("history-rewritten", 40, "history rewritten at token 40", "from token 40 on"),
        ("history-rewritten", None, "history rewritten", "read again"),
        ("other-model", None, "other model", "another model's"),
        ("evicted", None, "had to make room", "make room for other"),
        ("not-kept", None, "it was not kept", "not kept any more"),
        ("context-policy", 7, "oldest messages left out", "left out"),
    ],
)
def test_the_reason_is_said_in_brackets_and_as_a_sentence(
    reason: str, diverged_at: int | None, short: str, long: str
) -> None:
    stats = replace(STATS, reused_tokens=3, reuse_reason=reason, diverged_at=diverged_at)
    assert reuse_words(stats) == f"reused 3 of 1,234 tokens ({short})"
    assert any(long in sentence for sentence in reuse_sentences(stats))


def test_every_reason_of_the_engine_has_its_words() -> None:
    for reason in ReuseReason:
        assert reuse_words(replace(STATS, reuse_reason=str(reason))).endswith(")")
        assert len(reuse_sentences(replace(STATS, reuse_reason=str(reason)))) == 3


def test_what_a_new_conversation_has_in_common_with_others_is_not_denied() -> None:
    shared, alone = (replace(STATS, reused_tokens=count, reuse_reason="new") for count in (30, 0))
    assert reuse_sentences(shared)[-1] == "Nothing that is kept begins with more of this conversation."
    assert reuse_sentences(alone)[-1] == "Nothing that is kept begins as this conversation does."


def test_a_reason_of_a_newer_version_is_passed_over() -> None:
    assert reuse_words(replace(STATS, reuse_reason="comet")) == "reused 1,200 of 1,234 tokens"


def test_nothing_is_claimed_where_nothing_was_read_or_nothing_is_known() -> None:
    assert reuse_words(replace(STATS, prompt_tokens=0)) == ""
    assert reuse_sentences(replace(STATS, prompt_tokens=0)) == []
    assert reuse_words(replace(STATS, reused_tokens=0)) == ""


def test_what_was_left_out_is_counted() -> None:
    assert reuse_sentences(replace(STATS, left_out=12))[-1].startswith("The 12 oldest messages were")
    assert reuse_sentences(replace(STATS, left_out=1))[-1].startswith("The 1 oldest message was")
