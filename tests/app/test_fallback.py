"""An answer that the processor computed though a card was to says so for as long as it is kept."""

from __future__ import annotations

import pytest

from app.answer_stats import AnswerStats
from app.fallback import answer_fallback, model_fallback
from engine.notices import Notice

FAILED = Notice("card-fallback", "The model runs on the CPU, not on the card: it is full.")
LOST = Notice("card-lost-meanwhile", "From here on the model runs on the CPU.")
NO_ROOM = Notice("state-fallback", "The card has no memory left for this conversation.")


@pytest.mark.parametrize(
    ("device", "notices", "why"),
    [
        ("cuda", (), ""),
        ("cuda", (FAILED,), ""),
        ("cpu", (), ""),
        ("cpu", (Notice("card-missing", "There is no card."),), ""),
        ("cpu", (FAILED,), FAILED.message),
        ("cpu", (FAILED, LOST), LOST.message),
    ],
)
def test_a_model_is_in_fallback_where_a_card_was_to_compute_it(device, notices, why: str) -> None:
    assert model_fallback(device, notices) == why


def test_a_chat_without_a_place_on_the_card_is_in_fallback_every_time_and_not_only_when_it_is_told() -> None:
    first = answer_fallback("cpu", of_model="cuda", why_model="", notices=[NO_ROOM])
    later = answer_fallback("cpu", of_model="cuda", why_model="", notices=[])
    assert first == NO_ROOM.message
    assert "no room for this chat on the card" in later


@pytest.mark.parametrize("device", ["", "cuda"])
def test_an_answer_where_the_model_runs_is_in_no_fallback_of_its_own(device: str) -> None:
    assert answer_fallback(device, of_model="cuda", why_model="", notices=[]) == ""
    assert answer_fallback("cpu", of_model="cpu", why_model=FAILED.message, notices=[]) == FAILED.message


def test_the_reason_is_kept_with_the_answer_and_answers_from_before_have_none() -> None:
    stats = AnswerStats(10, 0, 0.5, 3, 0.1, "end", "cpu", fallback=NO_ROOM.message)
    assert AnswerStats.from_json(stats.as_json()) == stats
    old = stats.as_json().replace(f', "fallback": "{NO_ROOM.message}"', "")
    assert "fallback" not in old
    read = AnswerStats.from_json(old)
    assert read is not None
    assert read.fallback == ""
