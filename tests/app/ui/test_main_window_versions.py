"""Editing, answering anew, paging, branching and waiting, as a person does it in the window."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QContextMenuEvent, QGuiApplication
from PySide6.QtWidgets import QMenu, QMessageBox

from app.context_policy import ContextPolicy
from app.controller import ModelPhase
from app.ui.conversation_model import ANSWERING_ROLE, WAITING_ROLE
from app.ui.main_window import MainWindow
from app.ui.message_actions import MessageAction
from app.ui.message_view import AnswerView, MessageView, UserMessageView
from engine.generation import PrefillStats, ReuseReason, SlotInfo


@pytest.fixture
def chatting(window: MainWindow, qtbot, script, model_folder: Path) -> MainWindow:
    """Two turns."""
    window.controller.load_model(model_folder)
    qtbot.waitUntil(lambda: window.controller.model_state.phase is ModelPhase.READY)
    window.show_chat()
    script.pieces = ["first"]
    say(qtbot, window, "one")
    script.pieces = ["second"]
    say(qtbot, window, "two")
    script.pieces = ["other"]
    return window


def say(qtbot, window: MainWindow, text: str) -> None:
    window.chat.composer.set_text(text)
    with qtbot.waitSignal(window.controller.answering_changed, check_params_cb=lambda on: not on):
        qtbot.keyClick(window.chat.composer.edit, Qt.Key.Key_Return)


def texts(window: MainWindow) -> list[str]:
    return [view.text for view in window.chat.transcript.views]


def views(window: MainWindow) -> tuple[MessageView, ...]:
    return window.chat.transcript.views


def click(qtbot, view: MessageView, action: MessageAction) -> None:
    qtbot.mouseClick(view.actions_.buttons[action], Qt.MouseButton.LeftButton)


def test_an_edit_happens_in_the_composer_and_leaves_its_draft_alone(
    chatting: MainWindow, qtbot, script
) -> None:
    composer = chatting.chat.composer
    composer.set_text("a draft")
    view = views(chatting)[0]
    click(qtbot, view, MessageAction.EDIT)
    assert (composer.text, composer.strip.isVisible()) == ("one", True)
    assert composer.button.accessibleName() == "Send the edited message"
    composer.set_text("uno")
    with qtbot.waitSignal(chatting.controller.answering_changed, check_params_cb=lambda on: not on):
        qtbot.keyClick(composer.edit, Qt.Key.Key_Return)
    assert texts(chatting) == ["uno", "other"]
    assert (composer.text, composer.strip.isVisible()) == ("a draft", False)
    assert views(chatting)[0].actions_.pager.text == "2 / 2"
    assert script.prompts[-1] == [("user", "uno")]


def test_an_edit_that_is_given_up_changes_nothing(chatting: MainWindow, qtbot) -> None:
    composer = chatting.chat.composer
    composer.set_text("a draft")
    chatting.actions_.messages[MessageAction.EDIT].trigger()
    assert composer.text == "two", "with no focus on a message it is the last"
    qtbot.keyClick(composer.edit, Qt.Key.Key_Escape)
    assert (composer.text, composer.edited_id) == ("a draft", "")
    chatting.actions_.messages[MessageAction.EDIT].trigger()
    here = chatting.controller.current_conversation_id
    with qtbot.waitSignal(chatting.controller.conversation_opened):
        chatting.controller.new_conversation()
    assert (composer.text, composer.edited_id) == ("", ""), "the message is no longer there"
    with qtbot.waitSignal(chatting.controller.conversation_opened):
        chatting.controller.open_conversation(here)
    assert composer.text == "a draft", "what was being written stays with its chat"


def test_an_edit_without_a_model_keeps_what_was_written(chatting: MainWindow, qtbot) -> None:
    chatting.actions_.messages[MessageAction.EDIT].trigger()
    chatting.chat.composer.set_text("due")
    with qtbot.waitSignal(chatting.controller.model_state_changed):
        chatting.controller.unload_model()
    qtbot.keyClick(chatting.chat.composer.edit, Qt.Key.Key_Return)
    assert chatting.chat.composer.text == "due"
    assert texts(chatting) == ["one", "first", "two", "second"]


def test_paging_keeps_the_button_under_the_mouse_and_shows_what_followed(chatting: MainWindow, qtbot) -> None:
    answer = views(chatting)[1]
    kept = views(chatting)[0]
    with qtbot.waitSignal(chatting.controller.answering_changed, check_params_cb=lambda on: not on):
        click(qtbot, answer, MessageAction.REGENERATE)
    assert texts(chatting) == ["one", "other"]
    assert views(chatting)[0] is kept, "what both versions share is not built anew"
    place = views(chatting)[1].mapTo(chatting, QPoint(0, 0))
    pager = views(chatting)[1].actions_.pager
    assert pager.text == "2 / 2"
    assert not pager.newer.isEnabled()
    with qtbot.waitSignal(chatting.controller.branch_shown):
        qtbot.mouseClick(pager.older, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: texts(chatting) == ["one", "first", "two", "second"])
    assert views(chatting)[1].mapTo(chatting, QPoint(0, 0)) == place
    assert views(chatting)[1].actions_.pager.text == "1 / 2"
    with qtbot.waitSignal(chatting.controller.branch_shown):
        chatting.actions_.messages[MessageAction.NEWER].trigger()
    qtbot.waitUntil(lambda: texts(chatting) == ["one", "other"])


def test_a_branch_is_a_chat_of_its_own(chatting: MainWindow, qtbot) -> None:
    with qtbot.waitSignal(chatting.controller.conversation_opened):
        click(qtbot, views(chatting)[1], MessageAction.FORK)
    qtbot.waitUntil(lambda: texts(chatting) == ["one", "first"])
    assert chatting.header.title.text() == "one (branch)"
    assert [one.title for one in chatting.conversations.model.summaries] == ["one (branch)", "one"]


def test_a_message_is_deleted_with_what_follows_once_that_is_confirmed(
    chatting: MainWindow, qtbot, script
) -> None:
    click(qtbot, views(chatting)[2], MessageAction.DELETE)
    box = chatting.findChild(QMessageBox)
    box.escapeButton().click()
    assert texts(chatting) == ["one", "first", "two", "second"]
    click(qtbot, views(chatting)[2], MessageAction.DELETE)
    box = next(one for one in chatting.findChildren(QMessageBox) if one.isVisible())
    with qtbot.waitSignal(chatting.controller.branch_shown):
        next(one for one in box.buttons() if one.text() == "Delete").click()
    qtbot.waitUntil(lambda: texts(chatting) == ["one", "first"])
    conversation = chatting.controller.current_conversation_id
    qtbot.waitUntil(lambda: conversation in script.forgotten)
    say(qtbot, chatting, "three")
    assert texts(chatting) == ["one", "first", "three", "other"]
    assert [text for _, text in script.prompts[-1]] == ["one", "first", "three"]


def test_messages_have_a_menu_that_says_what_can_be_done_with_them(chatting: MainWindow, qtbot) -> None:
    def entries(view: MessageView) -> list[str]:
        where = QPoint(view.width() - 40, 12)
        event = QContextMenuEvent(QContextMenuEvent.Reason.Mouse, where, view.mapToGlobal(where))
        view.contextMenuEvent(event)
        menu = view.findChild(QMenu)
        found = [one.text().split("\t")[0] for one in menu.actions() if not one.isSeparator()]
        menu.close()
        return found

    question, answer = views(chatting)[:2]
    delete = "Delete message and what follows…"
    assert entries(question)[-4:] == ["Copy message", "Edit message", "Quote message", delete]
    assert entries(answer)[-5:] == [
        "Copy answer as Markdown",
        "Answer anew",
        "Branch into a new chat from here",
        "Quote answer",
        "Delete answer and what follows…",
    ]
    chatting.actions_.copy_answer.trigger()
    assert QGuiApplication.clipboard().text() == "second"


def test_nothing_can_be_changed_where_an_answer_is_being_written(chatting: MainWindow, qtbot, script) -> None:
    gate = script.gates[0] = threading.Event()
    with qtbot.waitSignal(chatting.controller.answer_started):
        chatting.controller.send_message("three")
    buttons = [
        button
        for view in views(chatting)
        for action, button in view.actions_.buttons.items()
        if action is not MessageAction.QUOTE
    ]
    assert not any(button.isEnabled() for button in buttons)
    chatting.actions_.messages[MessageAction.EDIT].trigger()
    assert chatting.chat.composer.edited_id == ""
    with qtbot.waitSignal(chatting.controller.answering_changed):
        gate.set()
    qtbot.waitUntil(lambda: all(button.isEnabled() for button in buttons))


def test_an_answer_that_waits_says_so_in_chat_and_list_and_can_be_called_off(
    chatting: MainWindow, qtbot, script
) -> None:
    first = chatting.controller.current_conversation_id
    gate = script.gates[0] = threading.Event()
    with qtbot.waitSignal(chatting.controller.answer_started):
        chatting.controller.send_message("three")
    chatting._new_chat()
    with qtbot.waitSignal(chatting.controller.answer_waiting):
        chatting.controller.send_message("elsewhere")
    second = chatting.controller.current_conversation_id
    model = chatting.conversations.model
    assert model.index_of(first).data(ANSWERING_ROLE)
    assert model.index_of(second).data(WAITING_ROLE)
    assert "waits for its turn" in model.index_of(second).data(Qt.ItemDataRole.AccessibleTextRole)
    answer = views(chatting)[-1]
    assert isinstance(answer, AnswerView)
    assert answer.waiting
    assert chatting.chat.composer.button.accessibleName() == "Stop"
    with qtbot.waitSignal(chatting.controller.answer_finished):
        qtbot.mouseClick(chatting.chat.composer.button, Qt.MouseButton.LeftButton)
    assert not answer.waiting
    assert chatting.controller.answering, "the other one goes on"
    with qtbot.waitSignal(chatting.controller.answer_waiting):
        chatting.controller.send_message("again")
    waiting = views(chatting)[-1]
    gate.set()
    qtbot.waitUntil(lambda: waiting.text == "other")
    assert not waiting.waiting
    assert [type(view) for view in views(chatting)] == [UserMessageView, AnswerView] * 2


def test_a_waiting_answer_is_written_on_its_own_branch_whichever_is_shown(
    chatting: MainWindow, qtbot, script
) -> None:
    controller = chatting.controller
    first = controller.current_conversation_id
    with qtbot.waitSignal(controller.answering_changed, check_params_cb=lambda on: not on):
        click(qtbot, views(chatting)[1], MessageAction.REGENERATE)
    chatting._new_chat()
    gate = script.gates[0] = threading.Event()
    with qtbot.waitSignal(controller.answer_started):
        controller.send_message("elsewhere")
    with qtbot.waitSignal(controller.conversation_opened):
        controller.open_conversation(first)
    with qtbot.waitSignal(controller.answer_waiting):
        controller.send_message("three")
    with qtbot.waitSignal(controller.branch_shown):
        controller.select_version(views(chatting)[1].message_id, -1)
    qtbot.waitUntil(lambda: texts(chatting) == ["one", "first", "two", "second"])
    with qtbot.waitSignal(controller.answer_started):
        gate.set()
    assert texts(chatting) == ["one", "first", "two", "second"]
    qtbot.waitUntil(lambda: not controller.answers.writing)
    assert texts(chatting) == ["one", "first", "two", "second"]
    with qtbot.waitSignal(controller.branch_shown):
        controller.select_version(views(chatting)[1].message_id, +1)
    qtbot.waitUntil(lambda: texts(chatting) == ["one", "other", "three", "other"])


def test_what_is_left_out_is_said_where_it_ends_and_stays_after_coming_back(
    window: MainWindow, qtbot, script, model_folder: Path
) -> None:
    script.counts_words = True
    script.prefill = PrefillStats(90, 3, 0.1, reason=ReuseReason.HISTORY_REWRITTEN, diverged_at=3)
    window.controller.load_model(model_folder)
    qtbot.waitUntil(lambda: window.controller.model_state.phase is ModelPhase.READY)
    window.show_chat()
    policy = next(one for one in window.status.context.menu.actions() if "oldest" in one.text())
    policy.trigger()
    assert window.controller.settings.context_policy is ContextPolicy.DROP_OLDEST
    for number in range(6):
        say(qtbot, window, f"{number} " + "word " * 12)

    def notes() -> list[str]:
        return [view.note for view in views(window)]

    words = "8 earlier messages are no longer read by the model"
    assert notes() == [*[""] * 8, words, *[""] * 3]
    assert "oldest messages left out" in views(window)[-1].footer.figures.text()
    conversation_id = window.controller.current_conversation_id
    window._new_chat()
    with qtbot.waitSignal(window.controller.conversation_opened):
        window.controller.open_conversation(conversation_id)
    qtbot.waitUntil(lambda: len(views(window)) == 12)
    assert notes() == [*[""] * 8, words, *[""] * 3]


def test_the_meter_follows_the_open_conversation(chatting: MainWindow, qtbot, script) -> None:
    meter = chatting.status.context
    conversation_id = chatting.controller.current_conversation_id
    assert (meter.use.used, meter.use.limit) == (3 + 2, 128)
    chatting._new_chat()
    assert meter.use.used == 0
    script.prefill = PrefillStats(110, 0, 0.1, reason=ReuseReason.NEW)
    say(qtbot, chatting, "long")
    assert meter.use.is_near
    with qtbot.waitSignal(chatting.controller.conversation_opened):
        chatting.controller.open_conversation(conversation_id)
    assert meter.use.used == 5


def test_the_panel_is_shown_on_demand_and_remembered_and_its_rows_open_chats(
    chatting: MainWindow, qtbot, script, open_window
) -> None:
    assert not chatting.panel.isVisible()
    conversation_id = chatting.controller.current_conversation_id
    script.slots = (SlotInfo(conversation_id, 70, 2, "pool", 60, 68),)
    say(qtbot, chatting, "three")
    qtbot.mouseClick(chatting.header.live_button, Qt.MouseButton.LeftButton)
    assert chatting.panel.isVisible()
    assert chatting.panel.model.fact("Device") == "a fake processor"
    qtbot.waitUntil(lambda: chatting.panel.slots.rowCount() == 1)
    row = chatting.panel.slots.index(0)
    assert row.data() == "one"
    chatting._new_chat()
    with qtbot.waitSignal(chatting.controller.conversation_opened) as opened:
        where = chatting.panel.view.visualRect(row).center()
        qtbot.mouseClick(chatting.panel.view.viewport(), Qt.MouseButton.LeftButton, pos=where)
    assert opened.args[0].summary.id == conversation_id
    chatting.close()
    again = open_window()
    assert again.panel.isVisible()
    again.actions_.toggle_live.trigger()
    assert not again.panel.isVisible()


def test_a_window_that_was_saved_without_the_panel_opens_with_all_its_parts(
    chatting: MainWindow, open_window
) -> None:
    """Splitters of an older version had two parts."""
    state = chatting.places.splitter.saveState()
    chatting.close()
    again = open_window()
    again.places.splitter.restoreState(state)
    again.actions_.toggle_live.trigger()
    again.resize(1100, 700)
    assert again.panel.width() >= again.panel.minimumWidth()
    assert again.chat.width() > 300
