"""Enter sends only when the person means it, and no text is ever lost."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QEvent, QMimeData, Qt
from PySide6.QtGui import QGuiApplication, QInputMethodEvent, QKeyEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractButton, QApplication

from app.ui import composition
from app.ui.composer import Composer
from app.ui.message_edit import LONG_CHARACTERS, LONG_LINES, MAX_LINES, MessageEdit

ENTERS = [Qt.Key.Key_Return, Qt.Key.Key_Enter]


@pytest.fixture
def composer(qtbot) -> Composer:
    made = Composer()
    made.resize(600, 60)
    qtbot.addWidget(made)
    made.set_ready(True)
    made.show()
    made.edit.setFocus()
    return made


@pytest.fixture
def sent(composer: Composer) -> list[str]:
    texts: list[str] = []
    composer.send_requested.connect(texts.append)
    return texts


def preedit(composer: Composer, text: str) -> None:
    QApplication.sendEvent(composer.edit, QInputMethodEvent(text, []))


def commit(composer: Composer, text: str) -> None:
    event = QInputMethodEvent("", [])
    event.setCommitString(text)
    QApplication.sendEvent(composer.edit, event)


def press(composer: Composer, key: Qt.Key, *, repeated: bool = False) -> None:
    """A key going down and not up, as an input method lets it through."""
    event = QKeyEvent(QEvent.Type.KeyPress, key, Qt.KeyboardModifier.NoModifier, "\r", repeated)
    QApplication.sendEvent(composer.edit, event)


def paste(composer: Composer, text: str, *, html: str = "") -> None:
    data = QMimeData()
    data.setText(text)
    if html:
        data.setHtml(html)
    composer.edit.insertFromMimeData(data)


@pytest.mark.parametrize("key", ENTERS)
def test_enter_sends_and_the_text_stays_until_it_is_taken(composer: Composer, sent: list[str], key) -> None:
    QTest.keyClicks(composer.edit, "Hello")
    QTest.keyClick(composer.edit, key)
    assert sent == ["Hello"]
    assert composer.text == "Hello"
    composer.accept("Hello")
    assert composer.text == ""


def test_a_second_enter_before_the_answer_of_the_first_sends_nothing(
    composer: Composer, sent: list[str]
) -> None:
    composer.set_text("Hello")
    QTest.keyClick(composer.edit, Qt.Key.Key_Return)
    QTest.keyClick(composer.edit, Qt.Key.Key_Return)
    assert sent == ["Hello"]
    composer.reject()
    assert composer.text == "Hello"
    QTest.keyClick(composer.edit, Qt.Key.Key_Return)
    assert sent == ["Hello", "Hello"]


def test_what_is_typed_while_a_text_is_being_saved_stays(composer: Composer, sent: list[str]) -> None:
    composer.set_text("First")
    QTest.keyClick(composer.edit, Qt.Key.Key_Return)
    composer.edit.move_to_end()
    QTest.keyClicks(composer.edit, " and more")
    composer.accept("First")
    assert composer.text == "and more"


def test_spaces_that_do_not_break_stay_what_they_are(composer: Composer, sent: list[str]) -> None:
    text = "10\u00a0km\u202fet «\u00a0mots\u00a0»\nline two"
    composer.set_text(text)
    QTest.keyClick(composer.edit, Qt.Key.Key_Return)
    assert sent == [text]


@pytest.mark.parametrize("key", ENTERS)
def test_shift_enter_begins_a_line(composer: Composer, sent: list[str], key) -> None:
    QTest.keyClicks(composer.edit, "a")
    QTest.keyClick(composer.edit, key, Qt.KeyboardModifier.ShiftModifier)
    QTest.keyClicks(composer.edit, "b")
    assert sent == []
    assert composer.text == "a\nb"
    assert composer.edit.blockCount() == 2


@pytest.mark.parametrize("key", ENTERS)
def test_enter_never_sends_while_a_word_is_being_composed(composer: Composer, sent: list[str], key) -> None:
    QTest.keyClicks(composer.edit, "a")
    preedit(composer, "nihao")
    press(composer, key)
    assert sent == []
    assert composer.text == "a"  # and it put no line break into the text either


def test_the_enter_that_commits_a_word_does_not_send(composer: Composer, sent: list[str]) -> None:
    """Some input methods commit first and then let the very same key press through."""
    preedit(composer, "nihao")
    commit(composer, "你好")
    press(composer, Qt.Key.Key_Return)
    assert sent == []
    assert composer.text == "你好"


def test_a_fresh_enter_after_a_commit_sends(composer: Composer, sent: list[str]) -> None:
    preedit(composer, "nihao")
    commit(composer, "你好")
    press(composer, Qt.Key.Key_Return)
    QTest.keyRelease(composer.edit, Qt.Key.Key_Return)
    QTest.keyClick(composer.edit, Qt.Key.Key_Return)
    assert sent == ["你好"]


def test_an_enter_some_time_after_a_commit_sends_though_no_key_was_seen_to_go_up(
    composer: Composer, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An input method may keep the release of its key to itself."""
    now = 100.0
    monkeypatch.setattr(composition, "perf_counter", lambda: now)
    preedit(composer, "nihao")
    commit(composer, "你好")
    now += 0.2
    press(composer, Qt.Key.Key_Return)
    assert sent == ["你好"]


def test_composing_ends_with_its_word_or_without_one(composer: Composer, sent: list[str]) -> None:
    QTest.keyClicks(composer.edit, "a")
    preedit(composer, "n")
    assert composer.edit.composing
    preedit(composer, "")
    assert not composer.edit.composing
    QTest.keyClick(composer.edit, Qt.Key.Key_Return)
    assert sent == ["a"]


def test_holding_enter_down_sends_nothing(composer: Composer, sent: list[str]) -> None:
    composer.set_text("a")
    press(composer, Qt.Key.Key_Return, repeated=True)
    assert sent == []


@pytest.mark.parametrize("text", ["", "   ", "\n\n"])
def test_white_space_is_not_sent(composer: Composer, sent: list[str], text: str) -> None:
    composer.set_text(text)
    QTest.keyClick(composer.edit, Qt.Key.Key_Return)
    assert sent == []
    assert not composer.button.isEnabled()


def test_without_a_model_the_text_stays_and_the_person_is_told(
    qtbot, composer: Composer, sent: list[str]
) -> None:
    composer.set_ready(False)
    composer.set_text("Keep me")
    with qtbot.waitSignal(composer.refused):
        QTest.keyClick(composer.edit, Qt.Key.Key_Return)
    assert sent == []
    assert composer.text == "Keep me"
    assert not composer.button.isEnabled()
    composer.set_ready(True)
    assert composer.button.isEnabled()
    QTest.keyClick(composer.edit, Qt.Key.Key_Return)
    assert sent == ["Keep me"]


def test_the_button_sends_and_while_answering_stops(qtbot, composer: Composer, sent: list[str]) -> None:
    composer.set_text("Hello")
    assert composer.button.accessibleName() == "Send"
    QTest.mouseClick(composer.button, Qt.MouseButton.LeftButton)
    assert sent == ["Hello"]
    composer.accept("Hello")
    composer.set_answering(True)
    assert composer.button.accessibleName() == "Stop"
    assert composer.button.isEnabled()
    with qtbot.waitSignal(composer.stop_requested):
        QTest.mouseClick(composer.button, Qt.MouseButton.LeftButton)


def test_the_next_message_can_be_written_but_not_sent_while_answering(
    composer: Composer, sent: list[str]
) -> None:
    composer.set_answering(True)
    QTest.keyClicks(composer.edit, "Next")
    QTest.keyClick(composer.edit, Qt.Key.Key_Return)
    assert sent == []
    assert composer.text == "Next"


def test_it_grows_from_one_line_to_ten_and_back(composer: Composer) -> None:
    heights = []
    for lines in (1, 2, MAX_LINES - 1, MAX_LINES, MAX_LINES + 1, 40):
        composer.set_text("\n".join(["x"] * lines))
        heights.append(composer.edit.height())
    assert heights[0] < heights[1] < heights[2] < heights[3]
    assert heights[3] == heights[4] == heights[5]
    composer.set_text("")
    assert composer.edit.height() == heights[0]


def lines_height(edit: MessageEdit) -> float:
    layout = edit.document().documentLayout()
    block, height = edit.document().begin(), 0.0
    while block.isValid():
        height += layout.blockBoundingRect(block).height()
        block = block.next()
    return height


@pytest.mark.parametrize("text", ["Words", "输入消息", "ที่นี่", "Words\n输入\nWords"])
def test_no_line_is_cut_off_whatever_its_script(composer: Composer, text: str) -> None:
    composer.set_text(text)
    assert composer.edit.viewport().height() >= lines_height(composer.edit)
    composer.set_text("")
    composer.edit.setPlaceholderText(text.split("\n")[0])
    composer.set_text(text.split("\n")[0])
    written = composer.edit.height()
    composer.set_text("")
    assert composer.edit.height() == written, "the words that stand in for a message are as high"


def test_a_word_that_is_being_composed_is_not_cut_off(composer: Composer) -> None:
    preedit(composer, "输入消息")
    assert composer.edit.viewport().height() >= lines_height(composer.edit)


def test_a_line_that_wraps_counts_as_lines(composer: Composer) -> None:
    one = composer.edit.height()
    composer.set_text("word " * 60)
    assert composer.edit.height() > 2 * one - 12


def test_a_paste_is_plain_text(composer: Composer) -> None:
    paste(composer, "a\r\nb", html="<b>a</b><img src='file:///x.png'>")
    assert composer.text == "a\nb"


@pytest.mark.parametrize(
    "text", ["x" * (LONG_CHARACTERS + 1), "x\n" * (LONG_LINES + 1), "word " * 200_000, "\n" * 1_000_000 + "x"]
)
def test_a_huge_paste_is_held_whole_and_never_laid_out(
    composer: Composer, sent: list[str], text: str
) -> None:
    QTest.keyClicks(composer.edit, "See: ")
    paste(composer, text)
    assert composer.edit.toPlainText() == "See: "
    assert composer.chip.isVisibleTo(composer)
    QTest.keyClick(composer.edit, Qt.Key.Key_Return)
    assert sent == ["See: \n\n" + text]
    composer.accept(sent[0])
    assert composer.text == ""
    assert not composer.chip.isVisibleTo(composer)


@pytest.mark.parametrize("length", [LONG_CHARACTERS - 1, LONG_CHARACTERS])
def test_a_paste_up_to_the_bound_goes_into_the_editor(composer: Composer, length: int) -> None:
    paste(composer, "x" * length)
    assert composer.edit.toPlainText() == "x" * length


def test_a_held_paste_can_be_taken_away(composer: Composer) -> None:
    paste(composer, "x" * (LONG_CHARACTERS + 1))
    (remove,) = composer.chip.findChildren(QAbstractButton)
    QTest.mouseClick(remove, Qt.MouseButton.LeftButton)
    assert composer.text == ""
    assert not composer.button.isEnabled()


def test_half_a_surrogate_pair_becomes_something_that_can_be_saved(composer: Composer) -> None:
    composer.edit.setPlainText("a\ud83db")
    composer.text.encode("utf-8")


def test_every_control_has_a_name_and_the_order_is_editor_then_button(composer: Composer) -> None:
    composer.set_text("x")
    paste(composer, "y" * (LONG_CHARACTERS + 1))
    for button in composer.findChildren(QAbstractButton):
        assert button.accessibleName()
        assert button.toolTip()
    assert composer.edit.accessibleName()
    QTest.keyClick(composer.edit, Qt.Key.Key_Tab)
    assert QGuiApplication.focusObject() in (composer.button, None)
    assert "Enter" in composer.button.toolTip()
