"""What nobody would do on purpose, in the whole window: it goes on, says what is wrong, and loses nothing."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import surfaces
from controller_steps import load as load_model
from controller_steps import send
from PySide6.QtCore import QUrl
from PySide6.QtGui import QAction, Qt
from PySide6.QtWidgets import QAbstractButton, QLabel, QWidget

from app.attachment_draft import TOO_MANY
from app.attachments import MAX_ATTACHMENTS
from app.conversations import ConversationSummary
from app.import_file import read_conversations
from app.import_json import ImportRefusedError
from app.presets import Preset
from app.settings import Settings, Theme
from app.ui.banner import Banner
from app.ui.main_window import MainWindow
from app.ui.message_view import AnswerView
from app.ui.theme import theme_manager
from engine.notices import Notice

EVIL = "<b>bold</b> && & {name} {0} {} %1 %n [*] \u202e\u2067txt.exe 👩‍👩‍👧 <img src='file:///etc/passwd'>"
NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
MODEL = Path("/models/first")
VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    10**30,
    1e308,
    "",
    "x" * 10_000,
    "/" + "x" * 10_000,
    EVIL,
    "\ud800",
    "a\0b",
    "../" * 2_000,
    [],
    [EVIL] * 1_000,
    [[[]]],
    {},
    {EVIL: EVIL},
    {"/m": {"temperature": 1e308, "top_k": -5, "context": -1, "seed": 2**200, "stop": [""] * 1_000}},
    [{"name": EVIL, "text": EVIL}, {"name": "x" * 10_000, "text": "y" * 100_000}, {}],
]


def markup(root: QWidget) -> list[str]:
    """What Qt would read as more than the words that it is."""
    found = []
    for widget in (root, *root.findChildren(QWidget)):
        if "<b>bold" in widget.toolTip() or "<img" in widget.toolTip():
            found.append(f"tooltip of {surfaces.told(widget)}")
        is_plain = not isinstance(widget, QLabel) or widget.textFormat() is Qt.TextFormat.PlainText
        if not is_plain and Qt.mightBeRichText(widget.text()):
            found.append(f"text of {surfaces.told(widget)}")
        if isinstance(widget, QAbstractButton) and "bold" in widget.text() and "&&&&" not in widget.text():
            found.append(f"sign of a key in {surfaces.told(widget)}")
    for action in root.findChildren(QAction):
        if "bold" in action.text() and "&&&&" not in action.text():
            found.append(f"sign of a key in the entry {action.text()}")
    return found


@pytest.fixture
def hostile(window: MainWindow, qtbot, tmp_path: Path) -> MainWindow:
    """Everything that has a name is called so, and every notice says it."""
    folder = tmp_path / EVIL.replace("/", "_")
    folder.mkdir()
    file, refused = tmp_path / f"{EVIL.replace('/', '_')[:60]}.txt", tmp_path / "<b>bold<_b>.bin"
    file.write_text("some words")
    refused.write_bytes(b"\0\0")
    controller = window.controller
    load_model(qtbot, controller, folder)
    controller.update_settings(presets=(Preset(EVIL[:60], EVIL),), models_folder=folder)
    window.attachments.attach([file, refused])
    qtbot.waitUntil(lambda: not controller.attachments.busy)
    send(qtbot, controller, EVIL)
    for code in ("unknown", "out-of-memory", "disk-full"):
        window.show_notice(Notice(code, EVIL, EVIL), details=EVIL)
    surfaces.show_panel(window)
    summary = ConversationSummary("c1", EVIL, NOW, NOW, pinned=True, unread=True, tags=(EVIL,))
    window.conversations.set_summaries([summary])
    window.panel.set_titles({"c1": EVIL})
    return window


def test_no_name_is_read_as_markup_or_as_the_sign_of_a_key(hostile: MainWindow, qtbot) -> None:
    bar = hostile.conversations.filter_bar
    bar.set_tags({EVIL: 2}, EVIL)
    assert len(bar.tag_menu.actions()) == 2
    assert markup(hostile) == []
    for name in ("settings", "settings of a chat", "past notices", "limits of what is kept"):
        dialog = surfaces.SURFACES[name](hostile)
        assert markup(dialog) == []
        dialog.close()
    folder = hostile.controller.settings.models_folder
    assert folder is not None
    with qtbot.waitSignal(hostile.controller.model_inspected):
        surfaces.show_models(hostile).loader.pick(folder)
    assert markup(hostile) == []


def test_notices_with_braces_and_markup_are_said_as_they_are_in_chinese(
    in_chinese: None, window: MainWindow, qtbot
) -> None:
    window.show_notice(Notice("unknown", EVIL, EVIL), details=EVIL)
    (banner,) = window.banners.findChildren(Banner)
    assert (banner._message.text(), banner._hint.text()) == (EVIL, EVIL)
    assert markup(window) == []


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_no_value_in_the_settings_keeps_the_window_from_opening(
    make_controller: Callable[..., Any], app_paths, qtbot, value: Any
) -> None:
    app_paths.settings_file.parent.mkdir(parents=True)
    app_paths.settings_file.write_text(json.dumps({one.name: value for one in fields(Settings)}))
    window = MainWindow(make_controller())
    qtbot.addWidget(window)
    window.show()
    with qtbot.waitSignal(window.controller.conversations_changed):
        window.controller.start()
    window.actions_.settings.trigger()
    assert window.settings.dialog is not None
    window.close()
    assert set(json.loads(app_paths.settings_file.read_text())) >= {one.name for one in fields(Settings)} - {
        "unknown"
    }


@pytest.mark.parametrize("in_chat", [True, False])
def test_a_name_that_no_system_takes_is_refused_in_words(window: MainWindow, qtbot, in_chat: bool) -> None:
    """As one in a folder that may not be looked into: the system fails, and doesn't say that it isn't
    there.
    """
    load_model(qtbot, window.controller, MODEL)
    path = Path("/tmp") / ("x" * 10_000)
    if in_chat:
        window.show_chat()
    else:
        window.show_models()
    drops = window._drops
    if drops._for_message([path]):
        drops.files_dropped.emit([path])
        qtbot.waitUntil(lambda: not window.controller.attachments.busy)
        (item,) = window.controller.attachments.items
        assert item.problem is not None
        assert "can't be read" in item.problem.message
    else:
        drops.model_dropped.emit(path)
        assert [notice.code for notice in window.banners.notices()] == ["not-a-model"]


def test_a_folder_that_cannot_be_looked_at_is_revealed_from_above(window: MainWindow, tmp_path: Path) -> None:
    asked: list[QUrl] = []
    window.settings._open_url = lambda url: bool(asked.append(url)) or True
    window.settings._reveal(tmp_path / ("x" * 300) / "cache")
    assert asked == [QUrl.fromLocalFile(str(tmp_path))]


def test_a_title_with_the_mark_of_changed_files_is_shown_whole(window: MainWindow, qtbot) -> None:
    load_model(qtbot, window.controller, MODEL)
    window.show_chat()
    send(qtbot, window.controller, "a[*]b")
    qtbot.waitUntil(lambda: "a[" in window.windowTitle())
    # Qt takes one mark away, and shows two as one.
    assert window.windowTitle() == "a[*][*]b — Kestrel Chat"


def test_what_can_never_be_read_to_its_end_is_refused_in_words(
    window: MainWindow, qtbot, tmp_path: Path
) -> None:
    load_model(qtbot, window.controller, MODEL)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "self").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    paths = [tmp_path / "loop", tmp_path / "self", tmp_path / "pipe", Path("/dev/zero")]
    window.attachments.attach(paths)
    draft = window.controller.attachments
    qtbot.waitUntil(lambda: not draft.busy)
    assert [(one.name, one.attachment) for one in draft.items] == [(path.name, None) for path in paths]
    assert all(one.problem is not None for one in draft.items)
    for path in paths:
        with pytest.raises(ImportRefusedError):
            read_conversations(path)


def test_of_a_thousand_dropped_files_those_that_have_room_are_taken(
    window: MainWindow, qtbot, tmp_path: Path
) -> None:
    load_model(qtbot, window.controller, MODEL)
    files = [tmp_path / f"{number}.txt" for number in range(1_000)]
    for file in files[:MAX_ATTACHMENTS]:
        file.write_text("a word")
    window.attachments.attach(files)
    draft = window.controller.attachments
    qtbot.waitUntil(lambda: not draft.busy)
    assert [one.name for one in draft.ready] == [file.name for file in files[:MAX_ATTACHMENTS]]
    assert [one.problem for one in draft.items if one.problem is not None] == [TOO_MANY]


def test_conversations_of_a_newer_version_can_be_read_and_a_message_is_kept(
    open_window: Callable[..., MainWindow], app_paths, qtbot
) -> None:
    window = open_window()
    load_model(qtbot, window.controller, MODEL)
    send(qtbot, window.controller, "From today")
    window.close()
    raw = sqlite3.connect(app_paths.conversations_file)
    raw.execute("PRAGMA user_version = 999")
    raw.close()
    before = app_paths.conversations_file.read_bytes()
    window = open_window()
    assert "store-newer" in [notice.code for notice in window.banners.notices()]
    load_model(qtbot, window.controller, MODEL)
    window.show_chat()
    qtbot.waitUntil(lambda: window.presenter.title == "From today")
    window.chat.composer.edit.setPlainText("Keep me")
    with qtbot.waitSignal(window.controller.send_rejected):
        window.chat.composer.button.click()
    assert window.chat.composer.text == "Keep me"
    window.close()
    assert app_paths.conversations_file.read_bytes() == before


def test_an_answer_grows_on_while_the_size_of_text_is_changed(window: MainWindow, qtbot, script) -> None:
    load_model(qtbot, window.controller, MODEL)
    window.show_chat()
    script.pieces = ["# Head\n\n", *["**b** $x^2$\n\n|a|b|\n|-|-|\n|1|2|\n\n```py\nx = 1\n```\n\n"] * 12]
    sizes = (80, 200, 125, 80, 100)
    gates = script.gates = {2 * number + 1: threading.Event() for number in range(len(sizes))}
    window.controller.send_message("Go")
    for gate, size in zip(gates.values(), sizes, strict=True):
        with qtbot.waitSignal(window.controller.answer_extended):
            window.controller.update_settings(text_percent=size)
            theme_manager().apply(Theme.SYSTEM, text_percent=size)
            gate.set()
    text = "".join(script.pieces)
    qtbot.waitUntil(lambda: not window.controller.answering)
    view = window.chat.transcript.views[-1]
    assert isinstance(view, AnswerView)
    qtbot.waitUntil(lambda: not window.chat.transcript.work.busy)
    assert view.body.text == text
    assert sum("x = 1" in document.toPlainText() for document in view.body.documents) == 12


def test_two_windows_that_delete_each_others_chats_keep_what_is_written(
    open_window: Callable[..., MainWindow], qtbot
) -> None:
    first, second = open_window(), open_window()
    for window in (first, second):
        load_model(qtbot, window.controller, MODEL)
        window.controller.new_conversation()
        window.show_chat()
        send(qtbot, window.controller, "A question")
    ids = [window.controller.current_conversation_id for window in (first, second)]
    assert ids[0] != ids[1]
    for window, other in ((first, ids[1]), (second, ids[0])):
        with qtbot.waitSignal(window.controller.conversations_changed):
            window.controller.trash.delete([other])
    for window in (first, second):
        window.chat.composer.edit.setPlainText("Keep me")
        with qtbot.waitSignal(window.controller.send_rejected):
            window.chat.composer.button.click()
        assert window.chat.composer.text == "Keep me"
        assert "conversation-gone" in [notice.code for notice in window.banners.notices()]
