"""The chat follows its end only for a reader who is there, opens long conversations at once, and never
stalls.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from PySide6.QtCore import QEvent, QPoint, QPointF, Qt, QTimer, QUrl
from PySide6.QtGui import QGuiApplication, QMouseEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractButton, QApplication, QWidget
from stall_meter import TurnMeter

from app.conversations import AnswerStats, Conversation, ConversationSummary, Message, MessageStatus
from app.ui.answer_footer import AnswerFooter
from app.ui.chat_pane import ChatPane
from app.ui.code_view import CodeView
from app.ui.document_view import DocumentView
from app.ui.message_view import AnswerView
from app.ui.theme import TEXT_COLUMN_WIDTH
from app.ui.waiting_dots import WaitingDots
from app.worker import AnswerDelta

LONGEST_STALL_MS = 100.0
STREAMING_STALL_MS = 50.0  # while an answer grows
WHEN = datetime(2026, 1, 2, tzinfo=UTC)
STATS = AnswerStats(1200, 1000, 0.5, 99, 9.9, "end", "cpu")
PARAGRAPH = "Some words with **strength** and `code` that fill more than a line of the column. " * 3 + "\n\n"
ANSWER = f"""# Title

{PARAGRAPH}1. One
2. Two

```python
def f(x):
    return [x for _ in range(10)]  # a comment
```

| a | b |
|---|---|
| 1 | 2 |

{PARAGRAPH}"""


def message(number: int, text: str, *, role: str = "assistant", status=MessageStatus.COMPLETE) -> Message:
    return Message(f"m{number}", "c1", role, text, "", status, WHEN, STATS if role == "assistant" else None)


def conversation(*messages: Message) -> Conversation:
    return Conversation(ConversationSummary("c1", "Title", WHEN, WHEN), messages)


def exchange(count: int, text: str = ANSWER) -> Conversation:
    """`count` messages, questions and answers in turn."""
    return conversation(
        *(
            message(number, text if number % 2 else "A question", role="assistant" if number % 2 else "user")
            for number in range(count)
        )
    )


@pytest.fixture
def opened(qtbot, pane: ChatPane) -> ChatPane:
    """With a conversation of several screens, all of it built."""
    pane.show_conversation(exchange(12))
    wait_until_built(qtbot, pane)
    return pane


def wait_until_built(qtbot, pane: ChatPane) -> None:
    qtbot.waitUntil(lambda: not pane.transcript.work.busy, timeout=60_000)


def answering(pane: ChatPane, number: int = 100) -> Message:
    answer = message(number, "", status=MessageStatus.WRITING)
    pane.add_message(answer)
    pane.set_answering(True)
    return answer


def stream(qtbot, pane: ChatPane, text: str, *, size: int, rounds_ms: int = 0) -> float:
    """Streams a text as fast as the loop comes round, `size` characters a time; the longest stall in ms."""
    answer = answering(pane)
    position = 0
    done = False
    timer = QTimer()

    def feed() -> None:
        nonlocal position, done
        pane.extend_answer(answer.id, AnswerDelta(text=text[position : position + size]))
        position += size
        if position >= len(text):
            timer.stop()
            pane.finish_answer(replace(answer, text=text, status=MessageStatus.COMPLETE, stats=STATS))
            done = True

    timer.timeout.connect(feed)
    meter = TurnMeter()
    timer.start(rounds_ms)
    qtbot.waitUntil(lambda: done and not pane.transcript.work.busy, timeout=120_000)
    return meter.stop()


def all_words(pane: ChatPane) -> str:
    return "\n".join(document.toPlainText() for document in pane.transcript.documents)


def test_another_conversation_takes_the_place_of_one_half_built(qtbot, pane: ChatPane) -> None:
    pane.show_conversation(exchange(300))
    qtbot.waitUntil(lambda: len(pane.transcript.views) >= 3)
    pane.show_conversation(conversation(message(1, "Only this")))
    wait_until_built(qtbot, pane)
    assert all_words(pane) == "Only this"


def test_a_reader_above_stays_where_they_are_while_older_messages_come(qtbot, pane: ChatPane, bar) -> None:
    pane.show_conversation(exchange(60))
    qtbot.waitUntil(lambda: bar.maximum() > 1500)
    bar.setValue(bar.maximum() - 900)
    top = bar.value()
    qtbot.waitUntil(lambda: any(one.y() + one.height() > top for one in pane.transcript.views))
    view = next(one for one in pane.transcript.views if one.y() + one.height() > top)
    offset = view.y() - bar.value()
    wait_until_built(qtbot, pane)
    assert view.y() - bar.value() == offset


def test_it_follows_an_answer_while_the_reader_is_at_the_end(qtbot, opened: ChatPane) -> None:
    stream(qtbot, opened, PARAGRAPH * 10, size=40)
    assert opened.transcript.at_bottom
    assert not opened.jump_button.isVisible()


def test_it_leaves_a_reader_alone_who_has_scrolled_up(qtbot, opened: ChatPane, bar) -> None:
    answering(opened)
    bar.setValue(bar.maximum() - 300)
    here = bar.value()
    assert opened.jump_button.isVisible()
    opened.extend_answer("m100", AnswerDelta(text=PARAGRAPH * 10))
    view = opened.transcript.view("m100")
    assert isinstance(view, AnswerView)
    qtbot.waitUntil(lambda: "Some words" in view.text)
    assert bar.value() == here
    QTest.mouseClick(opened.jump_button, Qt.MouseButton.LeftButton)
    assert opened.transcript.at_bottom
    assert not opened.jump_button.isVisible()
    opened.extend_answer("m100", AnswerDelta(text=PARAGRAPH * 5))
    qtbot.waitUntil(lambda: view.text.count("Some words") == 45)
    assert opened.transcript.at_bottom


def test_a_message_of_ones_own_is_gone_to_from_anywhere(opened: ChatPane, bar) -> None:
    bar.setValue(0)
    opened.add_message(message(50, "Mine", role="user"))
    assert opened.transcript.at_bottom


def test_opening_a_thought_does_not_lose_the_place(qtbot, pane: ChatPane, bar) -> None:
    thoughtful = replace(message(1, ANSWER * 3), thinking="A thought\n\n" * 30)
    pane.show_conversation(conversation(message(0, "Why?", role="user"), thoughtful))
    wait_until_built(qtbot, pane)
    bar.setValue(0)
    view = pane.transcript.views[1]
    assert isinstance(view, AnswerView)
    assert view.thinking is not None
    where = view.thinking.button.mapTo(pane, QPoint(0, 0))
    view.thinking.button.click()
    wait_until_built(qtbot, pane)
    assert view.thinking.button.mapTo(pane, QPoint(0, 0)) == where


def test_what_jumps_to_the_end_stays_above_a_composer_that_grows(qtbot, opened: ChatPane) -> None:
    opened.transcript.verticalScrollBar().setValue(0)
    assert opened.jump_button.isVisible()
    before = opened.composer.height()
    opened.composer.set_text("line\n" * 6)
    qtbot.waitUntil(lambda: opened.composer.height() > before)
    QApplication.processEvents()
    assert opened.transcript.geometry().contains(opened.jump_button.geometry())


def test_the_column_is_centred_and_never_too_wide_to_read(qtbot, opened: ChatPane) -> None:
    for width in (500, 900, 1600):
        opened.resize(width, 600)
        wait_until_built(qtbot, opened)
        whole = opened.transcript.width()  # with the scroll bar: nothing moves when that comes
        for view in opened.transcript.views:
            assert view.width() <= TEXT_COLUMN_WIDTH
            assert view.x() >= 0
            assert abs((whole - view.width()) // 2 - view.x()) <= 1
            assert view.x() + view.width() <= opened.transcript.viewport().width()
        tops = [view.y() for view in opened.transcript.views]
        bottoms = [view.y() + view.height() for view in opened.transcript.views]
        assert all(bottom < top for bottom, top in zip(bottoms, tops[1:], strict=False))
    assert opened.transcript.at_bottom


def test_a_streamed_answer_is_all_there(qtbot, opened: ChatPane) -> None:
    stream(qtbot, opened, ANSWER, size=7)
    view = opened.transcript.view("m100")
    assert isinstance(view, AnswerView)
    assert view.text == ANSWER


def test_deltas_for_a_message_that_is_not_shown_are_left(pane: ChatPane) -> None:
    pane.show_conversation(None)
    pane.extend_answer("unknown", AnswerDelta(text="x"))
    pane.finish_answer(message(9, "x"))
    assert all_words(pane) == ""


def test_an_answer_can_come_while_its_conversation_is_still_being_built(qtbot, pane: ChatPane) -> None:
    pane.show_conversation(exchange(40))
    pane.add_message(message(40, "And now?", role="user"))
    answering(pane, 41)
    pane.extend_answer("m41", AnswerDelta(text="This"))
    wait_until_built(qtbot, pane)
    pane.finish_answer(message(41, "This."))
    wait_until_built(qtbot, pane)
    assert [view.message_id for view in pane.transcript.views] == [f"m{number}" for number in range(42)]


def test_coming_back_to_an_answer_that_grows_goes_on_from_what_is_on_disk(qtbot, pane: ChatPane) -> None:
    growing = message(1, "On disk", status=MessageStatus.WRITING)
    pane.show_conversation(conversation(message(0, "Q", role="user"), growing))
    wait_until_built(qtbot, pane)
    pane.extend_answer("m1", AnswerDelta(text=" and on"))
    pane.finish_answer(message(1, "On disk and on and on"))
    wait_until_built(qtbot, pane)
    assert pane.transcript.view("m1").text == "On disk and on and on"  # type: ignore[union-attr]


def test_answer_that_ends_before_its_view_is_built_is_shown_as_it_ended(qtbot, pane: ChatPane) -> None:
    """Coming back just as the answer ends: what was read from the disk still says that it grows."""
    growing = message(1, "On disk", status=MessageStatus.WRITING)
    pane.show_conversation(conversation(message(0, "Q", role="user"), growing))
    assert pane.transcript.views == ()
    pane.extend_answer("m1", AnswerDelta(text=" and on"))
    pane.finish_answer(message(1, "On disk and on."))
    wait_until_built(qtbot, pane)
    view = pane.transcript.view("m1")
    assert isinstance(view, AnswerView)
    assert view.text == "On disk and on."
    assert view.findChild(WaitingDots).isHidden()
    assert not view.findChild(AnswerFooter).isHidden()


def test_words_that_come_before_the_view_is_built_are_in_it(qtbot, pane: ChatPane) -> None:
    growing = message(1, "On disk", status=MessageStatus.WRITING)
    pane.show_conversation(conversation(message(0, "Q", role="user"), growing))
    pane.extend_answer("m1", AnswerDelta(text=" and on"))
    wait_until_built(qtbot, pane)
    pane.extend_answer("m1", AnswerDelta(text=" and on"))
    qtbot.waitUntil(lambda: pane.transcript.view("m1").text == "On disk and on and on")


# Traps that other programs fell into


def test_a_code_block_of_two_thousand_lines_never_stalls(qtbot, pane: ChatPane) -> None:
    code = "".join(f"    value_{n} = compute('{n}', [x for x in range({n})])  # why\n" for n in range(2000))
    longest = stream(qtbot, pane, f"```python\n{code}```\n", size=200)
    assert longest < STREAMING_STALL_MS
    view = pane.transcript.view("m100")
    assert isinstance(view, AnswerView)
    (piece,) = view.body.pieces
    assert isinstance(piece, CodeView)
    assert piece.text + "\n" == code


def test_an_answer_of_ten_thousand_tokens_never_stalls(qtbot, pane: ChatPane) -> None:
    assert stream(qtbot, pane, ANSWER * 60, size=60) < STREAMING_STALL_MS


@pytest.mark.parametrize(
    "text",
    [
        "word **bold** `code` " * 50_000,
        "x" * 1_000_000,
        "\n" * 100_000,
        "a\n" * 30_000,
        "```python\n" + "x = foo(1, 'a')  # c\n" * 4000 + "```\n",
        "| a | b |\n|---|---|\n" + "| x **b** y | some words |\n" * 600,
        "- item with **words**\n" * 4000,
        "[" * 20_000,
        "$x_1^2$ and $\\frac{a}{b}$ " * 4_000,
        "$" * 20_000,
        "$$\nx\n" * 4_000,
        "\\[ x " * 8_000,
        "\u202eright to left \u05d0\u05d1 e\u0301\u0300\u0302 " * 4_000,
        "e" + "\u0301" * 20_000,
        "\u200b\u200d\ufeff\x00\x07\x1b[31m" * 4_000,
        "<script>alert(1)</script><img src=file:///etc/passwd onerror=x>\n" * 2_000,
        "**a _b `c [d](e ~~f " * 2_000,
        "".join(
            ["    ", "\t", "- ", "   * ", "1. ", "", ">  "][n % 7]
            + "Once upon a time there was a word that grew. " * (1 + n % 5)
            + "\n" * (1 + n % 2)
            for n in range(300)
        ),
    ],
    ids=[
        "1 MB line",
        "1 MB word",
        "newlines",
        "lines",
        "code",
        "table",
        "list",
        "brackets",
        "formulas",
        "dollars",
        "open formulas",
        "open brackets",
        "right to left",
        "combining",
        "control",
        "HTML",
        "broken",
        "odd indents",
    ],
)
def test_no_text_holds_the_window_up(qtbot, pane: ChatPane, text: str) -> None:
    meter = TurnMeter()
    pane.show_conversation(conversation(message(0, text, role="user"), message(1, text)))
    end = time.perf_counter() + 3.0  # the costliest parts come at once; the rest is more of the same
    qtbot.waitUntil(lambda: not pane.transcript.work.busy or time.perf_counter() > end, timeout=20_000)
    assert meter.stop() < LONGEST_STALL_MS


@pytest.mark.parametrize("lines", [200, 2000])
def test_a_pasted_story_never_stalls_the_composer(qtbot, pane: ChatPane, lines: int) -> None:
    story = "".join(
        " " * (n % 9) + ("- " if n % 3 else "") + "Once upon a time, far away. " * 3 + "\n"
        for n in range(lines)
    )

    meter = TurnMeter()
    QGuiApplication.clipboard().setText(story)
    pane.composer.edit.paste()
    QTest.keyClicks(pane.composer.edit, "The end")
    qtbot.waitUntil(lambda: "The end" in pane.composer.text)
    assert meter.stop() < LONGEST_STALL_MS
    assert story in pane.composer.text
    assert "The end" in pane.composer.text


def test_text_is_kept_when_no_model_can_take_it(pane: ChatPane) -> None:
    sent: list[str] = []
    pane.send_requested.connect(sent.append)
    pane.set_model_ready(False, "Choose a model first.")
    pane.composer.set_text("Keep me")
    QTest.keyClick(pane.composer.edit, Qt.Key.Key_Return)
    assert sent == []
    assert pane.composer.text == "Keep me"
    pane.set_model_ready(True, "")
    QTest.keyClick(pane.composer.edit, Qt.Key.Key_Return)
    assert sent == ["Keep me"]
    pane.reject_send("Keep me")
    assert pane.composer.text == "Keep me"
    QTest.keyClick(pane.composer.edit, Qt.Key.Key_Return)
    pane.accept_send("Keep me")
    assert pane.composer.text == ""


def test_everything_that_takes_the_focus_has_a_name(qtbot, opened: ChatPane) -> None:
    answering(opened)
    nameless = [
        widget
        for widget in opened.findChildren(QWidget)
        if widget.focusPolicy() != Qt.FocusPolicy.NoFocus and not widget.accessibleName()
    ]
    assert nameless == []
    buttons = opened.findChildren(QAbstractButton)
    assert buttons
    assert all(button.accessibleName() and button.toolTip() for button in buttons)


# What the person does


def test_escape_stops_the_answer_and_only_the_answer(qtbot, pane: ChatPane) -> None:
    stops: list[bool] = []
    pane.stop_requested.connect(lambda: stops.append(True))
    QTest.keyClick(pane.composer.edit, Qt.Key.Key_Escape)
    assert stops == []
    pane.set_answering(True)
    QTest.keyClick(pane.composer.edit, Qt.Key.Key_Escape)
    assert stops == [True]


def test_an_empty_chat_says_what_to_do(pane: ChatPane) -> None:
    pane.show_conversation(None)
    assert pane.empty.isVisible()
    ready = pane.empty.title
    pane.set_model_ready(False, "Choose a model first.")
    assert pane.empty.title != ready
    pane.add_message(message(0, "Hi", role="user"))
    assert not pane.empty.isVisible()


def test_links_are_told_to_the_window(qtbot, pane: ChatPane) -> None:
    pane.show_conversation(conversation(message(1, "[here](https://a.b/c)")))
    wait_until_built(qtbot, pane)
    (document,) = pane.transcript.documents
    with qtbot.waitSignal(pane.link_activated) as blocker:
        document.anchorClicked.emit(QUrl("https://a.b/c"))
    assert blocker.args == [QUrl("https://a.b/c")]


def drag(start: DocumentView, end: DocumentView) -> None:
    """From the first character of one document to far behind the last of another."""
    left = Qt.MouseButton.LeftButton
    QTest.mousePress(start.viewport(), left, pos=QPoint(0, 2))
    stop = start.viewport().mapFromGlobal(
        end.viewport().mapToGlobal(QPoint(end.viewport().width() - 2, end.viewport().height() - 2))
    )
    event_at = QPoint(stop)
    move(start, event_at)
    QTest.mouseRelease(start.viewport(), left, pos=event_at)


def move(document: DocumentView, position: QPoint) -> None:
    viewport = document.viewport()
    event = QMouseEvent(
        QEvent.Type.MouseMove,
        QPointF(position),
        QPointF(viewport.mapToGlobal(position)),
        Qt.MouseButton.NoButton,
        Qt.MouseButton.LeftButton,
        Qt.KeyboardModifier.NoModifier,
    )
    QApplication.sendEvent(viewport, event)


def test_a_selection_goes_over_messages_and_code(qtbot, pane: ChatPane) -> None:
    pane.show_conversation(
        conversation(message(0, "Question", role="user"), message(1, "Before\n\n```py\nx = 1\n```\n\nAfter"))
    )
    wait_until_built(qtbot, pane)
    documents = list(pane.transcript.documents)
    assert len(documents) == 4
    drag(documents[0], documents[3])
    assert pane.transcript.selected_text() == "Question\n\nBefore\n\nx = 1\n\nAfter"
    documents[1].copy()
    assert QGuiApplication.clipboard().text() == "Question\n\nBefore\n\nx = 1\n\nAfter"
    QTest.mouseClick(documents[3].viewport(), Qt.MouseButton.LeftButton, pos=QPoint(1, 1))
    assert pane.transcript.selected_text() == ""


def test_a_selection_can_go_upwards(qtbot, pane: ChatPane) -> None:
    pane.show_conversation(conversation(message(0, "Question", role="user"), message(1, "Answer")))
    wait_until_built(qtbot, pane)
    question, answer = pane.transcript.documents
    left = Qt.MouseButton.LeftButton
    QTest.mousePress(answer.viewport(), left, pos=QPoint(answer.viewport().width() - 2, 5))
    move(answer, answer.viewport().mapFromGlobal(question.viewport().mapToGlobal(QPoint(0, 2))))
    assert pane.transcript.selected_text() == "Question\n\nAnswer"
