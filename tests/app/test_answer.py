"""The answer that grows knows how long the model thought before it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from app.answer import AnswerRecorder
from app.conversations import AnswerStats, Message, MessageStatus
from app.engine_commands import AnswerDelta

STATS = AnswerStats(30, 20, 0.5, 40, 2.0, "end", "cpu")
GROWING = Message("m", "c", "assistant", "", "", MessageStatus.WRITING, datetime(2026, 1, 2, tzinfo=UTC))


class NoDisk:
    """Takes everything, and says that it is saved."""

    def run(self, function, on_success, on_error, *, doing: str) -> None:
        on_success(function(self))

    def finish_answer(self, message_id: str, **ended) -> Message:
        return replace(GROWING, **ended)


@pytest.mark.parametrize(
    ("deltas", "seconds"),
    [
        ([(0, "", "Hi"), (5, "", " there")], 0.0),
        ([(2, "Hm", ""), (3, "m", ""), (4, "", "So"), (9, "", ".")], 7.0),
        ([(0, "Hm", ""), (6, "", "\n"), (1, "", "So")], 7.0),
        ([(0, "Hm", ""), (6, "m", "")], 6.0),
        ([(0, "Hm", ""), (2, "", "So"), (9, "more", ""), (1, "", "x")], 2.0),
    ],
    ids=["none", "then an answer", "white space between", "never an answer", "thinks again"],
)
def test_thinking_is_timed_until_the_first_word_of_the_answer(qtbot, deltas, seconds: float) -> None:
    now = 100.0
    recorder = AnswerRecorder(NoDisk(), clock=lambda: now)  # type: ignore[arg-type]
    for _ in range(2):  # an answer has nothing of the one before
        recorder.begin(GROWING)
        for after, thinking, text in deltas:
            now += after
            recorder.extend(AnswerDelta(thinking, text))
        with qtbot.waitSignal(recorder.finished) as ended:
            recorder.finish(MessageStatus.COMPLETE, STATS)
        (message,) = ended.args
        assert message.stats.thinking_seconds == seconds
        assert AnswerStats.from_json(message.stats.as_json()) == message.stats


def test_figures_of_an_older_version_claim_no_thinking() -> None:
    old = STATS.as_json().replace('"thinking_seconds": 0.0, ', "")
    assert "thinking_seconds" not in old
    assert AnswerStats.from_json(old) == STATS
