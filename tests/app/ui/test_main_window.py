"""The whole window on a fake engine: from picking a folder to the conversation after a restart."""

from __future__ import annotations

import json
import os
import shutil
import struct
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import QEvent, QMimeData, QPoint, QPointF, Qt, QTimer, QUrl
from PySide6.QtGui import QAccessible, QDragEnterEvent, QDragLeaveEvent, QDropEvent
from PySide6.QtTest import QSignalSpy
from PySide6.QtWidgets import QApplication, QFileDialog, QLabel, QMessageBox, QWidget

from app.controller import ModelPhase
from app.conversations import Conversation, MessageStatus
from app.settings import Settings, save_settings
from app.settings import Theme as ThemeChoice
from app.ui.main_window import MainWindow
from app.ui.theme import DARK, LIGHT, current_theme
from engine.default_folders import default_cache_folder
from engine.errors import OutOfMemoryError
from engine.notices import Notice

TINY = Path(__file__).parents[2] / "models" / "tiny-qwen3"


def says(widget: QWidget) -> str:
    """All text of labels that a person can read on a widget now."""
    return "\n".join(label.text() for label in widget.findChildren(QLabel) if label.isVisible())


def load(qtbot, window: MainWindow, folder: Path) -> None:
    """What a person does: pick, look at the card, press Load."""
    with qtbot.waitSignal(window.controller.model_inspected):
        window.loader.pick(folder)
    qtbot.mouseClick(window.loader.card.load_button, Qt.MouseButton.LeftButton)
    wait_until_ready(qtbot, window)


def wait_until_ready(qtbot, window: MainWindow) -> None:
    qtbot.waitUntil(lambda: window.controller.model_state.phase is ModelPhase.READY)


def test_first_start_shows_where_a_model_is_chosen(window: MainWindow) -> None:
    assert window.showing_models
    assert window.loader.folder_button.isVisible()
    assert window.header.chip.text().strip() == "Choose a model"
    assert "No model is loaded" in says(window.status)


def test_from_the_empty_window_to_an_answer_in_three_clicks(
    window: MainWindow, qtbot, model_folder: Path
) -> None:
    """Choose a folder, pick it, Load; then the composer has the focus and Return sends."""
    qtbot.mouseClick(window.loader.folder_button, Qt.MouseButton.LeftButton)  # first click
    dialog = window.findChild(QFileDialog)
    dialog.setDirectory(str(model_folder.parent))
    dialog.selectFile(str(model_folder))
    with qtbot.waitSignal(window.controller.model_inspected):
        dialog.accept()  # second click
    card = window.loader.card
    assert "Qwen3" in says(card)
    assert card.load_button.isEnabled()
    qtbot.mouseClick(card.load_button, Qt.MouseButton.LeftButton)  # third click
    wait_until_ready(qtbot, window)
    assert not window.showing_models
    window.activateWindow()
    qtbot.waitUntil(lambda: isinstance(QApplication.focusWidget(), QWidget))
    focus = QApplication.focusWidget()
    assert window.chat.isAncestorOf(focus)
    qtbot.keyClicks(focus, "Hi")
    with qtbot.waitSignal(window.controller.answer_finished) as finished:
        qtbot.keyClick(focus, Qt.Key.Key_Return)
    assert finished.args[1].text == "Hello there"


def test_starter_model_that_was_fetched_is_offered_in_the_empty_window(
    open_window: Callable[..., MainWindow], qtbot
) -> None:
    """Nobody would look for it in a hidden folder."""
    starter = default_cache_folder() / "models" / "starter.gguf"
    starter.parent.mkdir(parents=True)
    starter.touch()
    window = open_window()
    qtbot.waitUntil(lambda: window.loader.found.isVisible())
    assert [model.path for model in window.loader.found.models] == [starter]
    assert "Found on this computer" in says(window.loader)


def test_after_a_start_one_can_write_at_once(
    open_window: Callable[..., MainWindow], qtbot, model_folder: Path
) -> None:
    first = open_window()
    assert first.focusWidget() is first.loader.folder_button
    load(qtbot, first, model_folder)
    first.close()
    second = open_window()
    assert second.chat.composer.isAncestorOf(second.focusWidget())


def test_load_shows_its_progress_on_card_chip_and_composer(
    window: MainWindow, qtbot, script, model_folder: Path
) -> None:
    script.load_gate = threading.Event()
    with qtbot.waitSignal(window.controller.model_inspected):
        window.loader.pick(model_folder)
    qtbot.mouseClick(window.loader.card.load_button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: "50%" in window.header.chip.text())
    assert "Reading the weights" in says(window.loader.card)
    assert not window.loader.folder_button.isEnabled()
    script.load_gate.set()
    wait_until_ready(qtbot, window)
    assert window.header.chip.text().strip() == model_folder.name
    assert "a fake processor" in says(window.status)


def test_cancelled_load_changes_nothing_and_can_be_tried_again(
    window: MainWindow, qtbot, script, model_folder: Path
) -> None:
    script.load_gate = threading.Event()
    with qtbot.waitSignal(window.controller.model_inspected):
        window.loader.pick(model_folder)
    qtbot.mouseClick(window.loader.card.load_button, Qt.MouseButton.LeftButton)
    cancel = window.loader.card.progress.cancel_button
    qtbot.waitUntil(cancel.isVisible)
    qtbot.mouseClick(cancel, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: window.controller.model_state.phase is ModelPhase.NONE)
    assert window.loader.card.load_button.isVisible()
    assert window.loader.card.load_button.isEnabled()
    assert window.banners.notices() == (), "a cancel is no failure"
    script.load_gate.set()
    qtbot.mouseClick(window.loader.card.load_button, Qt.MouseButton.LeftButton)
    wait_until_ready(qtbot, window)


def test_answer_streams_stops_half_way_and_is_there_after_a_restart(
    open_window: Callable[..., MainWindow], qtbot, script, model_folder: Path
) -> None:
    window = open_window()
    load(qtbot, window, model_folder)
    script.pieces = ["Once ", "upon ", "a ", "time"]
    script.gates = {2: threading.Event()}
    extended = QSignalSpy(window.controller.answer_extended)
    window.chat.send_requested.emit("Tell me a story")
    qtbot.waitUntil(lambda: "".join(extended.at(i)[2].text for i in range(extended.count())) == "Once upon ")
    [answering] = [one.id for one in window.conversations.model.summaries]
    assert window.conversations.model.answering == answering
    with qtbot.waitSignal(window.controller.answer_finished) as finished:
        window.chat.stop_requested.emit()
    assert finished.args[1].status is MessageStatus.STOPPED
    assert window.conversations.model.answering is None
    assert "Last answer" in says(window.status)
    window.close()

    again = open_window()
    assert not again.showing_models
    assert [one.title for one in again.conversations.model.summaries] == ["Tell me a story"]
    qtbot.waitUntil(lambda: again.conversations.current_id == answering)
    opened = QSignalSpy(again.controller.conversation_opened)
    again.controller.open_conversation(answering)
    qtbot.waitUntil(lambda: opened.count() == 1)
    conversation: Conversation = opened.at(0)[0]
    assert [message.text for message in conversation.messages] == ["Tell me a story", "Once upon "]
    qtbot.waitUntil(
        lambda: again.controller.model_state.phase is ModelPhase.READY
    )  # the last model, by itself


def test_message_without_a_model_is_kept_and_the_reason_told(window: MainWindow, qtbot) -> None:
    with qtbot.waitSignal(window.controller.send_rejected) as rejected:
        window.chat.send_requested.emit("Anyone there?")
    assert rejected.args[0] == "Anyone there?"
    assert [notice.code for notice in window.banners.notices()] == ["no-model"]


def write_config(folder: Path, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def huge_header(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 2**63) + path.read_bytes()[8:])


BAD_INPUTS: dict[str, Callable[[Path], None]] = {
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "no config": lambda folder: (folder / "config.json").unlink(),
    "no tokenizer": lambda folder: (folder / "tokenizer.json").unlink(),
    "broken JSON": lambda folder: (folder / "config.json").write_text('{"architectures": ['),
    "unknown architecture": lambda folder: write_config(
        folder, architectures=["NewForCausalLM"], model_type="new"
    ),
    "other shapes": lambda folder: write_config(folder, hidden_size=4096),
    "cut weights": cut_weights,
    "header of 2^63 bytes": huge_header,
    "empty folder": lambda folder: [path.unlink() for path in folder.iterdir()],
    "pickle only": lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
    "gone": shutil.rmtree,
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input_is_told_in_the_card_and_the_loaded_model_goes_on(
    window: MainWindow, qtbot, script, model_folder: Path, tmp_path: Path, name: str
) -> None:
    load(qtbot, window, model_folder)
    bad = tmp_path / "bad 模型"
    shutil.copytree(TINY, bad)
    BAD_INPUTS[name](bad)
    window.show_models()
    with qtbot.waitSignal(window.controller.model_inspected):
        window.loader.pick_recent(bad)
    notices = window.loader.card.shown_notices
    assert notices, "the card says nothing"
    assert "\n" not in notices[0].message
    assert "Traceback" not in says(window.loader.card)
    assert not window.loader.card.load_button.isEnabled()
    assert window.controller.model_state.phase is ModelPhase.READY
    with qtbot.waitSignal(window.controller.answer_finished) as finished:
        window.chat.send_requested.emit("Still there?")
    assert finished.args[1].text == "Hello there"


def test_load_that_fails_says_so_and_the_model_before_goes_on(
    window: MainWindow, qtbot, script, model_folder: Path, tmp_path: Path
) -> None:
    load(qtbot, window, model_folder)
    large = tmp_path / "large"
    shutil.copytree(TINY, large)
    script.load_errors["large"] = OutOfMemoryError(
        "It takes 80 GB, but 7 GB are free.", "Choose a smaller one."
    )
    window.show_models()
    with qtbot.waitSignal(window.controller.model_inspected):
        window.loader.pick(large)
    with qtbot.waitSignal(window.controller.load_failed):
        qtbot.mouseClick(window.loader.card.load_button, Qt.MouseButton.LeftButton)
    text = says(window.loader.card)
    assert "It takes 80 GB, but 7 GB are free." in text
    assert f"{model_folder.name} is still loaded and goes on working." in text
    assert window.header.chip.text().strip() == model_folder.name
    with qtbot.waitSignal(window.controller.answer_finished):
        window.chat.send_requested.emit("Still there?")


def test_failure_of_a_load_that_is_not_looked_at_stands_over_the_chat(
    window: MainWindow, qtbot, script, tmp_path: Path
) -> None:
    script.load_errors["x"] = OutOfMemoryError("It takes 80 GB, but 7 GB are free.")
    window.show_chat()
    with qtbot.waitSignal(window.controller.load_failed):
        window.controller.load_model(tmp_path / "x")
    assert "out-of-memory" in [notice.code for notice in window.banners.notices()]


def test_fallback_to_the_cpu_stays_on_screen_until_it_is_dismissed(
    window: MainWindow, qtbot, script, model_folder: Path
) -> None:
    script.summary_notices = (Notice("running-on-cpu", "Running on the CPU, because no card was found."),)
    load(qtbot, window, model_folder)
    assert "because no card was found" in says(window.banners)
    with qtbot.waitSignal(window.controller.answer_finished):
        window.chat.send_requested.emit("Hi")
    assert "because no card was found" in says(window.banners)
    window.banners.dismiss("running-on-cpu")
    assert window.banners.isHidden()


def test_what_the_status_line_says_all_the_time_is_no_banner_at_every_load(
    window: MainWindow, qtbot, script, model_folder: Path
) -> None:
    script.summary_notices = (
        Notice("card-driver-missing", "The model runs on the CPU: there is no driver."),
        Notice("weights-packed", "The weights are packed to 8 bits."),
    )
    load(qtbot, window, model_folder)
    assert not window.banners.isVisible()
    assert "no graphics card is used" in says(window.status)


def test_switching_while_an_answer_is_written_leaves_the_dot_with_its_conversation(
    window: MainWindow, qtbot, script, model_folder: Path
) -> None:
    load(qtbot, window, model_folder)
    with qtbot.waitSignal(window.controller.answer_finished):
        window.chat.send_requested.emit("First")
    script.gates = {1: threading.Event()}
    window.controller.new_conversation()
    with qtbot.waitSignal(window.controller.answer_started) as started:
        window.chat.send_requested.emit("Second")
    first = next(one for one in window.conversations.model.summaries if one.title == "First")
    with qtbot.waitSignal(window.controller.conversation_opened):
        window.conversations.open_requested.emit(first.id)
    assert window.conversations.model.answering == started.args[0]
    assert window.conversations.current_id == first.id
    assert window.header.title.text() == "First"
    with qtbot.waitSignal(window.controller.answer_finished):
        script.gates[1].set()
    assert window.conversations.model.answering is None


def test_deleting_hides_the_conversation_and_undo_brings_it_back(
    window: MainWindow, qtbot, model_folder: Path
) -> None:
    load(qtbot, window, model_folder)
    with qtbot.waitSignal(window.controller.answer_finished):
        window.chat.send_requested.emit("Forget me")
    qtbot.waitUntil(lambda: len(window.conversations.chosen) == 1)
    window.actions_.delete.trigger()
    qtbot.waitUntil(lambda: window.conversations.model.summaries == ())
    assert window.header.title.text() == "New chat"
    assert window.conversations.undo_bar.isVisible()
    qtbot.mouseClick(window.conversations.undo_bar.undo_button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: len(window.conversations.model.summaries) == 1)
    qtbot.waitUntil(lambda: window.header.title.text() == "Forget me")
    assert not window.conversations.undo_bar.isVisible()


def test_renaming_shows_in_list_and_header(window: MainWindow, qtbot, model_folder: Path) -> None:
    load(qtbot, window, model_folder)
    with qtbot.waitSignal(window.controller.answer_finished):
        window.chat.send_requested.emit("Old name")
    [summary] = window.conversations.model.summaries
    window.conversations.rename_requested.emit(summary.id, "新 name")
    qtbot.waitUntil(lambda: window.header.title.text() == "新 name")
    assert window.windowTitle() == "新 name — Kestrel Chat"


def drag(window: MainWindow, path: Path, kind: QEvent.Type) -> QDropEvent:
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(path))])
    arguments = (Qt.DropAction.CopyAction, data, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier)
    event = (
        QDragEnterEvent(QPoint(300, 300), *arguments)
        if kind == QEvent.Type.DragEnter
        else QDropEvent(QPointF(300, 300), *arguments)
    )
    QApplication.sendEvent(window.windowHandle(), event)
    assert event.isAccepted()
    return event


def test_dropping_a_file_out_of_a_model_folder_shows_the_folder_s_card(
    window: MainWindow, qtbot, model_folder: Path
) -> None:
    window.show_chat()
    drag(window, model_folder / "config.json", QEvent.Type.DragEnter)
    assert window._drops.overlay.isVisible()
    with qtbot.waitSignal(window.controller.model_inspected) as inspected:
        drag(window, model_folder / "config.json", QEvent.Type.Drop)
    assert inspected.args[0].path == model_folder
    assert window.showing_models
    assert not window._drops.overlay.isVisible()


def test_dragging_away_takes_the_overlay_away(window: MainWindow, model_folder: Path) -> None:
    drag(window, model_folder, QEvent.Type.DragEnter)
    QApplication.sendEvent(window.windowHandle(), QDragLeaveEvent())
    assert not window._drops.overlay.isVisible()


def test_dropping_what_is_no_model_is_a_notice(window: MainWindow, tmp_path: Path) -> None:
    picture = tmp_path / "holiday.jpg"
    picture.touch()
    drag(window, picture, QEvent.Type.Drop)
    assert [notice.code for notice in window.banners.notices()] == ["not-a-model"]


def test_size_and_place_come_back(open_window: Callable[..., MainWindow]) -> None:
    window = open_window()
    window.resize(763, 554)
    window.places.splitter.setSizes([233, 530])
    wanted = window.places.splitter.sizes()
    window.close()
    again = open_window()
    assert (again.width(), again.height()) == (763, 554)
    assert again.places.splitter.sizes() == wanted


def test_damaged_geometry_in_the_settings_opens_a_usual_window(
    open_window: Callable[..., MainWindow], app_paths
) -> None:
    settings = replace(Settings(), window_geometry_base64="no base64!", splitter_state_base64="AAAA")
    app_paths.settings_file.parent.mkdir(parents=True)
    save_settings(app_paths.settings_file, settings)
    window = open_window()
    assert window.width() >= window.minimumWidth()
    assert window.conversations.isVisible()


def test_theme_is_chosen_in_the_menu_and_kept(open_window: Callable[..., MainWindow]) -> None:
    window = open_window()
    window.actions_.themes[ThemeChoice.DARK].trigger()
    assert current_theme() is DARK
    window.close()
    again = open_window()
    assert current_theme() is DARK
    assert again.actions_.themes[ThemeChoice.DARK].isChecked()
    again.actions_.themes[ThemeChoice.LIGHT].trigger()
    assert current_theme() is LIGHT


@pytest.mark.parametrize("state", ["inspecting", "loading", "answering", "question open", "dialog open"])
def test_closing_is_clean_in_every_state(
    window: MainWindow, qtbot, script, model_folder: Path, state: str
) -> None:
    """No thread is left (the fixture `no_thread_left_behind` looks), and the engine was told to stop."""
    if state == "inspecting":
        window.loader.pick(model_folder)
    elif state == "loading":
        script.load_gate = threading.Event()
        window.controller.load_model(model_folder)
        qtbot.waitUntil(lambda: "50%" in window.header.chip.text())
    elif state == "answering":
        load(qtbot, window, model_folder)
        script.gates = {1: threading.Event()}
        with qtbot.waitSignal(window.controller.answer_extended):
            window.chat.send_requested.emit("Hi")
    elif state == "question open":
        load(qtbot, window, model_folder)
        with qtbot.waitSignal(window.controller.answer_finished):
            window.chat.send_requested.emit("Hi")
        window.actions_.delete.trigger()
    else:
        window.loader.choose_folder()
    window.close()
    assert window.closed_cleanly
    assert not window.isVisible()


def test_fault_of_the_program_is_a_banner_with_details(window: MainWindow) -> None:
    window.show_fault(Notice("fault", "Something went wrong inside the program (ValueError)."), "Traceback …")
    assert "Something went wrong inside the program" in says(window.banners)


def test_link_of_an_answer_asks_before_anything_is_opened(window: MainWindow) -> None:
    window.chat.link_activated.emit(QUrl("https://example.org/page"))
    box = window.findChild(QMessageBox)
    assert box.isVisible()
    assert "example.org" in box.text()


@pytest.mark.parametrize("page", ["models", "chat"])
def test_everything_that_takes_the_focus_has_a_name_for_screen_readers(
    window: MainWindow, qtbot, model_folder: Path, page: str
) -> None:
    load(qtbot, window, model_folder)
    with qtbot.waitSignal(window.controller.answer_finished):
        window.chat.send_requested.emit("Hi")
    window.show_notice(Notice("a", "A notice.", "A hint."), details="More")
    window.show_models() if page == "models" else window.show_chat()
    with qtbot.waitSignal(window.controller.model_inspected):
        window.loader.pick(model_folder)
    nameless = [
        f"{type(widget).__name__} in {type(widget.parent()).__name__}"
        for widget in window.findChildren(QWidget)
        if widget.focusPolicy() != Qt.FocusPolicy.NoFocus
        and not widget.objectName().startswith("qt_")
        and not QAccessible.queryAccessibleInterface(widget).text(QAccessible.Text.Name)
    ]
    assert nameless == []


def test_tab_reaches_every_part_and_comes_round(window: MainWindow, qtbot, model_folder: Path) -> None:
    load(qtbot, window, model_folder)
    window.activateWindow()
    seen: list[QWidget] = []
    widget: QWidget = window.conversations.new_button
    while widget not in seen and len(seen) < 500:
        seen.append(widget)
        widget = widget.nextInFocusChain()
    assert widget is seen[0]
    order = [one for one in seen if one.focusPolicy() & Qt.FocusPolicy.TabFocus and one.isVisible()]
    assert window.header.chip in order
    assert any(window.chat.isAncestorOf(one) for one in order)
    assert order.index(window.header.chip) < next(
        index for index, one in enumerate(order) if window.chat.isAncestorOf(one)
    )


def test_window_fits_a_small_screen_with_long_names(window: MainWindow, qtbot, tmp_path: Path) -> None:
    folder = tmp_path / ("a-very-long-model-name-" * 8)
    shutil.copytree(TINY, folder)
    load(qtbot, window, folder)
    with qtbot.waitSignal(window.controller.answer_finished):
        window.chat.send_requested.emit("word " * 80)
    window.show_models()
    window.resize(window.minimumSize())
    assert window.minimumSizeHint().width() <= 640
    assert window.minimumSizeHint().height() <= 460
    assert window.width() == 640


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
def test_name_with_line_breaks_and_turned_writing_stays_on_one_line(
    window: MainWindow, qtbot, tmp_path: Path
) -> None:
    folder = tmp_path / "two\nlines \u202eturned"
    shutil.copytree(TINY, folder)
    load(qtbot, window, folder)
    assert window.header.chip.text().strip() == "two lines turned"


def test_menu_opens_inside_the_window_and_reads_in_its_direction(window: MainWindow) -> None:
    window.setGeometry(0, 0, 700, 600)  # of a screen that has room beside it
    button = window.header.menu_button
    menu = button.menu()
    opened = []

    def look() -> None:
        opened.append(menu.geometry())
        menu.close()

    QTimer.singleShot(0, look)
    button.showMenu()
    ((left, right),) = [(one.left(), one.right()) for one in opened]
    assert window.geometry().left() <= left < right <= window.geometry().right()
    assert menu.layoutDirection() == window.layoutDirection()


def test_status_line_is_as_high_with_a_model_as_without(
    window: MainWindow, qtbot, model_folder: Path
) -> None:
    before = window.status.height()
    load(qtbot, window, model_folder)
    qtbot.waitUntil(window.status.context.isVisible)
    assert window.status.height() == before


def test_shortcuts_are_distinct_and_shown(window: MainWindow) -> None:
    keys = [key.toString() for action in window.actions() for key in action.shortcuts()]
    assert len(keys) == len(set(keys))
    assert {"Ctrl+N", "Ctrl+O", "F2", "Ctrl+L", "Ctrl+W"} <= set(keys)
    for button in (window.header.chip, window.header.menu_button, window.conversations.new_button):
        assert "(" in button.toolTip()
