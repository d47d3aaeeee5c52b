"""An answer that grows shows the same as one that was there from the start, and what stands is left alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import cycle

import pytest
import shiboken6
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QGuiApplication, QTextDocument
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLabel, QToolButton

from app.conversations import AnswerStats, Message, MessageStatus
from app.settings import Theme as ThemeChoice
from app.ui.answer_footer import AnswerFooter, ending, explanation, figures
from app.ui.code_highlight import MAX_COLOURED, Part, language_title, part_colors, parts
from app.ui.code_view import CodeView
from app.ui.message_body import MessageBody
from app.ui.message_view import AnswerView, UserMessageView
from app.ui.prose_view import ProseView
from app.ui.sliced_work import SlicedWork
from app.ui.table_view import MAX_ROWS, TableView
from app.ui.theme import DARK, LIGHT, contrast, theme_manager
from app.ui.thinking_block import THINKING, THOUGHT
from app.ui.user_bubble import FOLDED_LINES, folded
from app.worker import AnswerDelta

SAMPLE = """# Sorting

Python has **two** ways: `list.sort()` and *sorted()*. See [the manual](https://docs.python.org).

1. First
   - nested, with `code`

     ```python
     def f(x):  # a comment
         return "text"
     ```
2. Second

> A quote
> - with a list

| a | b |
|:--|--:|
| 1 | **2** |
| 3 | 4 |

- [x] done

---

```cpp
#include <vector>
```
End 😀 中文
"""
_PIECES = [
    *(
        "# a\n",
        "word ",
        "**b** ",
        "`c`",
        "\n",
        "\n\n",
        "- ",
        "1. ",
        "> ",
        "   ",
        "```py\n",
        "x = 1\n",
        "```\n",
    ),
    *("| a | b |\n", "|---|---|\n", "| 1 | 2 |\n", "---\n", "<b>", "😀", "[l](http://a.b)", "    code\n"),
]


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
def work(qapp) -> SlicedWork:
    return SlicedWork()


@pytest.fixture
def new_body(qtbot, work: SlicedWork):
    def make() -> MessageBody:
        body = MessageBody(work)
        qtbot.addWidget(body)
        return body

    return make


def shown(body: MessageBody) -> list[tuple]:
    """Every piece as it is: what kind, where, each block's text, format, and the formats of its runs."""
    body.arrange(700)
    found: list[tuple] = []
    for piece in body.pieces:
        (view,) = piece.documents if isinstance(piece, CodeView) else (piece,)
        found.append((type(piece).__name__, piece.geometry().getRect(), blocks(view.document())))
    return found


def blocks(document: QTextDocument) -> list[tuple]:
    result = []
    block = document.begin()
    while block.isValid():
        runs = []
        for iterator in block:
            fragment = iterator.fragment()
            style = fragment.charFormat()
            runs.append((fragment.text(), style.fontWeight(), style.fontItalic(), style.anchorHref()))
        margins = (block.blockFormat().leftMargin(), block.blockFormat().topMargin())
        colours = [(run.start, run.length) for run in block.layout().formats()]
        result.append((block.text(), margins, runs, colours))
        block = block.next()
    return result


def grow(body: MessageBody, text: str, cuts: Sequence[int]) -> None:
    position = 0
    for length in cycle(cuts):
        if position >= len(text):
            break
        body.append(text[position : position + length])
        position += length
    body.finish()


@pytest.mark.parametrize("cuts", [[1], [2, 5], [17], [64, 1]])
def test_a_streamed_answer_ends_as_the_whole_would(new_body, work: SlicedWork, cuts: list[int]) -> None:
    whole, growing = new_body(), new_body()
    whole.set_text(SAMPLE)
    grow(growing, SAMPLE, cuts)
    work.run_to_end()
    assert shown(growing) == shown(whole)
    assert growing.text == whole.text == SAMPLE


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.lists(st.sampled_from(_PIECES), max_size=30).map("".join),
    cuts=st.lists(st.integers(1, 9), min_size=1),
)
def test_any_text_in_any_pieces_ends_as_the_whole_would(new_body, work: SlicedWork, text: str, cuts) -> None:
    whole, growing = new_body(), new_body()
    whole.set_text(text)
    grow(growing, text, cuts)
    work.run_to_end()
    assert shown(growing) == shown(whole)


def test_long_texts_are_shown_whole_too(new_body, work: SlicedWork) -> None:
    text = SAMPLE * 40
    whole, growing = new_body(), new_body()
    whole.set_text(text)
    assert work.busy  # in slices
    work.run_to_end()
    grow(growing, text, [301])
    work.run_to_end()
    assert shown(growing) == shown(whole)


def test_what_is_settled_is_never_laid_out_again(new_body, work: SlicedWork) -> None:
    body = new_body()
    body.append(SAMPLE)
    body.append("\n\nA paragraph after which more comes.\n\n```py\nx = 1\n")
    body.arrange(700)
    settled = body.pieces[:-1]
    documents = [view.document() for piece in settled for view in getattr(piece, "documents", (piece,))]
    revisions = [document.revision() for document in documents]
    laid_out: list[QTextDocument] = []
    for document in documents:
        document.documentLayout().update.connect(lambda *_, document=document: laid_out.append(document))
    for number in range(30):
        body.append(f"y{number} = {number}\n")
        body.arrange(700)
    body.append("```\n\nThe end")
    body.arrange(700)
    assert body.pieces[: len(settled)] == settled
    assert [document.revision() for document in documents] == revisions
    assert laid_out == []


def test_a_line_added_to_code_leaves_the_lines_above_alone(new_body, work: SlicedWork) -> None:
    body = new_body()
    body.append("```py\n" + "x = 1\n" * 500)
    work.run_to_end()
    (piece,) = body.pieces
    assert isinstance(piece, CodeView)
    (view,) = piece.documents
    body.arrange(700)
    changes: list[tuple[int, int, int]] = []
    view.document().contentsChange.connect(lambda *change: changes.append(change))
    before = view.document().characterCount()
    for _ in range(20):
        body.append("y = 22222\n")
        body.arrange(700)
    text_changes = [change for change in changes if change[1] != change[2]]
    assert text_changes
    assert min(position for position, _, _ in text_changes) >= before - 2
    assert piece.text.count("\n") == 519


def test_what_is_shown_fetches_nothing(new_body, work: SlicedWork, monkeypatch: pytest.MonkeyPatch) -> None:
    body = new_body()
    body.set_text(
        "![x](http://a.b/c.png) <img src=file:///etc/passwd> [f](file:///etc/passwd) "
        "<script>alert(1)</script>"
    )
    work.run_to_end()
    (view,) = body.documents
    text = view.toPlainText()
    assert "<img src=file:///etc/passwd>" in text
    assert "<script>alert(1)</script>" in text
    assert (
        view.loadResource(int(QTextDocument.ResourceType.ImageResource), QUrl("file:///etc/passwd")) is None
    )
    anchors = [href for _, _, runs, _ in blocks(view.document()) for _, _, _, href in runs if href]
    assert anchors == ["http://a.b/c.png"]


def test_the_name_of_a_language_is_text_though_a_model_wrote_it(new_body, work: SlicedWork) -> None:
    body = new_body()
    body.set_text("```<img/src=file:///x.png>\nx\n```\n")
    (piece,) = body.pieces
    (label,) = piece.findChildren(QLabel)
    assert label.text() == "<img/src=file:///x.png>"
    assert label.textFormat() == Qt.TextFormat.PlainText


def test_words_behind_the_marks_of_code_are_shown_however_many(new_body, work: SlicedWork) -> None:
    sentence = "and here the model goes on with its sentence, which is longer than the name of any language"
    body = new_body()
    body.set_text(f"```python {sentence}\nx\n```\n")
    (piece,) = body.pieces
    (label,) = piece.findChildren(QLabel)
    assert label.text() == f"Python {sentence}"
    piece.resize(300, piece.arrange(300))
    assert label.geometry().right() < piece.findChild(QToolButton).geometry().left()


def test_a_link_is_told_and_not_opened(qtbot, new_body, work: SlicedWork) -> None:
    body = new_body()
    body.set_text("[here](https://a.b/c)")
    (view,) = body.documents
    with qtbot.waitSignal(body.link_activated) as blocker:
        view.anchorClicked.emit(QUrl("https://a.b/c"))
    assert blocker.args == [QUrl("https://a.b/c")]
    assert not view.openLinks()


def test_a_code_block_copies_its_code(new_body, work: SlicedWork) -> None:
    body = new_body()
    body.set_text("```py\ndef f():\n\treturn 1\n\n```\n")
    (piece,) = body.pieces
    (button,) = piece.findChildren(QToolButton)
    assert button.accessibleName() == "Copy code"
    QTest.mouseClick(button, Qt.MouseButton.LeftButton)
    assert QGuiApplication.clipboard().text() == "def f():\n\treturn 1\n"
    assert button.toolTip() == "Copied"


def test_a_selection_holds_the_marks_of_lists(new_body, work: SlicedWork) -> None:
    body = new_body()
    body.set_text("Before\n\n3. one\n   - two\n4. three\n")
    (view,) = body.documents
    view.selectAll()
    assert view.selected_text() == "Before\n3. one\n  • two\n4. three"


def test_a_long_table_goes_on_in_a_second_one(new_body, work: SlicedWork) -> None:
    body = new_body()
    body.set_text("| a | b |\n|---|---|\n" + "".join(f"| {row} | x |\n" for row in range(2 * MAX_ROWS)))
    work.run_to_end()
    tables = body.pieces
    assert [type(piece) for piece in tables] == [TableView] * 3
    text = "\n".join(view.toPlainText() for view in body.documents)
    assert [line for line in text.split("\n") if line.isdigit()] == [str(row) for row in range(2 * MAX_ROWS)]


@pytest.mark.parametrize("slices", range(6))
@pytest.mark.parametrize(
    "text", ["```python\n" + "x = foo(1, 'a')\n" * 2500 + "```\n", "Some **words**. " * 4000]
)
def test_work_that_is_left_when_a_message_is_taken_away_is_dropped(
    qapp, new_body, work: SlicedWork, text: str, slices: int
) -> None:
    body = new_body()
    body.append(text)
    body.finish()
    for _ in range(slices):
        qapp.processEvents()
    assert work.busy
    shiboken6.delete(body)
    work.run_to_end()  # a step that touched what is gone would raise


def test_colours_of_code_that_was_taken_away_are_dropped(new_body, work: SlicedWork) -> None:
    body = new_body()
    # Read from the middle of it, a long string looks like code; read whole, it has other colours.
    for line in ["```python\n", 's = """\n', *["x = foo(1, 'a')\n\n"] * 400, '"""\n', "```\n"]:
        body.append(line)
    assert work.busy, "the colours of the whole wait for their turn"
    shiboken6.delete(body)
    work.run_to_end()


def test_prose_that_turns_out_to_be_a_table_leaves_nothing_behind(new_body) -> None:
    body = new_body()
    body.append("| a | b |\n")
    assert [type(piece) for piece in body.pieces] == [ProseView]
    body.append("|---|---|\n")
    assert [type(piece) for piece in body.pieces] == [TableView]


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_every_colour_of_code_can_be_read(theme) -> None:
    colors = part_colors(theme)
    assert set(colors) == set(Part)
    faint = {part for part, color in colors.items() if contrast(color, theme.code_background) < 4.5}
    assert not faint


def test_parts_cover_what_a_reader_expects() -> None:
    code = 'def f(x):\n    return "a"  # b\n'
    found = {code[start : start + length]: part for start, length, part in parts(code, "py")}
    assert found["def"] is Part.KEYWORD
    assert found["f"] is Part.NAME
    assert found["# b"] is Part.COMMENT
    assert list(parts(code, "no such language")) == []
    assert list(parts(code, "")) == []


@pytest.mark.parametrize(
    ("language", "title"),
    [("py", "Python"), ("c++", "C++"), ("Rust", "Rust"), ("text", "Text"), ("xyz", "xyz"), ("", "")],
)
def test_languages_have_their_names(language: str, title: str) -> None:
    assert language_title(language) == title


def code_colours(body: MessageBody) -> list[list[tuple[int, int]]]:
    (piece,) = body.pieces
    assert isinstance(piece, CodeView)
    (view,) = piece.documents
    return [colours for _, _, _, colours in blocks(view.document())]


def test_colours_count_as_qt_does_beyond_the_basic_plane(new_body, work: SlicedWork) -> None:
    """Qt counts an emoji as two; a part after one was coloured one place too early."""
    body = new_body()
    body.set_text('```py\n"😀" + 1\n```')
    work.run_to_end()
    assert code_colours(body) == [[(0, 4), (7, 1)]]


def test_long_code_that_grew_has_the_colours_of_the_whole(new_body, work: SlicedWork) -> None:
    """Growing code is read from the middle; a string that is open there would leave wrong colours behind."""
    lines = [
        'TEXT = """\n',
        *["words def class\n\n"] * 300,
        '"""\n',
        *[f"def f{n}(): return {n}\n" for n in range(150)],
    ]
    text = "```py\n" + "".join(lines) + "```\n"
    whole, growing = new_body(), new_body()
    whole.set_text(text)
    grow(growing, text, [40])
    work.run_to_end()
    assert code_colours(growing) == code_colours(whole)
    assert code_colours(whole)[5] == [(0, len("words def class"))]


def test_code_beyond_the_bound_has_its_text_and_no_late_colours(new_body, work: SlicedWork) -> None:
    body = new_body()
    body.set_text("```py\n" + "x = 1\n" * (MAX_COLOURED // 6 + 500) + "```")
    work.run_to_end()
    assert code_colours(body)[-1] == []
    (piece,) = body.pieces
    assert isinstance(piece, CodeView)
    assert piece.text.count("x = 1") == MAX_COLOURED // 6 + 500


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


def test_thinking_is_folded_and_a_click_opens_it(qtbot, new_answer, work: SlicedWork) -> None:
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
    assert thinking.button.text() == THOUGHT
    thinking.button.click()
    assert thinking.documents == ()


def test_an_answer_without_thinking_has_no_block_for_it(new_answer) -> None:
    assert new_answer(message("Hi")).thinking is None


def test_an_answer_copies_its_markdown(new_answer) -> None:
    view = new_answer(message("**Hi**", stats=stats()))
    (button,) = [one for one in view.findChildren(QToolButton) if one.accessibleName() == "Copy answer"]
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


def test_a_change_of_theme_changes_colours_and_no_words(qtbot, new_body, work: SlicedWork) -> None:
    theme_manager().apply(ThemeChoice.LIGHT)
    body = new_body()
    body.set_text(SAMPLE)
    work.run_to_end()
    before = shown(body)
    theme_manager().apply(ThemeChoice.DARK)
    try:
        body.apply_theme()
        assert shown(body) == before
        first = body.documents[0].document().begin().begin().fragment().charFormat()
        assert first.foreground().color().name() == DARK.text
    finally:
        theme_manager().apply(ThemeChoice.LIGHT)
