"""The window never stays in a state that has passed: whatever ends, and wherever it was ended."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QSignalSpy
from PySide6.QtWidgets import QApplication, QDialog, QLineEdit
from store_steps import delete

from app.controller import ModelPhase
from app.conversations import ConversationStore, StoreError
from app.ui import dialogs
from app.ui.main_window import MainWindow
from engine.errors import OutOfMemoryError


def wait_for_end(qtbot, window: MainWindow) -> None:
    qtbot.waitUntil(lambda: not window.controller.answering)


def test_deleting_the_conversation_that_answers_leaves_no_dot_and_no_notice(
    answering: MainWindow, qtbot
) -> None:
    conversation_id = answering.controller.current_conversation_id
    with qtbot.waitSignal(answering.controller.trash.changed):
        answering.controller.trash.delete([conversation_id])
    wait_for_end(qtbot, answering)
    assert answering.conversations.model.answering is None
    assert not answering.chat.composer.answering
    assert answering.controller.current_conversation_id is None
    assert answering.banners.notices() == ()


def test_conversation_that_another_window_deletes_is_told_and_its_answer_stays_on_the_screen(
    answering: MainWindow, qtbot, script, app_paths
) -> None:
    other = ConversationStore(app_paths.conversations_file)
    delete(other, answering.controller.current_conversation_id)
    other.close()
    finished = QSignalSpy(answering.controller.answer_finished)
    script.gates[1].set()
    wait_for_end(qtbot, answering)
    assert [notice.code for notice in answering.banners.notices()] == ["conversation-gone"]
    assert not answering.chat.composer.answering
    assert finished.at(0)[1].text == "Hello there"
    qtbot.waitUntil(lambda: answering.conversations.model.summaries == ())
    answering.conversations.new_requested.emit()
    with qtbot.waitSignal(answering.controller.answer_finished):
        answering.chat.send_requested.emit("Still there?")


def test_renaming_with_the_list_hidden_shows_where_it_is_done(answering: MainWindow, qtbot, script) -> None:
    script.gates[1].set()
    wait_for_end(qtbot, answering)
    answering.actions_.toggle_sidebar.trigger()
    assert not answering.conversations.isVisible()
    answering.actions_.rename.trigger()
    editor = answering.conversations.view.findChild(QLineEdit)
    assert editor.isVisible()
    editor.setText("Another name")
    qtbot.keyClick(editor, Qt.Key.Key_Return)
    model = answering.conversations.model  # the end of the answer may still be changing it, too
    qtbot.waitUntil(lambda: [one.title for one in model.summaries] == ["Another name"])


def test_model_can_be_unloaded_to_make_room_and_loaded_again(
    answering: MainWindow, qtbot, model_folder: Path
) -> None:
    unload = answering.actions_.unload
    assert unload.isEnabled()
    unload.trigger()  # it stops the answer first
    qtbot.waitUntil(lambda: answering.controller.model_state.phase is ModelPhase.NONE)
    assert not unload.isEnabled()
    wait_for_end(qtbot, answering)
    answering.controller.load_model(model_folder)
    qtbot.waitUntil(unload.isEnabled)


def test_notice_of_a_message_that_was_not_saved_leaves_when_it_is(
    window: MainWindow, qtbot, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments, **_options) -> None:
        raise StoreError("disk-full", "Saving the message failed: the disk is full.", "Free some space.")

    window.controller.load_model(model_folder)
    qtbot.waitUntil(lambda: window.controller.model_state.phase is ModelPhase.READY)
    window.chat.composer.set_text("Hi")
    with monkeypatch.context() as full_disk:
        full_disk.setattr(ConversationStore, "begin_exchange", full)
        with qtbot.waitSignal(window.controller.send_rejected):
            window.chat.composer.button.click()
    assert [notice.code for notice in window.banners.notices()] == ["disk-full"]
    assert window.chat.composer.text == "Hi"
    with qtbot.waitSignal(window.controller.answer_finished):
        window.chat.composer.button.click()
    assert window.banners.notices() == ()
    assert window.chat.composer.text == ""


def test_refusal_because_of_an_answer_leaves_with_the_answer(
    window: MainWindow, qtbot, script, model_folder: Path
) -> None:
    controller = window.controller
    controller.load_model(model_folder)
    qtbot.waitUntil(lambda: controller.model_state.phase is ModelPhase.READY)
    with qtbot.waitSignal(controller.answering_changed, check_params_cb=lambda on: not on):
        controller.send_message("Hi")
    window.chat.transcript.work.run_to_end()
    answer = window.chat.transcript.views[-1].message_id
    gate = script.gates[0] = threading.Event()
    with qtbot.waitSignal(controller.answer_started):
        controller.regenerate_answer(answer)
        controller.regenerate_answer(answer)
    assert [notice.code for notice in window.banners.notices()] == ["answer-in-progress"]
    with qtbot.waitSignal(controller.answering_changed, check_params_cb=lambda on: not on):
        gate.set()
    assert window.banners.notices() == ()


def test_notice_of_an_answer_that_failed_leaves_with_the_next_one_in_that_chat(
    window: MainWindow, qtbot, script, model_folder: Path
) -> None:
    controller = window.controller
    controller.load_model(model_folder)
    qtbot.waitUntil(lambda: controller.model_state.phase is ModelPhase.READY)
    script.pieces = [OutOfMemoryError("There is no room for the prompt.", "Begin a new chat.")]

    def ask(text: str) -> None:
        with qtbot.waitSignal(controller.answering_changed, check_params_cb=lambda on: not on):
            controller.send_message(text)

    ask("Hi")
    first = controller.current_conversation_id
    told = window.banners.notices()
    assert [notice.message for notice in told] == ["There is no room for the prompt."]
    script.pieces = ["Hello"]
    window._new_chat()
    ask("elsewhere")
    assert window.banners.notices() == told, "it is the other chat's"
    with qtbot.waitSignal(controller.conversation_opened):
        controller.open_conversation(first)
    window.chat.transcript.work.run_to_end()  # its messages are built in slices
    with qtbot.waitSignal(controller.answering_changed, check_params_cb=lambda on: not on):
        controller.regenerate_answer(window.chat.transcript.views[-1].message_id)
    assert window.banners.notices() == ()


def test_question_that_stands_open_ends_with_the_window(window: MainWindow) -> None:
    accepted: list[bool] = []
    dialogs.ask_to_delete_message(window, on_accept=lambda: accepted.append(True))
    window.loader.choose_folder()
    assert len(window.findChildren(QDialog)) >= 2
    window.close()
    assert not any(isinstance(widget, QDialog) and widget.isVisible() for widget in QApplication.allWidgets())
    assert accepted == []
