"""A word that an input method is at work on is shown where it will stand, and is no part of any text."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from PySide6.QtCore import QEvent, QRectF, Qt
from PySide6.QtGui import QGuiApplication, QImage, QInputMethodEvent, QKeyEvent, QTextCharFormat
from PySide6.QtTest import QSignalSpy
from PySide6.QtWidgets import QApplication, QLineEdit, QPlainTextEdit, QWidget

from app.controller import ModelPhase
from app.ui.main_window import MainWindow
from app.ui.message_edit import MessageEdit
from app.ui.shortcut_sheet import ShortcutSheet

KEYS = [Qt.Key.Key_Return, Qt.Key.Key_Enter]


def compose(field: QWidget, word: str) -> None:
    """As input methods do: underlined, with the cursor behind it."""
    underlined = QTextCharFormat()
    underlined.setFontUnderline(True)
    kind = QInputMethodEvent.AttributeType
    attributes = [
        QInputMethodEvent.Attribute(kind.TextFormat, 0, len(word), underlined),
        QInputMethodEvent.Attribute(kind.Cursor, len(word), 1, None),
    ]
    QApplication.sendEvent(field, QInputMethodEvent(word, attributes if word else []))


def commit(field: QWidget, word: str) -> None:
    event = QInputMethodEvent("", [])
    event.setCommitString(word)
    QApplication.sendEvent(field, event)


def press(field: QWidget, key: Qt.Key) -> None:
    """Down and not up, as an input method lets it through."""
    text = "\r" if key in KEYS else ""
    QApplication.sendEvent(field, QKeyEvent(QEvent.Type.KeyPress, key, Qt.KeyboardModifier.NoModifier, text))


def let_go(field: QWidget, key: Qt.Key) -> None:
    QApplication.sendEvent(field, QKeyEvent(QEvent.Type.KeyRelease, key, Qt.KeyboardModifier.NoModifier))


def picture(widget: QWidget) -> QImage:
    return widget.grab().toImage()


@pytest.fixture
def edit(window: MainWindow, qtbot, model_folder: Path) -> MessageEdit:
    """Of the composer, with a model that would answer."""
    window.controller.load_model(model_folder)
    qtbot.waitUntil(lambda: window.controller.model_state.phase is ModelPhase.READY)
    window.activateWindow()
    window.chat.focus_composer()
    qtbot.waitUntil(window.chat.composer.edit.hasFocus)
    return window.chat.composer.edit


@pytest.fixture
def search(window: MainWindow, qtbot) -> QLineEdit:
    window.activateWindow()
    window.actions_.search.trigger()
    field = window.conversations.filter_bar.field
    qtbot.waitUntil(field.hasFocus)
    return field


def shown_word(edit: MessageEdit) -> str:
    return edit.textCursor().block().layout().preeditAreaText()


def test_the_word_is_shown_in_the_text_and_is_no_part_of_it(window: MainWindow, edit: MessageEdit) -> None:
    edit.insertPlainText("I say ")
    compose(edit, "nihao")
    assert shown_word(edit) == "nihao"
    assert edit.textCursor().block().layout().preeditAreaPosition() == len("I say ")
    assert edit.text == "I say "
    assert window.chat.composer.text == "I say "
    formats = edit.textCursor().block().layout().formats()
    assert any(each.format.fontUnderline() for each in formats)


def test_the_placeholder_makes_room_for_the_word_and_comes_back(edit: MessageEdit) -> None:
    """What is drawn is the word alone."""
    edit.setCursorWidth(0)
    empty, words = picture(edit), edit.placeholderText()
    compose(edit, "nihao")
    composing = picture(edit)
    edit.setPlaceholderText("")
    assert composing == picture(edit)
    compose(edit, "")
    assert edit.placeholderText() == words
    assert picture(edit) == empty


@pytest.mark.parametrize("surface", ["a chat", "settings of a chat"], indirect=True)
def test_no_field_draws_its_placeholder_through_a_word(surface: QWidget) -> None:
    fields = [one for one in surface.findChildren(QPlainTextEdit) if one.placeholderText()]
    assert fields
    for field in fields:
        field.clear()
        words = field.placeholderText()
        compose(field, "nihao")
        assert field.placeholderText() == ""
        commit(field, "你好")
        assert field.placeholderText() == words


@pytest.mark.parametrize("key", KEYS)
def test_enter_sends_nothing_while_a_word_is_composed_and_the_word_alone_when_it_ends(
    window: MainWindow, qtbot, edit: MessageEdit, script, key: Qt.Key
) -> None:
    sent = QSignalSpy(window.chat.send_requested)
    compose(edit, "nihao")
    press(edit, key)
    commit(edit, "你好")
    press(edit, key)
    let_go(edit, key)
    assert sent.count() == 0
    assert window.chat.composer.text == "你好"
    assert shown_word(edit) == ""
    with qtbot.waitSignal(window.controller.answer_finished):
        press(edit, key)
    assert sent.at(0) == ["你好"]
    assert script.prompts[-1] == [("user", "你好")]


def test_drafts_hold_what_was_committed(window: MainWindow, edit: MessageEdit) -> None:
    commit(edit, "你好")
    compose(edit, "shijie")
    window.conversation_presenter.keep_draft()
    assert window.controller.drafts.text(None) == "你好"
    commit(edit, "世界")
    assert window.controller.drafts.text(None) == "你好世界"


def test_a_word_alone_cannot_be_sent_by_the_button(window: MainWindow, edit: MessageEdit) -> None:
    compose(edit, "nihao")
    assert not window.chat.composer.button.isEnabled()
    commit(edit, "你好")
    assert window.chat.composer.button.isEnabled()


def test_a_word_that_is_given_up_leaves_nothing(edit: MessageEdit) -> None:
    edit.insertPlainText("a")
    compose(edit, "nihao")
    compose(edit, "")
    assert (edit.text, shown_word(edit), edit.composing) == ("a", "", False)


def test_esc_gives_up_a_word_and_not_the_answer(window: MainWindow, qtbot, edit: MessageEdit, script) -> None:
    script.gates = {1: threading.Event()}
    with qtbot.waitSignal(window.controller.answer_extended):
        window.chat.send_requested.emit("Hi")
    stopped = QSignalSpy(window.chat.stop_requested)
    compose(edit, "nihao")
    press(edit, Qt.Key.Key_Escape)
    assert stopped.count() == 0
    compose(edit, "")
    with qtbot.waitSignal(window.controller.answer_finished):
        press(edit, Qt.Key.Key_Escape)


def test_the_list_of_words_can_stand_beside_the_cursor(edit: MessageEdit) -> None:
    """Where the input method is told that the cursor is, it moves on with the word."""
    query = Qt.InputMethodQuery.ImCursorRectangle
    before: QRectF = edit.inputMethodQuery(query)
    compose(edit, "nihao")
    after: QRectF = edit.inputMethodQuery(query)
    assert edit.rect().toRectF().contains(before)
    assert edit.rect().toRectF().contains(after)
    assert after.left() > before.left()


def test_every_field_for_words_takes_an_input_method(window: MainWindow, edit: MessageEdit) -> None:
    for field in (edit, window.conversations.filter_bar.field):
        assert field.testAttribute(Qt.WidgetAttribute.WA_InputMethodEnabled)
        assert field.inputMethodQuery(Qt.InputMethodQuery.ImEnabled)
    assert QGuiApplication.inputMethod() is not None


def test_text_is_replaced_as_an_input_method_asks(edit: MessageEdit) -> None:
    """To turn a word that stands there into another."""
    edit.insertPlainText("say nihao")
    event = QInputMethodEvent("", [])
    event.setCommitString("你好", -5, 5)
    QApplication.sendEvent(edit, event)
    assert edit.text == "say 你好"


# The field of the search


def test_nothing_is_searched_for_before_a_word_is_committed(
    window: MainWindow, qtbot, search: QLineEdit
) -> None:
    asked = QSignalSpy(window.conversations.search_changed)
    compose(search, "shan")
    assert search.text() == ""
    assert window.conversations.filter_bar.query == ""
    commit(search, "山月")
    qtbot.waitUntil(lambda: asked.count() == 1)
    assert asked.at(0) == ["山月"]


@pytest.mark.parametrize("key", [*KEYS, Qt.Key.Key_Down, Qt.Key.Key_Escape])
def test_keys_of_the_word_are_not_those_of_the_search(
    window: MainWindow, search: QLineEdit, key: Qt.Key
) -> None:
    bar = window.conversations.filter_bar
    search.setText("kestrel")
    entered, left = QSignalSpy(bar.entered), QSignalSpy(bar.left_downwards)
    compose(search, "shan")
    press(search, key)
    commit(search, "山")
    press(search, key)  # the very same one, let through
    assert (entered.count(), left.count()) == (0, 0)
    assert search.text() == "kestrel山"


def test_esc_gives_up_a_word_and_not_the_sheet_of_shortcuts(window: MainWindow, qtbot) -> None:
    window.actions_.shortcuts.trigger()
    sheet = window.findChild(ShortcutSheet)
    compose(sheet.search, "shan")
    press(sheet.search, Qt.Key.Key_Escape)
    assert sheet.isVisible()
