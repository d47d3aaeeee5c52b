"""Files on their way into a message and through the chat, in the whole window."""

from __future__ import annotations

from pathlib import Path

import pytest
from controller_steps import load as load_model
from pdf_files import pdf_bytes
from PySide6.QtCore import QEvent, QMimeData, QPoint, QPointF, Qt, QUrl
from PySide6.QtGui import QDragEnterEvent, QDropEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QFileDialog

from app.attachments import Attachment
from app.context_policy import ContextPolicy
from app.ui.attachment_view import MAX_SHOWN
from app.ui.main_window import MainWindow
from app.ui.message_actions import MessageAction
from app.ui.message_view import UserMessageView

MODEL = Path("/models/first")


@pytest.fixture
def chatting(window: MainWindow, qtbot) -> MainWindow:
    load_model(qtbot, window.controller, MODEL)
    window.show_chat()
    return window


def made(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def drop(window: MainWindow, *paths: Path) -> str:
    """Gives what the window says while they are over it."""
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(path)) for path in paths])
    arguments = (Qt.DropAction.CopyAction, data, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier)
    QApplication.sendEvent(window.windowHandle(), QDragEnterEvent(QPoint(300, 300), *arguments))
    words = window._drops.overlay.words
    event = QDropEvent(QPointF(300, 300), *arguments)
    assert event.type() == QEvent.Type.Drop
    QApplication.sendEvent(window.windowHandle(), event)
    return words


def attach(qtbot, window: MainWindow, *paths: Path) -> None:
    """Until all of them are counted or refused."""
    draft = window.controller.attachments
    window.attachments.attach(paths)
    qtbot.waitUntil(
        lambda: not draft.busy and all(one.tokens is not None or one.problem for one in draft.items)
    )


def chips(window: MainWindow) -> list[tuple[str, str]]:
    return [(chip.name.text(), chip.details.text()) for chip in window.chat.composer.files.chips.values()]


def questions(window: MainWindow) -> list[UserMessageView]:
    return [view for view in window.chat.transcript.views if isinstance(view, UserMessageView)]


def send(qtbot, window: MainWindow) -> None:
    controller = window.controller
    with qtbot.waitSignal(controller.answering_changed, check_params_cb=lambda active: not active):
        window.chat.composer.button.click()


def test_files_that_are_dropped_into_the_chat_become_chips_with_their_tokens(
    chatting: MainWindow, qtbot, tmp_path: Path
) -> None:
    notes, code = made(tmp_path, "notes.md", "one two three"), made(tmp_path, "a.py", "print(1)")
    assert drop(chatting, notes, code) == "Drop to attach to your message"
    qtbot.waitUntil(lambda: chips(chatting) == [("notes.md", "3 tokens"), ("a.py", "1 token")])
    assert not chatting.showing_models
    assert chatting.chat.composer.button.isEnabled()


def test_on_the_page_of_models_a_drop_is_a_model(window: MainWindow, tmp_path: Path) -> None:
    window.show_models()
    assert drop(window, made(tmp_path, "notes.md", "one")) == "Drop to look at this model"
    assert chips(window) == []


def test_a_gguf_file_is_a_model_wherever_it_is_dropped(chatting: MainWindow, qtbot, tmp_path: Path) -> None:
    with qtbot.waitSignal(chatting.controller.model_inspected):
        drop(chatting, made(tmp_path, "model.gguf", "GGUF"))
    assert chatting.showing_models


def test_files_are_chosen_with_the_button(chatting: MainWindow, qtbot, tmp_path: Path) -> None:
    chatting.chat.composer.attach_button.click()
    dialog = chatting.findChild(QFileDialog)
    assert dialog.fileMode() is QFileDialog.FileMode.ExistingFiles
    dialog.filesSelected.emit([str(made(tmp_path, "a.txt", "one")), str(made(tmp_path, "b.txt", "two"))])
    dialog.close()
    qtbot.waitUntil(lambda: [name for name, _ in chips(chatting)] == ["a.txt", "b.txt"])


def test_a_picture_is_refused_in_words_and_the_message_can_be_sent(
    chatting: MainWindow, qtbot, tmp_path: Path
) -> None:
    picture = tmp_path / "<b>holiday<i>.jpg"
    picture.write_bytes(b"\xff\xd8\xff\xe0\0\x10JFIF")
    attach(qtbot, chatting, picture)
    (line,) = chatting.chat.composer.files.refused.values()
    assert line.words.text().startswith("“<b>holiday<i>.jpg” holds no text that could be read.")
    assert line.isVisible()
    chatting.chat.composer.set_text("Hi")
    assert chatting.chat.composer.button.isEnabled()
    line.remove_button.click()
    assert chatting.chat.composer.files.isHidden()


def test_what_was_refused_leaves_with_the_message_that_it_was_meant_for(
    chatting: MainWindow, qtbot, tmp_path: Path
) -> None:
    attach(qtbot, chatting, made(tmp_path, "notes.md", "kestrel"), made(tmp_path, "film.bin", "\0\1"))
    assert len(chatting.chat.composer.files.refused) == 1
    chatting.chat.composer.set_text("What is it?")
    send(qtbot, chatting)
    assert chatting.chat.composer.files.isHidden()
    attach(qtbot, chatting, made(tmp_path, "song.bin", "\0\1"))
    chatting.chat.composer.set_text("And now?")
    send(qtbot, chatting)
    assert chatting.chat.composer.files.isHidden(), "also where no file went with it"


def test_a_pdf_goes_into_the_message(chatting: MainWindow, qtbot, script, tmp_path: Path) -> None:
    paper = tmp_path / "paper.pdf"
    paper.write_bytes(pdf_bytes(["First page", "Second page"]))
    window = chatting
    with qtbot.waitSignal(window.controller.attachments.changed):
        window.attachments.attach([paper])
    qtbot.waitUntil(lambda: chips(window) == [("paper.pdf", "4 tokens")], timeout=20_000)
    send(qtbot, window)
    assert script.prompts[-1] == [("user", "File “paper.pdf”:\n```\nFirst page\n\nSecond page\n```")]
    (question,) = questions(window)
    assert question.files[0].button.text() == "paper.pdf · 2 pages"
    assert question.bubble.isHidden()


def test_a_sent_file_leaves_the_composer_and_is_folded_in_the_chat(
    chatting: MainWindow, qtbot, tmp_path: Path
) -> None:
    attach(qtbot, chatting, made(tmp_path, "notes.md", "# Notes\nkestrel"))
    chatting.chat.composer.set_text("What is it?")
    send(qtbot, chatting)
    assert chips(chatting) == []
    assert chatting.chat.composer.text == ""
    (question,) = questions(chatting)
    (file,) = question.files
    assert file.button.text() == "notes.md · 2 lines"
    assert file.text is None
    folded = question.height()
    QTest.mouseClick(file.button, Qt.MouseButton.LeftButton)
    assert file.text.shown_text == "# Notes\nkestrel"
    qtbot.waitUntil(lambda: question.height() > folded)
    assert question.documents[0] is file.documents[0]
    QTest.mouseClick(file.button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: question.height() == folded)


def test_a_rejected_message_keeps_its_files(window: MainWindow, qtbot, tmp_path: Path) -> None:
    window.show_chat()
    window.attachments.attach([made(tmp_path, "notes.md", "one")])
    qtbot.waitUntil(lambda: chips(window) == [("notes.md", "1 line")])
    window.chat.send_requested.emit("Hi")
    assert chips(window) == [("notes.md", "1 line")]


def test_files_are_counted_once_a_model_is_loaded(window: MainWindow, qtbot, tmp_path: Path) -> None:
    window.show_chat()
    window.attachments.attach([made(tmp_path, "notes.md", "one two")])
    qtbot.waitUntil(lambda: chips(window) == [("notes.md", "1 line")])
    load_model(qtbot, window.controller, MODEL)
    qtbot.waitUntil(lambda: chips(window) == [("notes.md", "2 tokens")])


def test_what_has_no_room_is_told_before_it_is_sent(
    chatting: MainWindow, qtbot, script, tmp_path: Path
) -> None:
    files = chatting.chat.composer.files
    attach(qtbot, chatting, made(tmp_path, "small.txt", "word " * 96))  # of 128, 32 are left for the answer
    assert not files.warning.isVisible()
    attach(qtbot, chatting, made(tmp_path, "more.txt", "word"))
    assert files.warning.text() == (
        "This message has 97 tokens, and the context has room for 96."
        " Attach less, begin a new chat, or load the model with a longer context."
    )
    assert files.warning.isVisible()
    files.chips[max(files.chips)].remove_button.click()
    assert not files.warning.isVisible()


def test_a_long_text_is_counted_as_well(chatting: MainWindow, qtbot) -> None:
    files = chatting.chat.composer.files
    chatting.chat.composer.set_text("word " * 97)
    qtbot.waitUntil(files.warning.isVisible)
    chatting.chat.composer.set_text("")
    qtbot.waitUntil(lambda: not files.warning.isVisible())


def test_what_the_conversation_has_used_is_no_room_unless_its_oldest_messages_go(
    chatting: MainWindow, qtbot, script, tmp_path: Path
) -> None:
    script.counts_words = True
    chatting.chat.composer.set_text("word " * 40)
    send(qtbot, chatting)
    attach(qtbot, chatting, made(tmp_path, "a.txt", "word " * 60))
    assert "has room for" in chatting.chat.composer.files.warning.text()
    chatting._choose_policy(ContextPolicy.DROP_OLDEST)
    attach(qtbot, chatting, made(tmp_path, "b.txt", "word"))
    assert not chatting.chat.composer.files.warning.isVisible()


def test_an_edit_begins_with_the_files_of_its_message_and_the_others_come_back(
    chatting: MainWindow, qtbot, script, tmp_path: Path
) -> None:
    attach(qtbot, chatting, made(tmp_path, "old.txt", "one"))
    chatting.chat.composer.set_text("First")
    send(qtbot, chatting)
    attach(qtbot, chatting, made(tmp_path, "next.txt", "one two"))
    chatting.chat.composer.set_text("Next")
    chatting.chat.ask(MessageAction.EDIT)
    qtbot.waitUntil(lambda: chips(chatting) == [("old.txt", "1 token")])
    files = chatting.chat.composer.files
    next(iter(files.chips.values())).remove_button.click()
    assert chips(chatting) == []
    send(qtbot, chatting)
    assert script.prompts[-1] == [("user", "First")]
    assert chips(chatting) == [("next.txt", "2 tokens")]
    assert chatting.chat.composer.text == "Next"


def test_nothing_is_sent_while_a_file_is_being_read(chatting: MainWindow, qtbot, tmp_path: Path) -> None:
    chatting.chat.composer.set_text("Hi")
    chatting.attachments.attach([made(tmp_path, "a.txt", "one")])
    sent: list[str] = []
    chatting.chat.send_requested.connect(sent.append)
    QTest.keyClick(chatting.chat.composer.edit, Qt.Key.Key_Return)
    assert sent == []
    qtbot.waitUntil(chatting.chat.composer.button.isEnabled)


def test_a_book_is_shown_in_part_and_says_so(qtbot, chatting: MainWindow) -> None:
    with qtbot.waitSignal(chatting.controller.answer_finished):
        chatting.controller.send_message("Hi", [Attachment("book.txt", "x" * (MAX_SHOWN + 7))])
    (question,) = questions(chatting)
    question.files[0].button.click()
    assert question.files[0].text._text.endswith("… The model has read 7 more characters.")


def test_the_composer_says_that_something_is_chosen_for_the_chat(chatting: MainWindow, qtbot) -> None:
    button = chatting.chat.composer.settings_button
    assert "chosen" not in button.accessibleName()
    button.click()
    dialog = chatting.chat_settings._dialog
    dialog.presets.show_instructions("Be brief.")
    dialog.save_button.click()
    assert "something is chosen" in button.accessibleName()
    assert chatting.controller.chat_settings.instructions == "Be brief."
    button.click()
    with qtbot.waitSignal(chatting.controller.conversation_opened):
        chatting.controller.new_conversation()
    assert chatting.chat_settings._dialog is None, "it was about the chat that was open"
    assert "chosen" not in button.accessibleName()
