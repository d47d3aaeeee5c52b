"""A message as a whole: its words, its thinking, how it ended and what it cost."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QToolButton

from app.conversations import AnswerStats, Message, MessageStatus
from app.ui.answer_footer import AnswerFooter, ending, explanation, figures
from app.ui.message_view import AnswerView, UserMessageView
from app.ui.sliced_work import SlicedWork
from app.ui.thinking_block import THINKING, THOUGHT
from app.ui.user_bubble import FOLDED_LINES, folded
from app.worker import AnswerDelta


def message(
    text: str = "",
    *,
    role: str = "assistant",
    thinking: str = "",
    status: MessageStatus = MessageStatus.COMPLETE,
    stats: AnswerStats | None = None,
) -> Message:
    return Message("m1", "c1", role, text, thinking, status, datetime(2026, 1, 2, tzinfo=UTC), stats)


def stats(finish_reason: str = "end", *, reused: int = 1000) -> AnswerStats:
    return AnswerStats(1200, reused, 0.5, 99, 9.9, finish_reason, "cpu")


@pytest.fixture
def new_answer(qtbot, work: SlicedWork):
    def make(shown_message: Message) -> AnswerView:
        view = AnswerView(shown_message, work)
        qtbot.addWidget(view)
        view.arrange(700)
        return view

    return make


def test_the_last_token_is_never_lost(new_answer) -> None:
    view = new_answer(message(status=MessageStatus.WRITING))
    for token in ("Hel", "lo", " there"):
        view.extend(AnswerDelta(text=token))
    view.finish(message("Hello there"))
    assert view.text == "Hello there"
    assert view.body.documents[0].toPlainText() == "Hello there"


def test_what_is_on_disk_wins_over_what_was_streamed(new_answer, work: SlicedWork) -> None:
    view = new_answer(message(status=MessageStatus.WRITING))
    view.extend(AnswerDelta(text="Half of it"))
    view.finish(message("The whole of it", thinking="Hm"))
    work.run_to_end()
    assert view.body.documents[0].toPlainText() == "The whole of it"
    assert view.thinking is not None
    assert view.thinking.text == "Hm"


def test_a_delta_after_the_end_changes_nothing(new_answer) -> None:
    view = new_answer(message(status=MessageStatus.WRITING))
    view.finish(message("Done"))
    view.extend(AnswerDelta(text=" late"))
    assert view.text == "Done"


def test_thinking_is_folded_and_a_click_opens_it(
    qtbot, new_answer, work: SlicedWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter((5.0, 5.25))
    monkeypatch.setattr("app.ui.message_view.perf_counter", lambda: next(clock))
    view = new_answer(message(status=MessageStatus.WRITING))
    view.extend(AnswerDelta(thinking="I wonder"))
    qtbot.waitUntil(lambda: view.thinking is not None)
    thinking = view.thinking
    assert thinking is not None
    assert thinking.button.text() == THINKING
    assert thinking.documents == ()
    closed = view.arrange(700)
    thinking.button.click()
    assert thinking.documents[0].toPlainText() == "I wonder"
    assert view.arrange(700) > closed
    view.extend(AnswerDelta(thinking=" about it", text="So"))
    qtbot.waitUntil(lambda: view.text == "So")
    assert thinking.documents[0].toPlainText() == "I wonder about it"
    assert thinking.button.text().startswith("Thought for less than 1")
    thinking.button.click()
    assert thinking.documents == ()


@pytest.mark.parametrize(
    ("seconds", "title"),
    [(0.0, THOUGHT), (12.4, "Thought for 12\u202fs"), (75.0, "Thought for 1\u202fmin 15\u202fs")],
)
def test_thinking_says_how_long_it_took(new_answer, seconds: float, title: str) -> None:
    read = replace(message("So", thinking="Hm"), stats=replace(stats(), thinking_seconds=seconds))
    view = new_answer(read)
    assert view.thinking is not None
    assert view.thinking.button.text() == title
    assert view.thinking.button.accessibleName() == title


def test_the_end_of_an_answer_corrects_how_long_it_thought(qtbot, new_answer) -> None:
    view = new_answer(message(status=MessageStatus.WRITING))
    view.extend(AnswerDelta(thinking="Hm"))
    view.extend(AnswerDelta(text="So"))
    view.finish(replace(message("So", thinking="Hm"), stats=replace(stats(), thinking_seconds=30.0)))
    assert view.thinking is not None
    assert view.thinking.button.text() == "Thought for 30\u202fs"


def test_an_answer_without_thinking_has_no_block_for_it(new_answer) -> None:
    assert new_answer(message("Hi")).thinking is None


def test_an_answer_copies_its_markdown(new_answer) -> None:
    view = new_answer(message("**Hi**", stats=stats()))
    (button,) = [
        one for one in view.findChildren(QToolButton) if one.accessibleName() == "Copy answer as Markdown"
    ]
    QTest.mouseClick(button, Qt.MouseButton.LeftButton)
    assert QGuiApplication.clipboard().text() == "**Hi**"


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        (MessageStatus.COMPLETE, "end", ""),
        (MessageStatus.COMPLETE, "stop", ""),
        (MessageStatus.COMPLETE, "context", "context full"),
        (MessageStatus.COMPLETE, "length", "length limit reached"),
        (MessageStatus.STOPPED, "cancelled", "stopped by you"),
        (MessageStatus.INTERRUPTED, "", "interrupted: the program was closed"),
        (MessageStatus.FAILED, "", "failed: the engine could not go on"),
        (MessageStatus.FAILED, "The memory is full.", "failed: The memory is full."),
        (MessageStatus.WRITING, "", ""),
        (MessageStatus.ELSEWHERE, "", "another window is writing this; open the chat again to see more"),
    ],
)
def test_how_an_answer_ended_is_said_in_plain_words(status: MessageStatus, reason: str, words: str) -> None:
    ended = message("x", status=status, stats=stats(reason) if reason else None)
    assert ending(ended) == words


@pytest.mark.parametrize("width", [180, 250, 420, 520, 720])
@pytest.mark.parametrize("status", [MessageStatus.COMPLETE, MessageStatus.STOPPED, MessageStatus.FAILED])
def test_what_was_reused_is_seen_whole_however_narrow_the_column_is(
    qtbot, width: int, status: MessageStatus
) -> None:
    cost = AnswerStats(3400, 1203, 0.1, 40, 2.0, "The file is gone.", "cpu", "history-rewritten", 1203)
    footer = AnswerFooter(lambda: "")
    qtbot.addWidget(footer)
    footer.show_message(message("text", status=status, stats=cost))
    height = footer.arrange(width)
    footer.resize(width, height)
    label = footer.figures
    assert label.text().endswith("reused 1,203 of 3,400 tokens (history rewritten at token 1,203) · CPU")
    assert label.height() >= label.heightForWidth(label.width())
    assert footer.rect().contains(label.geometry())
    assert not label.geometry().intersects(footer.actions_.geometry())
    assert label.toolTip() == "", "the sentences of the footer are what the mouse finds"


def test_the_figures_name_tokens_speed_reuse_and_device() -> None:
    written = message("x", stats=stats())
    assert figures(written) == "100 tokens · 10.0 tok/s · reused 1,000 of 1,200 tokens · CPU"
    assert "reused" not in figures(replace(written, stats=stats(reused=0)))
    assert figures(replace(written, stats=None)) == ""
    assert "1,000" in explanation(stats())


def test_an_answer_without_a_word_claims_no_token_and_says_why_there_is_none() -> None:
    stopped = message("", status=MessageStatus.STOPPED, stats=replace(stats("cancelled"), decode_tokens=0))
    assert "1 token" not in figures(stopped)
    assert ending(stopped) == "stopped by you"
    assert ending(message("", stats=stats("end"))) == "the model had nothing to say"
    unread = AnswerStats(0, 0, 0.0, 0, 0.0, "cancelled", "cpu")
    assert explanation(unread) == "", "it was stopped before the conversation was read"
    failed = message("Half", status=MessageStatus.FAILED, stats=replace(unread, finish_reason="No room."))
    assert (ending(failed), figures(failed)) == ("failed: No room.", ""), "nothing was measured"


def test_what_the_person_wrote_is_shown_as_it_was_written(qtbot, work: SlicedWork) -> None:
    text = "**not bold** <b>x</b>\n    indented\n# no heading"
    view = UserMessageView(message(text, role="user"), work)
    qtbot.addWidget(view)
    assert [document.toPlainText() for document in view.documents] == [text]


@pytest.mark.parametrize("lines", [FOLDED_LINES - 1, FOLDED_LINES, FOLDED_LINES + 1, 5000])
def test_a_long_message_of_the_person_unfolds_to_all_of_it(qtbot, work: SlicedWork, lines: int) -> None:
    text = "\n".join(f"line {number}" for number in range(lines))
    view = UserMessageView(message(text, role="user"), work)
    qtbot.addWidget(view)
    (document,) = view.documents
    if lines <= FOLDED_LINES:
        assert document.toPlainText() == text
        return
    assert document.toPlainText() == folded(text) == "\n".join(text.split("\n")[:FOLDED_LINES])
    more = view.bubble.more_button
    assert more is not None
    more.click()
    work.run_to_end()
    assert document.toPlainText() == text
    more.click()
    assert document.toPlainText() == folded(text)
