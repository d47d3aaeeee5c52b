"""Code in an answer: its words, its colours, and what is copied of it."""

from __future__ import annotations

import threading

import pytest
import shiboken6
from body_steps import blocks, grow
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLabel, QToolButton

from app.ui import lexers
from app.ui.code_highlight import MAX_COLOURED, Part, language_title, part_colors, parts
from app.ui.code_view import CodeView
from app.ui.lexers import LexerStore, lexer_name, lexer_store
from app.ui.message_body import MessageBody
from app.ui.sliced_work import SlicedWork
from app.ui.theme import DARK, LIGHT, contrast


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


def test_the_name_of_a_language_is_text_though_a_model_wrote_it(new_body, work: SlicedWork) -> None:
    body = new_body()
    body.set_text("```<img/src=file:///x.png>\nx\n```\n")
    (piece,) = body.pieces
    (label,) = piece.findChildren(QLabel)
    assert label.text() == "<img/src=file:///x.png>"
    assert label.textFormat() == Qt.TextFormat.PlainText


def test_a_code_block_copies_its_code(new_body, work: SlicedWork) -> None:
    body = new_body()
    body.set_text("```py\ndef f():\n\treturn 1\n\n```\n")
    (piece,) = body.pieces
    (button,) = [one for one in piece.findChildren(QToolButton) if one.accessibleName() == "Copy code"]
    QTest.mouseClick(button, Qt.MouseButton.LeftButton)
    assert QGuiApplication.clipboard().text() == "def f():\n\treturn 1\n"
    assert button.toolTip() == "Copied"


def test_colours_of_code_that_was_taken_away_are_dropped(new_body, work: SlicedWork) -> None:
    body = new_body()
    # Read from the middle of it, a long string looks like code; read whole, it has other colours.
    for line in ["```python\n", 's = """\n', *["x = foo(1, 'a')\n\n"] * 400, '"""\n', "```\n"]:
        body.append(line)
    assert work.busy, "the colours of the whole wait for their turn"
    shiboken6.delete(body)
    work.run_to_end()


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_every_colour_of_code_can_be_read(theme) -> None:
    colors = part_colors(theme)
    assert set(colors) == set(Part)
    faint = {part for part, color in colors.items() if contrast(color, theme.code_background) < 4.5}
    assert not faint


def test_parts_cover_what_a_reader_expects() -> None:
    code = 'def f(x):\n    return "a"  # b\n'
    lexer_store().load("py")
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


def test_every_language_is_named_as_its_lexer_is() -> None:
    for alias in ("py", "c++", "julia", "Rust", "{.haskell}", "js title=a.js"):
        lexer_store().load(alias)
        lexer = lexer_store().lexer(alias)
        assert lexer is not None
        assert lexer.name == lexer_name(alias)
    assert lexer_name("no such language") is None
    assert lexer_name("text") is None
    assert lexer_name("") is None


def test_a_lexer_is_loaded_beside_the_window_and_colours_what_has_come_by_then(
    qtbot, new_body, work: SlicedWork, monkeypatch
) -> None:
    store = LexerStore()
    monkeypatch.setattr("app.ui.lexers._store", store)
    loaded_on: list[int] = []
    load = lexers._loaded
    monkeypatch.setattr(
        lexers, "_loaded", lambda aliases: loaded_on.append(threading.get_ident()) or load(aliases)
    )
    grows, ended = new_body(), new_body()
    store._known.clear()
    loaded_on.clear()
    grows.append("```py\ndef f(x):\n")
    ended.set_text("```py\nreturn 1\n```")
    work.run_to_end()
    assert code_colours(grows)[0] == code_colours(ended)[0] == []
    qtbot.waitUntil(lambda: not store.busy)
    work.run_to_end()
    assert code_colours(grows)[0][0] == (0, len("def"))
    assert code_colours(ended)[0][0] == (0, len("return"))
    assert loaded_on
    assert threading.get_ident() not in loaded_on


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


def test_a_long_line_of_code_is_shown_from_its_beginning(qtbot, new_body, work: SlicedWork) -> None:
    """Qt scrolls to the cursor when a view is first shown, and writing had pushed that to the end."""
    body = new_body()
    body.set_text("```py\nshort = 1\n" + "long = " + "1 + " * 200 + "1\n```\n")
    work.run_to_end()
    body.resize(400, body.arrange(400))
    body.show()
    qtbot.waitExposed(body)
    (code,) = body.documents
    assert code.horizontalScrollBar().maximum() > 0
    assert code.horizontalScrollBar().value() == 0
    code.horizontalScrollBar().setValue(50)
    body.hide()
    body.show()
    assert code.horizontalScrollBar().value() == 50, "where the person has scrolled to"
    assert not code.textCursor().hasSelection()


def test_long_lines_wrap_when_that_is_asked_for_and_never_else(qtbot, new_body, work: SlicedWork) -> None:
    body = new_body()
    body.set_text("```py\nx = '" + "word " * 100 + "'\ny = 1\n```\n")
    work.run_to_end()
    (piece,) = body.pieces
    (document,) = piece.documents
    one_line = body.arrange(500)
    button = piece.wrap_button
    assert not button.isHidden()
    with qtbot.waitSignal(body.height_changed):
        QTest.mouseClick(button, Qt.MouseButton.LeftButton)
    assert button.accessibleName() == "Don't wrap long lines"
    assert body.arrange(500) > one_line + 40
    assert document.document().size().width() <= 500
    assert piece.text.startswith("x = 'word")
    QTest.mouseClick(button, Qt.MouseButton.LeftButton)
    assert body.arrange(500) == one_line


def test_code_without_a_long_line_offers_no_wrapping(new_body, work: SlicedWork) -> None:
    body = new_body()
    body.set_text("```py\nx = 1\n```\n")
    body.arrange(500)
    assert body.pieces[0].wrap_button.isHidden()
