"""An answer that grows shows the same as one that was there from the start, and what stands is left alone."""

from __future__ import annotations

import pytest
import shiboken6
from body_steps import blocks, grow
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PySide6.QtCore import QUrl
from PySide6.QtGui import QTextDocument
from PySide6.QtWidgets import QLabel, QToolButton

from app.settings import Theme as ThemeChoice
from app.ui import message_body
from app.ui.code_view import CodeView
from app.ui.message_body import MessageBody
from app.ui.prose_view import ProseView
from app.ui.sliced_work import SlicedWork
from app.ui.table_view import MAX_CELLS, MAX_ROWS, TableView
from app.ui.theme import DARK, theme_manager

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


def shown(body: MessageBody) -> list[tuple]:
    """Every piece as it is: what kind, where, each block's text, format, and the formats of its runs."""
    body.arrange(700)
    found: list[tuple] = []
    for piece in body.pieces:
        (view,) = piece.documents if isinstance(piece, CodeView) else (piece,)
        found.append((type(piece).__name__, piece.geometry().getRect(), blocks(view.document())))
    return found


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


def test_an_answer_that_grows_costs_the_same_however_long_it_is(
    new_body, work: SlicedWork, monkeypatch
) -> None:
    body = new_body()
    body.append(SAMPLE * 30)
    work.run_to_end()
    body.arrange(700)
    assert len(body.pieces) > 100
    gaps: list[object] = []
    gap = message_body._gap
    monkeypatch.setattr(message_body, "_gap", lambda above, below: gaps.append(below) or gap(above, below))
    for number in range(20):
        body.append(f"word {number} ")
        body.arrange(700)
    assert 0 < len(gaps) <= 2 * 20, "pieces above what has changed are not placed anew"


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


def test_a_wide_table_goes_on_before_it_is_slow_and_keeps_every_cell(new_body, work: SlicedWork) -> None:
    columns, rows = 200, 20
    head = "| h " * columns + "|\n" + "|---" * columns + "|\n"
    body = new_body()
    body.set_text(head + "".join(f"| {row} " * columns + "|\n" for row in range(rows)))
    work.run_to_end()
    assert all(isinstance(piece, TableView) for piece in body.pieces)
    assert all(len(view.toPlainText().split()) <= MAX_CELLS for view in body.documents)
    words = "\n".join(view.toPlainText() for view in body.documents).split()
    assert words == ["h"] * columns + [str(row) for row in range(rows) for _ in range(columns)]


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


def test_prose_that_turns_out_to_be_a_table_leaves_nothing_behind(new_body) -> None:
    body = new_body()
    body.append("| a | b |\n")
    assert [type(piece) for piece in body.pieces] == [ProseView]
    body.append("|---|---|\n")
    assert [type(piece) for piece in body.pieces] == [TableView]


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


@pytest.mark.parametrize(
    "text",
    [
        "right \u202eto left\u202c אבג and e\u0301\u0300",
        "zero\u200bwidth\u200djoined\ufeff",
        "bell\x07 escape\x1b[31m delete\x7f",
        "<script>alert('x')</script> <b>bold</b> <!-- note --> &amp",
        "**open _marks `of [every](kind ~~there is",
    ],
)
def test_odd_characters_and_broken_marks_are_shown_whole_and_copied_as_they_are(
    new_body, work: SlicedWork, text: str
) -> None:
    body = new_body()
    for char in text:
        body.append(char)
    body.finish()
    work.run_to_end()
    assert body.pieces[0].toPlainText() == text
    assert body.text == text


def test_a_fence_that_is_open_still_shows_its_code_as_it_comes(new_body, work: SlicedWork) -> None:
    body = new_body()
    body.append("Before\n\n```py\nx = 1\ny = 2")
    prose, code = body.pieces
    assert isinstance(code, CodeView)
    assert prose.toPlainText() == "Before"
    assert code.documents[0].toPlainText() == "x = 1\ny = 2"
    body.finish()
    assert code.text == "x = 1\ny = 2"


def test_nothing_is_laid_out_at_a_width_that_it_never_has(new_body, work: SlicedWork) -> None:
    """At Qt's first one, 0, each letter had a line: 4,000 of them took 50 ms."""
    body = new_body()
    body.append("word" * 150)
    (view,) = body.documents
    assert 1 < view.document().begin().layout().lineCount() < 100
    body.arrange(300)
    body.append("\n\n```\ncode\n```\n\nAnd more " + "word" * 100)
    *_, view = body.documents
    assert view.lineWrapColumnOrWidth() == 300
