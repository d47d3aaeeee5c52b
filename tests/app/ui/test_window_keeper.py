"""Another language is spoken at once, and nothing that is going on is lost by it."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import shiboken6
from controller_steps import send
from pdf_files import pdf_bytes
from PySide6.QtCore import QObject
from PySide6.QtWidgets import QMessageBox

from app.controller import ChatController, ModelPhase
from app.language import Language, language
from app.settings import load_settings
from app.ui import dialogs
from app.ui.conversation_menu import ask_for_tag
from app.ui.main_window import MainWindow
from app.ui.message_actions import MessageAction
from app.ui.spoken_language import speak
from app.ui.window_keeper import WindowKeeper
from engine.notices import Notice

MODELS = Path(__file__).parents[2] / "models"


@pytest.fixture(autouse=True)
def english_afterwards() -> Iterator[None]:
    yield
    speak(Language.ENGLISH)


@pytest.fixture
def keeper(qtbot, make_controller: Callable[..., ChatController]) -> Iterator[WindowKeeper]:
    controller = make_controller()
    controller.update_settings(language=Language.ENGLISH)
    keeper = WindowKeeper(controller)
    keeper.show()
    qtbot.waitExposed(keeper.window)
    with qtbot.waitSignal(controller.conversation_opened):
        controller.start()
    yield keeper
    keeper.close()
    assert keeper.closed_cleanly
    shiboken6.delete(keeper.window)  # each that stays is dressed anew with every theme that is applied


def choose(qtbot, keeper: WindowKeeper, chosen: Language) -> MainWindow:
    """As a person does it, in the settings. The window that speaks that language, its chat shown."""
    old, controller = keeper.window, keeper.window.controller
    old.settings.open()
    row = old.settings.dialog.sections.language
    with qtbot.waitSignal(controller.conversation_opened, timeout=30_000):
        index = row.box.findText({Language.CHINESE: "简体中文", Language.ENGLISH: "English"}[chosen])
        row.box.setCurrentIndex(index)
        row.box.activated.emit(index)
    assert keeper.window is not old
    return keeper.window


def load(qtbot, window: MainWindow, model: Path) -> None:
    window.controller.load_model(model)
    qtbot.waitUntil(lambda: window.controller.model_state.phase is ModelPhase.READY)


def test_the_window_speaks_the_language_that_is_chosen_at_once_and_at_the_next_start(
    keeper: WindowKeeper, qtbot
) -> None:
    assert keeper.window.actions_.new_chat.text() == "New chat"
    window = choose(qtbot, keeper, Language.CHINESE)
    assert window.isVisible()
    assert language() is Language.CHINESE
    assert window.actions_.new_chat.text() == "新对话"
    assert window.settings.dialog.isVisible()
    assert window.settings.dialog.sections.language.box.currentText() == "简体中文"
    file = window.controller.folders.settings / "settings.json"
    qtbot.waitUntil(lambda: load_settings(file).settings.language is Language.CHINESE)
    again = choose(qtbot, keeper, Language.ENGLISH)
    assert again.actions_.new_chat.text() == "New chat"


def test_qts_own_texts_follow(qtbot) -> None:
    speak(Language.CHINESE)
    box = QMessageBox(QMessageBox.Icon.NoIcon, "", "", QMessageBox.StandardButton.Cancel)
    qtbot.addWidget(box)
    assert box.button(QMessageBox.StandardButton.Cancel).text() == "取消"
    speak(Language.ENGLISH)
    other = QMessageBox(QMessageBox.Icon.NoIcon, "", "", QMessageBox.StandardButton.Cancel)
    qtbot.addWidget(other)
    assert other.button(QMessageBox.StandardButton.Cancel).text() == "Cancel"


def test_an_answer_that_is_being_written_goes_on_in_the_new_window(
    keeper: WindowKeeper, qtbot, script, model_folder: Path
) -> None:
    load(qtbot, keeper.window, model_folder)
    controller = keeper.window.controller
    script.gates = {1: threading.Event()}
    with qtbot.waitSignal(controller.answer_extended):
        keeper.window.chat.send_requested.emit("Hi")
    window = choose(qtbot, keeper, Language.CHINESE)
    assert window.chat.composer.answering
    with qtbot.waitSignal(controller.answer_finished):
        script.gates[1].set()
    assert [view.text for view in window.chat.transcript.views] == ["Hi", "Hello there"]
    assert not window.chat.composer.answering


def test_what_stands_unsent_stays(keeper: WindowKeeper, qtbot, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("Some notes")
    keeper.window.chat.composer.set_text("half a thought")
    keeper.window.attachments.attach([file])
    draft = keeper.window.controller.attachments
    qtbot.waitUntil(lambda: bool(draft.ready))
    window = choose(qtbot, keeper, Language.CHINESE)
    assert window.chat.composer.text == "half a thought"
    assert [one.name for one in draft.ready] == ["notes.txt"]
    assert window.chat.composer.files.isVisibleTo(window.chat.composer)


def test_an_edit_goes_on_and_what_stood_before_it_comes_back_after_it(
    keeper: WindowKeeper, qtbot, model_folder: Path
) -> None:
    load(qtbot, keeper.window, model_folder)
    chat = keeper.window.chat
    with qtbot.waitSignal(keeper.window.controller.answer_finished):
        chat.send_requested.emit("Hi")
    chat.composer.set_text("a new message")
    keeper.window.actions_.messages[next(iter(keeper.window.actions_.messages))].trigger()
    assert chat.composer.edited_id
    chat.composer.set_text("Hi, dear")
    edited = chat.composer.edited_id
    window = choose(qtbot, keeper, Language.CHINESE)
    assert (window.chat.composer.edited_id, window.chat.composer.text) == (edited, "Hi, dear")
    window.chat.composer.end_edit()
    assert window.chat.composer.text == "a new message"


def test_files_that_an_edit_has_got_stay_with_it(
    keeper: WindowKeeper, qtbot, model_folder: Path, tmp_path: Path
) -> None:
    load(qtbot, keeper.window, model_folder)
    chat, draft = keeper.window.chat, keeper.window.controller.attachments
    with qtbot.waitSignal(keeper.window.controller.answer_finished):
        chat.send_requested.emit("Hi")
    for name in ("unsent.txt", "edited.txt"):
        (tmp_path / name).write_text("Some notes")
    keeper.window.attachments.attach([tmp_path / "unsent.txt"])
    qtbot.waitUntil(lambda: len(draft.ready) == 1)
    chat.ask(MessageAction.EDIT)
    keeper.window.attachments.attach([tmp_path / "edited.txt"])
    qtbot.waitUntil(lambda: [one.name for one in draft.ready] == ["edited.txt"])
    window = choose(qtbot, keeper, Language.CHINESE)
    assert [one.name for one in draft.ready] == ["edited.txt"]
    window.chat.composer.end_edit()
    assert [one.name for one in draft.ready] == ["unsent.txt"]


def test_what_was_read_is_seen_again(keeper: WindowKeeper, qtbot, model_folder: Path) -> None:
    load(qtbot, keeper.window, model_folder)
    controller = keeper.window.controller
    for number in range(6):
        with qtbot.waitSignal(controller.answer_finished):
            keeper.window.chat.send_requested.emit(f"{number}\n" * 20)
    transcript = keeper.window.chat.transcript
    transcript.jump_to(transcript.views[4].message_id)
    read = transcript.read_id
    assert read
    new = choose(qtbot, keeper, Language.CHINESE).chat.transcript
    qtbot.waitUntil(lambda: not new.work.busy)
    assert new.read_id == read


def test_the_list_stays_with_its_tag_its_search_and_out_of_sight(
    keeper: WindowKeeper, qtbot, model_folder: Path
) -> None:
    load(qtbot, keeper.window, model_folder)
    window, controller = keeper.window, keeper.window.controller
    with qtbot.waitSignal(controller.answer_finished):
        window.chat.send_requested.emit("Hi")
    controller.tag_conversations([controller.current_conversation_id], "birds", on=True)
    qtbot.waitUntil(lambda: "birds" in window.conversations.model.tags)
    window.conversations.filter_bar.tag_chosen.emit("birds")
    with qtbot.waitSignal(controller.search.found):
        window.conversations.filter_bar.field.setText("hi")
    window.actions_.toggle_sidebar.trigger()
    with qtbot.waitSignal(controller.search.found):
        new = choose(qtbot, keeper, Language.CHINESE)
    assert new.conversations.model.tag == "birds"
    assert new.conversations.filter_bar.query == "hi"
    assert not new.conversations.isVisible()


def test_the_panel_that_is_seen_is_told_what_goes_on(keeper: WindowKeeper, qtbot, monkeypatch) -> None:
    watched: list[bool] = []
    controller = keeper.window.controller
    monkeypatch.setattr(controller._worker, "watch", watched.append)
    keeper.window.actions_.toggle_live.trigger()
    assert keeper.window.panel.isVisible()
    window = choose(qtbot, keeper, Language.CHINESE)
    assert window.panel.isVisible()
    assert watched[-1]


def test_the_panel_goes_on_with_the_answer_and_its_last_minute(
    keeper: WindowKeeper, qtbot, script, model_folder: Path
) -> None:
    load(qtbot, keeper.window, model_folder)
    keeper.window.actions_.toggle_live.trigger()
    controller, old = keeper.window.controller, keeper.window.panel
    script.gates = {1: threading.Event()}
    with qtbot.waitSignal(controller.answer_extended):
        keeper.window.chat.send_requested.emit("Hi")
    qtbot.waitUntil(lambda: any(old._history.written))
    reused = old.now.fact("Reused")
    panel = choose(qtbot, keeper, Language.CHINESE).panel
    assert any(panel._history.written)
    assert [one for one in panel.now.fact("Reused") if one.isdigit()] == [
        one for one in reused if one.isdigit()
    ]
    qtbot.waitUntil(lambda: panel.now.fact("Speed").endswith("tok/s"))
    with qtbot.waitSignal(controller.answer_finished):
        script.gates[1].set()


def test_of_two_choices_in_one_turn_only_the_last_one_builds_a_window(keeper: WindowKeeper, qtbot) -> None:
    window, controller = keeper.window, keeper.window.controller
    built: list[Language] = []
    build = keeper._build
    keeper._build = lambda: built.append(language()) or build()  # type: ignore[method-assign]
    with qtbot.waitSignal(controller.conversation_opened):
        for chosen in (Language.CHINESE, Language.ENGLISH, Language.CHINESE):
            controller.update_settings(language=chosen)
            window.settings.applied.emit()
    assert built == [Language.CHINESE]


def test_a_window_that_cant_be_built_leaves_the_one_that_stands(keeper: WindowKeeper, qtbot) -> None:
    window, controller = keeper.window, keeper.window.controller
    build = keeper._build
    keeper._build = lambda: 1 / 0  # type: ignore[method-assign]
    controller.update_settings(language=Language.CHINESE)
    with pytest.raises(ZeroDivisionError):
        keeper._change()
    keeper._build = build  # type: ignore[method-assign]
    assert keeper.window is window
    assert not window.has_ended
    assert window.isVisible()


def test_nothing_is_kept_of_the_windows_before(keeper: WindowKeeper, qtbot) -> None:
    def num_objects() -> int:
        gc.collect()
        return sum(isinstance(one, QObject) and shiboken6.isValid(one) for one in gc.get_objects())

    def there_and_back() -> int:
        for chosen in (Language.CHINESE, Language.ENGLISH):
            choose(qtbot, keeper, chosen).settings.dialog.close()
        qtbot.wait(0)  # what closes deletes itself
        return num_objects()

    there_and_back()  # what is made once
    before = there_and_back()
    assert there_and_back() < before + 50  # a window is many hundreds


def test_notices_that_stand_and_those_that_are_past_stay(keeper: WindowKeeper, qtbot) -> None:
    stands, gone = Notice("one", "One stands.", "Do it."), Notice("two", "Two is gone.")
    keeper.window.show_notice(stands, details="all of it")
    keeper.window.show_notice(gone)
    keeper.window.banners.dismiss("two")
    past = len(keeper.window.notices.log.past)
    window = choose(qtbot, keeper, Language.CHINESE)
    assert stands in window.banners.notices()
    assert gone not in window.banners.notices()
    assert len(window.notices.log.past) == past


def test_a_deletion_can_still_be_undone(keeper: WindowKeeper, qtbot, model_folder: Path) -> None:
    load(qtbot, keeper.window, model_folder)
    controller = keeper.window.controller
    with qtbot.waitSignal(controller.answer_finished):
        keeper.window.chat.send_requested.emit("Hi")
    with qtbot.waitSignal(controller.trash.changed):
        controller.trash.delete([controller.current_conversation_id])
    window = choose(qtbot, keeper, Language.CHINESE)
    assert window.conversations.undo_bar.isVisible()
    with qtbot.waitSignal(controller.conversations_changed, check_params_cb=len):
        window.conversations.undo_bar.undone.emit()


def test_the_old_window_is_gone(keeper: WindowKeeper, qtbot) -> None:
    old = keeper.window
    choose(qtbot, keeper, Language.CHINESE)
    assert not shiboken6.isValid(old)
    keeper.window.controller.tell_again()  # none of its slots is left to be called


def test_the_model_page_stays_with_its_model(keeper: WindowKeeper, qtbot, model_folder: Path) -> None:
    window = keeper.window
    window.show_models()
    with qtbot.waitSignal(window.controller.model_inspected):
        window.loader.pick(model_folder)
    with qtbot.waitSignal(window.controller.model_inspected):
        new = choose(qtbot, keeper, Language.CHINESE)
    assert new.showing_models
    assert new.loader.card.path == model_folder


def test_a_catalogue_that_cant_be_read_is_told_and_english_spoken(
    monkeypatch, keeper: WindowKeeper, qtbot
) -> None:
    def fails(name: str) -> None:
        raise OSError("Syntax error in po file")

    monkeypatch.setattr("app.language.read_catalogue", fails)
    window = choose(qtbot, keeper, Language.CHINESE)
    assert "language-unreadable" in [notice.code for notice in window.banners.notices()]
    assert window.actions_.new_chat.text() == "New chat"


def test_a_search_that_fails_is_told_once_however_many_windows_there_were(
    keeper: WindowKeeper, qtbot
) -> None:
    for chosen in (Language.CHINESE, Language.ENGLISH, Language.CHINESE):
        choose(qtbot, keeper, chosen)
    told: list[Notice] = []
    keeper.window.controller.notice_raised.connect(told.append)
    fails = Notice("search-failed", "It could not be searched.")
    keeper.window.controller.search.failed.emit(fails)
    assert told == [fails]


UNDER_WAY = {
    "a rename": lambda window: window.actions_.rename.trigger(),
    "a choice of files": lambda window: window.attachments.choose(),
    "a choice of a model": lambda window: window.loader.choose_folder(),
    "a menu": lambda window: window.header.menu_button.menu().popup(window.pos()),
    "a menu of tags": lambda window: ask_for_tag(window, lambda _name: None),
    "a question": lambda window: dialogs.ask_to_delete_message(window, on_accept=lambda: None),
    "shortcuts": lambda window: window.actions_.shortcuts.trigger(),
    "past notices": lambda window: window.actions_.past_notices.trigger(),
    "what is chosen for the chat": lambda window: window.actions_.chat_settings.trigger(),
    "a search": lambda window: window.conversations.filter_bar.field.setText("kestrel"),
    "a look at a model": lambda window: window.loader.pick(MODELS / "tiny-qwen3"),
    "a load": lambda window: window.controller.load_model(Path("/models/other")),
    "a drag": lambda window: window._drops.overlay.cover("Drop", "attach"),
}


@pytest.mark.parametrize("what", UNDER_WAY)
def test_what_is_under_way_survives_or_ends_and_does_no_harm(
    keeper: WindowKeeper, qtbot, model_folder: Path, what: str
) -> None:
    load(qtbot, keeper.window, model_folder)
    keeper.window.show_chat()
    send(qtbot, keeper.window.controller, "A kestrel hovers")
    UNDER_WAY[what](keeper.window)
    window = choose(qtbot, keeper, Language.CHINESE)
    window.close_dialogs()
    qtbot.waitUntil(lambda: window.controller.model_state.phase is ModelPhase.READY)
    window.show_chat()
    window.chat.composer.edit.setPlainText("And then?")
    with qtbot.waitSignal(window.controller.answering_changed, check_params_cb=lambda active: not active):
        window.chat.composer.button.click()
    qtbot.waitUntil(lambda: not window.chat.transcript.work.busy)  # older messages are built in slices
    words = [document.toPlainText() for document in window.chat.transcript.documents]
    assert [text for text in words if text in ("A kestrel hovers", "And then?")] == [
        "A kestrel hovers",
        "And then?",
    ]


def test_files_that_are_read_and_an_import_go_on(keeper: WindowKeeper, qtbot, tmp_path: Path) -> None:
    book, chats = tmp_path / "book.pdf", tmp_path / "chats.json"
    book.write_bytes(pdf_bytes(["A kestrel hovers."] * 30))
    message = {"author": {"role": "user"}, "content": {"parts": ["What is a kestrel?"]}}
    chats.write_text(json.dumps([{"title": "Imported", "mapping": {"n": {"id": "n", "message": message}}}]))
    controller = keeper.window.controller
    keeper.window.attachments.attach([book])
    controller.transfer.import_files([chats])
    window = choose(qtbot, keeper, Language.CHINESE)
    qtbot.waitUntil(lambda: bool(controller.attachments.ready))
    qtbot.waitUntil(lambda: "Imported" in [one.title for one in window.conversations.model.summaries])
    assert [chip.name.text() for chip in window.chat.composer.files.chips.values()] == ["book.pdf"]
