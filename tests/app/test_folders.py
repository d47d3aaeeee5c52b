"""Conversations go where a person wants them, and none is lost on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from controller_steps import begin, load, on_disk, send, start

from app.chat_settings import ChatSettings
from app.paths import AppPaths
from app.settings import Settings, save_settings
from engine.default_folders import cache_folder, default_cache_folder, strips_folder, use_cache_folder


def move(qtbot, controller, folder: Path | None) -> bool:
    found: list[bool] = []
    controller.conversations_moved.connect(found.append)
    with qtbot.waitSignal(controller.conversation_opened):
        controller.move_conversations(folder)
    controller.conversations_moved.disconnect(found.append)
    assert len(found) == 1, "it is told before the conversations are shown"
    return found[0]


def test_conversations_are_copied_and_go_on_in_the_new_folder(
    qtbot, make_controller, app_paths: AppPaths, tmp_path: Path
) -> None:
    controller = make_controller()
    start(qtbot, controller)
    controller.change_chat_settings(ChatSettings("Be brief."))
    send(qtbot, controller, "before")
    conversation_id = controller.current_conversation_id
    assert move(qtbot, controller, tmp_path / "elsewhere") is False
    assert controller.folders.chats == tmp_path / "elsewhere"
    assert controller.current_conversation_id == conversation_id
    send(qtbot, controller, "after")
    assert controller.shutdown()
    assert [text for _, text, _ in on_disk(app_paths, conversation_id)] == ["before", "Hello there"]
    moved = app_paths.with_chats_in(tmp_path / "elsewhere")
    assert [text for role, text, _ in on_disk(moved, conversation_id) if role == "user"] == [
        "before",
        "after",
    ]
    again = make_controller()
    start(qtbot, again)
    assert again.current_conversation_id == conversation_id
    assert again.chat_settings == ChatSettings("Be brief.")


def test_conversations_that_are_there_already_are_opened_and_not_written_over(
    qtbot, make_controller, app_paths: AppPaths, tmp_path: Path
) -> None:
    other = make_controller(AppPaths.under(tmp_path / "other"))
    start(qtbot, other)
    send(qtbot, other, "of another computer")
    assert other.shutdown()
    controller = make_controller()
    start(qtbot, controller)
    send(qtbot, controller, "mine")
    assert move(qtbot, controller, tmp_path / "other" / "data") is True
    assert controller.current_conversation_id is None
    assert move(qtbot, controller, None) is True
    assert controller.settings.chats_folder is None
    assert controller.folders.chats == app_paths.data_folder


def test_nothing_moves_while_an_answer_is_written(qtbot, controller, script, tmp_path: Path) -> None:
    start(qtbot, controller)
    gate = begin(qtbot, controller, script, "Hi")
    with qtbot.waitSignal(controller.notice_raised) as told:
        controller.move_conversations(tmp_path / "elsewhere")
    assert told.args[0].code == "answer-in-progress"
    gate.set()
    qtbot.waitUntil(lambda: not controller.answering)
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_can_not_be_made_changes_nothing(qtbot, controller, tmp_path: Path) -> None:
    start(qtbot, controller)
    send(qtbot, controller, "Hi")
    before = controller.folders
    (tmp_path / "file").write_text("in the way")
    with qtbot.waitSignal(controller.notice_raised):
        controller.move_conversations(tmp_path / "file" / "chats")
    assert controller.folders == before
    assert controller.settings.chats_folder is None
    send(qtbot, controller, "And?")


def test_a_chosen_folder_that_is_gone_is_told_and_no_empty_one_is_made(
    qtbot, make_controller, app_paths: AppPaths, tmp_path: Path
) -> None:
    drive = tmp_path / "drive"
    save_settings(app_paths.settings_file, Settings(chats_folder=drive))
    controller = make_controller()
    with qtbot.waitSignal(controller.notice_raised) as told:
        controller.start()
    assert told.args[0].message == f"The folder of the conversations, {drive}, is not there."
    assert not drive.exists()
    drive.mkdir()  # it is connected now
    load(qtbot, controller, Path("/models/first"))
    send(qtbot, controller, "Hi")


@pytest.fixture
def _cache_as_it_was():
    yield
    use_cache_folder(None)


@pytest.mark.usefixtures("_cache_as_it_was")
def test_prepared_weights_go_into_the_folder_that_was_chosen(make_controller, app_paths, tmp_path) -> None:
    save_settings(app_paths.settings_file, Settings(cache_folder=tmp_path / "scratch"))
    controller = make_controller()
    assert controller.folders.cache == cache_folder() == tmp_path / "scratch"
    assert strips_folder() == tmp_path / "scratch" / "strips"
    make_controller(AppPaths.under(tmp_path / "other"))
    assert cache_folder() == default_cache_folder()
