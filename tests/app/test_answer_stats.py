"""Figures come back from disk as they were, and damaged ones never keep a conversation from opening."""

from __future__ import annotations

import json

import pytest

from app.answer_stats import AnswerStats

STATS = AnswerStats(12, 3, 0.5, 40, 2.0, "end", "cpu")


def test_figures_come_back_as_they_were() -> None:
    assert AnswerStats.from_json(STATS.as_json()) == STATS


def test_why_little_was_reused_and_what_was_left_out_come_back() -> None:
    stats = AnswerStats(12, 3, 0.5, 40, 2.0, "end", "cpu", "history-rewritten", 3, 6)
    assert AnswerStats.from_json(stats.as_json()) == stats


def test_figures_of_the_first_version_still_tell_what_they_told() -> None:
    written = json.loads(STATS.as_json())
    for later in ("reuse_reason", "diverged_at", "left_out"):
        del written[later]
    assert AnswerStats.from_json(json.dumps(written)) == STATS


def test_the_context_holds_prompt_and_answer() -> None:
    assert STATS.context_tokens == 12 + 41
    assert AnswerStats(0, 0, 0.0, 0, 0.0, "failed", "cpu").context_tokens == 0


def test_fields_of_a_newer_version_are_passed_over() -> None:
    assert AnswerStats.from_json(json.dumps(json.loads(STATS.as_json()) | {"joules": 3})) == STATS


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "null", "{}", '{"prompt_tokens": 1}', "NaN"],
    ids=lambda text: text or "empty",
)
def test_what_holds_no_figures_gives_none(text: str) -> None:
    assert AnswerStats.from_json(text) is None


@pytest.mark.parametrize("value", ["many", None, True, [1], float("nan"), float("inf")])
def test_a_figure_that_is_no_number_gives_none(value: object) -> None:
    assert AnswerStats.from_json(json.dumps(json.loads(STATS.as_json()) | {"decode_tokens": value})) is None
