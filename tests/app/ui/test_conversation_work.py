"""What a person does with conversations in the real window: finds, tags, deletes, takes out and brings in."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QFileDialog, QInputDialog

from app.archive import ArchivedConversation, ArchivedMessage
from app.conversations import ConversationStore, ConversationSummary
from app.settings import Theme
from app.ui.conversation_model import PINNED, UNREAD_ROLE, ConversationModel
from app.ui.main_window import MainWindow
from app.ui.search_results import mark_color
from app.ui.theme import contrast, current_theme, theme_manager

LONG = "\n\n".join(f"Paragraph {number} of a long answer about birds." for number in range(60))


def chat(title: str, *texts: str, **options) -> ArchivedConversation:
    messages = [
        ArchivedMessage(
            str(number), str(number - 1) if number else None, "assistant" if number % 2 else "user", text
        )
        for number, text in enumerate(texts)
    ]
    return ArchivedConversation(title, tuple(messages), **options)


@pytest.fixture
def filled(app_paths) -> dict[str, str]:
    """Conversations on disk before the window opens: ids by title."""
    store = ConversationStore(app_paths.conversations_file)
    chats = [
        chat("Birds", "What is a kestrel?", "A small falcon.", tags=("nature",)),
        chat("鸟", "红隼吃什么？", "昆虫。", tags=("nature", "中文")),
        chat("Long", "Tell me", f"{LONG}\n\nHere the Merlin hides.\n\n{LONG}", "Thanks", "Bye"),
        chat("Garden", "Peas?", "Peas."),
    ]
    ids = store.add_archived(chats)
    store.close()
    return dict(zip((one.title for one in chats), ids, strict=True))


@pytest.fixture
def window(filled, open_window: Callable[..., MainWindow]) -> MainWindow:
    window = open_window()
    window.show_chat()
    return window


def search(qtbot, window: MainWindow, text: str) -> None:
    with qtbot.waitSignal(window.controller.search.found, check_params_cb=lambda found: found.query == text):
        window.actions_.search.trigger()
        qtbot.keyClicks(window.conversations.filter_bar.field, text) if text.isascii() else (
            window.conversations.filter_bar.field.setText(text)
        )


def listed(window: MainWindow) -> list[str]:
    model = window.conversations.model
    return [str(model.index(row).data()) for row in range(model.rowCount())]


def found(window: MainWindow) -> list[str]:
    rows = window.conversations.results.rows
    return [str(rows.index(row).data()) for row in range(rows.rowCount())]


def open_chat(qtbot, window: MainWindow, conversation_id: str | None) -> None:
    with qtbot.waitSignal(window.controller.conversation_opened):
        if conversation_id is None:
            window.controller.new_conversation()
        else:
            window.controller.open_conversation(conversation_id)


# Search


def test_results_come_while_one_types_and_escape_brings_the_list_back(window: MainWindow, qtbot) -> None:
    search(qtbot, window, "falcon")
    assert found(window) == ["Birds", "Answer: A small falcon."]
    assert window.conversations.results.isVisible()
    assert not window.conversations.view.isVisible()
    qtbot.keyClick(window.conversations.filter_bar.field, Qt.Key.Key_Escape)
    assert window.conversations.view.isVisible()
    assert not window.conversations.results.isVisible()


@pytest.mark.parametrize("query", ["隼", "红隼"])
def test_chinese_of_one_and_two_characters_is_found(window: MainWindow, qtbot, query: str) -> None:
    search(qtbot, window, query)
    assert found(window) == ["鸟", "You: 红隼吃什么？"]


def test_nothing_found_is_said(window: MainWindow, qtbot) -> None:
    search(qtbot, window, "ostrich")
    assert found(window) == []
    assert window.conversations._found_words.text() == "Nothing has “ostrich” in it."


def test_return_opens_the_first_message_at_its_place_with_the_word_marked(window: MainWindow, qtbot) -> None:
    search(qtbot, window, "merlin")
    with qtbot.waitSignal(window.controller.message_shown):
        qtbot.keyClick(window.conversations.filter_bar.field, Qt.Key.Key_Return)
    transcript = window.chat.transcript
    qtbot.waitUntil(lambda: transcript.selected_text() == "Merlin")
    assert window.header.title.text() == "Long"
    marked = next(one for one in transcript.documents if one.textCursor().hasSelection())
    place = marked.viewport().mapTo(transcript.viewport(), marked.cursorRect().center())
    assert transcript.viewport().rect().contains(QPoint(10, place.y()))


def test_the_list_of_results_is_used_by_keys_alone(window: MainWindow, qtbot, filled) -> None:
    search(qtbot, window, "falcon")
    qtbot.keyClick(window.conversations.filter_bar.field, Qt.Key.Key_Down)
    assert window.conversations.results.currentIndex().row() == 0
    with qtbot.waitSignal(window.controller.conversation_opened) as opened:
        qtbot.keyClick(window.conversations.results, Qt.Key.Key_Return)
    assert opened.args[0].summary.id == filled["Birds"]


def test_a_deleted_conversation_leaves_the_results(window: MainWindow, qtbot, filled) -> None:
    search(qtbot, window, "falcon")
    with qtbot.waitSignal(window.controller.search.found):
        window.controller.trash.delete([filled["Birds"]])
    assert found(window) == []


@pytest.mark.parametrize("theme", [Theme.LIGHT, Theme.DARK])
def test_marked_words_can_be_read(qapp, theme: Theme) -> None:
    theme_manager().apply(theme)
    colors = current_theme()
    for ground in (colors.window, colors.selection):
        assert contrast(colors.text, mark_color(ground)) >= 4.5
    theme_manager().apply(Theme.SYSTEM)


# Pins and tags


def test_a_pin_goes_to_the_top_and_back(window: MainWindow, qtbot, filled) -> None:
    def choose(action: str) -> None:
        with qtbot.waitSignal(window.controller.conversations_changed):
            menu = window.conversations.context_menu()
            next(one for one in menu.actions() if one.text() == action).trigger()
            menu.close()

    window.conversations.set_current(filled["Garden"])
    choose("Pin to the top")
    assert listed(window)[:2] == [PINNED, "Garden"]
    window.conversations.set_current(filled["Garden"])
    choose("Unpin")
    assert PINNED not in listed(window)


def test_a_new_tag_is_given_and_only_its_chats_are_listed(window: MainWindow, qtbot, filled) -> None:
    conversations = window.conversations
    conversations.set_current(filled["Garden"])
    menu = conversations.context_menu()
    tags = next(one.menu() for one in menu.actions() if one.text() == "Tags")
    next(one for one in tags.actions() if one.text() == "New tag…").trigger()
    dialog = conversations.findChild(QInputDialog)
    dialog.setTextValue("#home ")
    with qtbot.waitSignal(window.controller.conversations_changed):
        dialog.accept()
    assert conversations.model.tags == {"home": 1, "nature": 2, "中文": 1}
    next(
        one for one in conversations.filter_bar.tag_menu.actions() if one.text().startswith("nature")
    ).trigger()
    assert {"Birds", "鸟"} <= set(listed(window))
    assert "Garden" not in listed(window)
    assert conversations.filter_bar.chip.isVisible()
    qtbot.mouseClick(conversations.filter_bar.chip, Qt.MouseButton.LeftButton)
    assert "Garden" in listed(window)


# Deletion


def test_several_are_chosen_deleted_at_once_and_brought_back(window: MainWindow, qtbot, filled) -> None:
    view, model = window.conversations.view, window.conversations.model
    opened: list[object] = []
    window.controller.conversation_opened.connect(opened.append)
    places = [view.visualRect(model.index_of(filled[title])).center() for title in ("Birds", "鸟")]
    with qtbot.waitSignal(window.controller.conversation_opened):
        qtbot.mouseClick(view.viewport(), Qt.MouseButton.LeftButton, pos=places[0])
    qtbot.mouseClick(
        view.viewport(), Qt.MouseButton.LeftButton, Qt.KeyboardModifier.ControlModifier, places[1]
    )
    assert {one.title for one in window.conversations.chosen} == {"Birds", "鸟"}
    qtbot.keyClick(view, Qt.Key.Key_Delete)
    qtbot.waitUntil(lambda: len(model.summaries) == 2)
    assert window.conversations.undo_bar.isVisible()
    assert len([one for one in opened if one is not None]) == 1, "what is chosen besides is not opened"
    window.actions_.undo_delete.trigger()
    qtbot.waitUntil(lambda: len(model.summaries) == 4)
    assert not window.conversations.undo_bar.isVisible()


def test_the_undo_goes_when_it_is_closed(window: MainWindow, qtbot, filled, app_paths) -> None:
    with qtbot.waitSignal(window.controller.trash.changed):
        window.controller.trash.delete([filled["Birds"]])
    qtbot.mouseClick(window.conversations.undo_bar.close_button, Qt.MouseButton.LeftButton)
    store = ConversationStore(app_paths.conversations_file)
    qtbot.waitUntil(lambda: filled["Birds"] not in store.all_ids())
    store.close()


# Drafts


def test_each_chat_keeps_what_stands_unsent_in_it(window: MainWindow, qtbot, filled, open_window) -> None:
    composer = window.chat.composer
    qtbot.keyClicks(composer.edit, "for the new chat")
    open_chat(qtbot, window, filled["Birds"])
    assert composer.text == ""
    qtbot.keyClicks(composer.edit, "about birds")
    open_chat(qtbot, window, filled["鸟"])
    assert composer.text == ""
    open_chat(qtbot, window, filled["Birds"])
    assert composer.text == "about birds"
    open_chat(qtbot, window, None)
    assert composer.text == "for the new chat"
    window.close()
    again = open_window()
    qtbot.waitUntil(lambda: again.chat.composer.text == "for the new chat")


def test_a_draft_of_an_edit_is_not_taken_for_one_of_the_chat(window: MainWindow, qtbot, filled) -> None:
    open_chat(qtbot, window, filled["Birds"])
    qtbot.keyClicks(window.chat.composer.edit, "unsent")
    window.chat.composer.begin_edit("some message", "an old question")
    open_chat(qtbot, window, filled["鸟"])
    assert window.chat.composer.text == ""
    open_chat(qtbot, window, filled["Birds"])
    assert window.chat.composer.text == "unsent"


def test_what_is_sent_leaves_no_draft_in_either_chat(window: MainWindow, qtbot, model_folder: Path) -> None:
    window.controller.load_model(model_folder)
    qtbot.waitUntil(lambda: window.controller.model_state.summary is not None)
    qtbot.keyClicks(window.chat.composer.edit, "Hi")
    with qtbot.waitSignal(window.controller.answer_finished):
        qtbot.keyClick(window.chat.composer.edit, Qt.Key.Key_Return)
    assert window.chat.composer.text == ""
    open_chat(qtbot, window, None)
    assert window.chat.composer.text == ""


def test_what_is_sent_is_no_draft_though_another_chat_was_opened_meanwhile(
    window: MainWindow, qtbot, filled, model_folder: Path
) -> None:
    window.controller.load_model(model_folder)
    qtbot.waitUntil(lambda: window.controller.model_state.summary is not None)
    qtbot.keyClicks(window.chat.composer.edit, "Hi")
    with qtbot.waitSignals([window.controller.send_accepted, window.controller.answer_finished]):
        qtbot.keyClick(window.chat.composer.edit, Qt.Key.Key_Return)
        window.controller.open_conversation(filled["Birds"])
    open_chat(qtbot, window, None)
    assert window.chat.composer.text == ""


# Files


def test_an_export_goes_where_it_was_asked_to(window: MainWindow, qtbot, filled, tmp_path: Path) -> None:
    window.conversations.set_current(filled["鸟"])
    window.actions_.export_json.trigger()
    dialog = window.findChild(QFileDialog)
    assert Path(dialog.selectedFiles()[0]).name == "鸟.json"
    target = tmp_path / "out.json"
    with qtbot.waitSignal(window.controller.transfer.notice_raised):
        dialog.fileSelected.emit(str(target))
    assert [one["title"] for one in json.loads(target.read_text(encoding="utf-8"))] == ["鸟"]
    assert [one.code for one in window.banners.notices()] == ["conversations-exported"]


def test_an_imported_file_that_is_not_what_it_says_is_refused_with_one_sentence(
    window: MainWindow, qtbot, tmp_path: Path
) -> None:
    path = tmp_path / "conversations.json"
    path.write_bytes(b"\x89PNG\r\n")
    before = window.conversations.model.summaries
    window.actions_.import_chats.trigger()
    with qtbot.waitSignal(window.controller.transfer.notice_raised):
        window.findChild(QFileDialog).filesSelected.emit([str(path)])
    (notice,) = window.banners.notices()
    assert notice.message == "conversations.json is not imported: it is not text in UTF-8."
    assert window.conversations.model.summaries == before


# What is shown of states


def test_an_unseen_answer_is_marked_until_its_chat_is_opened(
    qtbot, filled, app_paths, open_window: Callable[..., MainWindow]
) -> None:
    store = ConversationStore(app_paths.conversations_file)
    store.marks.set_unread(filled["Birds"], True)
    store.close()
    window = open_window()
    model = window.conversations.model
    index = model.index_of(filled["Birds"])
    assert index.data(UNREAD_ROLE) is True
    assert "new answer" in index.data(Qt.ItemDataRole.AccessibleTextRole)
    open_chat(qtbot, window, filled["Birds"])
    qtbot.waitUntil(lambda: model.index_of(filled["Birds"]).data(UNREAD_ROLE) is False)


def test_in_a_folder_that_can_only_be_read_all_is_found_and_changes_are_refused_in_words(
    qtbot, filled, open_window: Callable[..., MainWindow], monkeypatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    window = open_window()
    assert [one.code for one in window.banners.notices()] == ["store-read-only"]
    search(qtbot, window, "falcon")
    assert found(window) == ["Birds", "Answer: A small falcon."]
    with qtbot.waitSignal(window.controller.notice_raised) as told:
        window.controller.trash.delete([filled["Birds"]])
    assert "can only be read" in told.args[0].message
    qtbot.keyClicks(window.chat.composer.edit, "still can be typed")
    open_chat(qtbot, window, filled["鸟"])
    open_chat(qtbot, window, None)
    assert window.chat.composer.text == "still can be typed"


def test_headings_stand_once_and_in_order_though_the_clock_was_set_back(qapp) -> None:
    def went_on(title: str, *, days_ago: int) -> ConversationSummary:
        when = datetime(2026, 6, 15, 12, tzinfo=UTC) - timedelta(days=days_ago)
        return ConversationSummary(title, title, when, when)

    model = ConversationModel(today=lambda: date(2026, 6, 15))
    model.set_summaries(
        [
            went_on("a", days_ago=900),
            went_on("b", days_ago=0),
            went_on("c", days_ago=40),
            went_on("d", days_ago=1),
        ]
    )
    rows = [str(model.index(row).data()) for row in range(model.rowCount())]
    assert rows == ["Today", "a", "b", "Yesterday", "c", "d"]


def test_every_control_of_the_sidebar_has_a_name_and_a_tooltip(window: MainWindow) -> None:
    bar = window.conversations
    for control in (
        bar.filter_bar.field,
        bar.filter_bar.tag_button,
        bar.filter_bar.chip,
        bar.undo_bar.undo_button,
        bar.undo_bar.close_button,
    ):
        bar.filter_bar.set_tags({"nature": 1}, "nature")
        assert control.accessibleName()
        assert control.toolTip()
