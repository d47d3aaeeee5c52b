"""The list of conversations: groups, in-place renaming, keyboard, and what it asks for."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
from PySide6.QtCore import QItemSelectionModel, Qt
from PySide6.QtTest import QAbstractItemModelTester
from PySide6.QtWidgets import QLineEdit, QMenu

from app.conversations import ConversationSummary
from app.ui.conversation_list import ConversationList
from app.ui.conversation_model import ANSWERING_ROLE, ConversationModel

NOON = datetime.now().astimezone().replace(hour=12, minute=0)


def summary(name: str, *, days_ago: int = 0, title: str | None = None) -> ConversationSummary:
    moment = (NOON - timedelta(days=days_ago)).astimezone(UTC)
    return ConversationSummary(name, title if title is not None else f"Title {name}", moment, moment)


def texts(model: ConversationModel) -> list[str]:
    return [model.index(row).data() for row in range(model.rowCount())]


@pytest.fixture
def conversations(qtbot) -> ConversationList:
    widget = ConversationList()
    qtbot.addWidget(widget)
    widget.resize(250, 500)
    widget.show()
    return widget


def test_model_keeps_the_contract_of_item_models(qtbot) -> None:
    model = ConversationModel()
    QAbstractItemModelTester(model, QAbstractItemModelTester.FailureReportingMode.Fatal)
    model.set_summaries([summary("a"), summary("b", days_ago=1)])
    model.set_summaries([summary("b"), summary("a")])
    model.set_answering("a")
    model.set_summaries([])


def test_conversations_stand_under_their_day() -> None:
    model = ConversationModel(today=lambda: date.today())
    model.set_summaries(
        [
            summary("a"),
            summary("b"),
            summary("c", days_ago=1),
            summary("d", days_ago=3),
            summary("e", days_ago=90),
        ]
    )
    assert texts(model) == [
        "Today", "Title a", "Title b", "Yesterday", "Title c", "Last 7 days", "Title d", "Earlier", "Title e",
    ]  # fmt: skip


def test_headings_and_what_screen_readers_say_are_chinese_in_a_chinese_window(in_chinese) -> None:
    model = ConversationModel(today=lambda: date.today())
    pinned = replace(summary("p", title=""), pinned=True, tags=("bird", "鸟"), unread=True)
    model.set_summaries([pinned, summary("a"), summary("b", days_ago=1), summary("c", days_ago=9)])
    model.set_answering("p")
    assert texts(model) == ["置顶", "新对话", "今天", "Title a", "昨天", "Title b", "更早", "Title c"]
    said = model.index(1).data(Qt.ItemDataRole.AccessibleTextRole)
    assert said == "新对话，已置顶，正在生成回答，有新回答，标签：bird，鸟"


def test_headings_can_not_be_chosen_or_edited() -> None:
    model = ConversationModel()
    model.set_summaries([summary("a")])
    assert model.flags(model.index(0)) == Qt.ItemFlag.NoItemFlags
    assert not model.setData(model.index(0), "Tomorrow")
    assert model.flags(model.index(1)) & Qt.ItemFlag.ItemIsSelectable


def test_title_with_line_breaks_takes_one_line_and_an_empty_one_has_a_name() -> None:
    model = ConversationModel()
    model.set_summaries([summary("a", title="one\n\ttwo"), summary("b", title="  ")])
    assert texts(model)[1:] == ["one two", "New chat"]


def test_click_opens_and_the_open_one_is_not_opened_again(conversations: ConversationList, qtbot) -> None:
    conversations.set_summaries([summary("a"), summary("b")])
    conversations.set_current("a")
    place = conversations.view.visualRect(conversations.model.index_of("b")).center()
    with qtbot.waitSignal(conversations.open_requested) as opened:
        qtbot.mouseClick(conversations.view.viewport(), Qt.MouseButton.LeftButton, pos=place)
    assert opened.args == ["b"]
    conversations.set_current("b")
    with qtbot.assertNotEmitted(conversations.open_requested):
        qtbot.mouseClick(conversations.view.viewport(), Qt.MouseButton.LeftButton, pos=place)


def test_arrow_keys_skip_headings_and_return_opens(conversations: ConversationList, qtbot) -> None:
    conversations.set_summaries([summary("a"), summary("b", days_ago=1)])
    conversations.set_current("a")
    qtbot.keyClick(conversations.view, Qt.Key.Key_Down)
    assert conversations.view.currentIndex() == conversations.model.index_of("b")
    with qtbot.waitSignal(conversations.open_requested) as opened:
        qtbot.keyClick(conversations.view, Qt.Key.Key_Return)
    assert opened.args == ["b"]


def test_f2_edits_the_title_in_place_and_return_asks_for_the_new_one(
    conversations: ConversationList, qtbot
) -> None:
    conversations.set_summaries([summary("a")])
    conversations.set_current("a")
    qtbot.keyClick(conversations.view, Qt.Key.Key_F2)
    editor = conversations.view.findChild(QLineEdit)
    assert editor.text() == "Title a"
    editor.setText("  A new\u2028name ")
    with qtbot.waitSignal(conversations.rename_requested) as renamed:
        qtbot.keyClick(editor, Qt.Key.Key_Return)
    assert renamed.args == ["a", "A new name"]
    assert texts(conversations.model)[1] == "Title a", "the list shows what is on disk"


@pytest.mark.parametrize("typed", ["", "   ", "Title a"])
def test_empty_or_unchanged_title_asks_for_nothing(
    conversations: ConversationList, qtbot, typed: str
) -> None:
    conversations.set_summaries([summary("a")])
    conversations.set_current("a")
    conversations.rename_current()
    editor = conversations.view.findChild(QLineEdit)
    editor.setText(typed)
    with qtbot.assertNotEmitted(conversations.rename_requested):
        qtbot.keyClick(editor, Qt.Key.Key_Return)


def test_delete_key_in_the_title_editor_deletes_a_letter_and_no_conversation(
    conversations: ConversationList, qtbot
) -> None:
    conversations.set_summaries([summary("a")])
    conversations.set_current("a")
    conversations.rename_current()
    editor = conversations.view.findChild(QLineEdit)
    editor.setCursorPosition(0)
    editor.deselect()
    with qtbot.assertNotEmitted(conversations.actions_.delete_requested):
        qtbot.keyClick(editor, Qt.Key.Key_Delete)
        editor.end(False)
        qtbot.keyClick(editor, Qt.Key.Key_Delete)
    assert editor.text() == "itle a"


def test_list_that_changes_while_a_title_is_edited_waits_and_loses_nothing(
    conversations: ConversationList, qtbot
) -> None:
    conversations.set_summaries([summary("a"), summary("b")])
    conversations.set_current("b")
    conversations.rename_current()
    editor = conversations.view.findChild(QLineEdit)
    editor.setText("Half a ti")
    conversations.set_summaries([summary("b"), summary("a"), summary("c")])
    assert conversations.view.findChild(QLineEdit) is editor
    assert editor.text() == "Half a ti"
    with qtbot.waitSignal(conversations.rename_requested) as renamed:
        qtbot.keyClick(editor, Qt.Key.Key_Return)
    assert renamed.args == ["b", "Half a ti"]
    qtbot.waitUntil(lambda: texts(conversations.model)[1:] == ["Title b", "Title a", "Title c"])


def test_delete_key_asks_for_the_chosen_one(conversations: ConversationList, qtbot) -> None:
    conversations.set_summaries([summary("a"), summary("b")])
    conversations.set_current("b")
    with qtbot.waitSignal(conversations.actions_.delete_requested) as asked:
        qtbot.keyClick(conversations.view, Qt.Key.Key_Delete)
    assert asked.args == [["b"]]


def test_menu_works_on_the_conversation_it_was_opened_on(conversations: ConversationList, qtbot) -> None:
    conversations.set_summaries([summary("a"), summary("b")])
    conversations.set_current("a")
    index = conversations.model.index_of("b")
    conversations.view.customContextMenuRequested.emit(conversations.view.visualRect(index).center())
    menu = conversations.findChild(QMenu)
    with qtbot.waitSignal(conversations.actions_.delete_requested) as asked:
        next(action for action in menu.actions() if action.text().startswith("Delete")).trigger()
    assert asked.args == [["b"]]
    menu.close()
    qtbot.waitUntil(lambda: conversations.view.currentIndex() == conversations.model.index_of("a"))


def test_current_one_stays_marked_when_it_moves_to_the_top(conversations: ConversationList) -> None:
    conversations.set_summaries([summary("a"), summary("b", days_ago=1)])
    conversations.set_current("b")
    conversations.set_summaries([summary("b"), summary("a")])
    selected = conversations.view.selectionModel().selectedIndexes()
    assert [index.data() for index in selected] == ["Title b"]


def test_new_chat_that_is_not_in_the_list_leaves_nothing_marked(conversations: ConversationList) -> None:
    conversations.set_summaries([summary("a")])
    conversations.set_current("a")
    conversations.set_current(None)
    assert not conversations.view.selectionModel().hasSelection()
    conversations.view.selectionModel().setCurrentIndex(
        conversations.model.index_of("a"), QItemSelectionModel.SelectionFlag.ClearAndSelect
    )


def test_dot_moves_while_an_answer_is_written_and_then_rests(conversations: ConversationList) -> None:
    conversations.set_summaries([summary("a"), summary("b")])
    conversations.set_answering("b")
    assert conversations._pulse.isActive()
    marked = [conversations.model.index_of(name).data(ANSWERING_ROLE) for name in "ab"]
    assert marked == [False, True]
    spoken = conversations.model.index_of("b").data(Qt.ItemDataRole.AccessibleTextRole)
    assert "being written" in spoken
    conversations.set_answering(None)
    assert not conversations._pulse.isActive()
    assert conversations.model.index_of("b").data(ANSWERING_ROLE) is False


def test_long_titles_do_not_widen_the_list(conversations: ConversationList) -> None:
    before = conversations.minimumSizeHint().width()
    conversations.set_summaries([summary("a", title="word " * 60)])
    assert conversations.minimumSizeHint().width() == before
    assert conversations.view.horizontalScrollBar().maximum() == 0
