"""What is kept of conversations beside their messages: limited, measured and removed, at once."""

from __future__ import annotations

import sqlite3
import time
from array import array
from contextlib import closing
from pathlib import Path

import pytest
import torch
from controller_steps import FIRST, begin, load, send, start
from store_steps import delete

from app.controller import ChatController
from app.conversations import ConversationStore
from app.paths import AppPaths
from app.settings import load_settings
from engine.default_folders import states_folder
from engine.generation import SlotInfo
from engine.kv_geometry import KvGeometry
from engine.states.kv_file import KvKey
from engine.states.kv_folder import KvFolder, default_limit, forget_all_but, used_bytes

NAMES = ("a", "b", "c")


def keep(conversation: str, paths: AppPaths, *, used_ns: int = 1, model: str = "model") -> Path:
    """The file of a conversation and some model."""
    key = KvKey(model, "native", KvGeometry("int8", ((1, 4),)))
    folder = KvFolder(paths.states_folder, key, context=64)
    page = torch.zeros(key.geometry.page_bytes, dtype=torch.uint8)
    folder.write(conversation, array("I", [1]), [page], used_ns=used_ns)
    folder.wait()
    return folder.path(conversation)


def start_and_end(qtbot, controller: ChatController, record) -> list[str]:
    """The codes of what is told."""
    told = record(notice=controller.notice_raised)
    start(qtbot, controller)
    assert controller.shutdown()
    return [notice.code for _, notice in told]


@pytest.fixture
def kept_files(app_paths) -> int:
    """Three files of some model, the first one used the longest time ago; returns the size of each."""
    store = ConversationStore(app_paths.conversations_file)
    for number, title in enumerate(NAMES):
        keep(store.create(title).id, app_paths, used_ns=(number + 1) * 10**9)
    store.close()
    return used_bytes(app_paths.states_folder) // len(NAMES)


class TestLeftovers:
    """Files of conversations that are gone: the program ended before it could remove them, or another window
    has written them since.
    """

    def test_at_the_next_start_they_are_removed_and_no_others(
        self, qtbot, make_controller, app_paths, record
    ) -> None:
        store = ConversationStore(app_paths.conversations_file)
        kept, gone = store.create("kept").id, store.create("gone").id
        files = {
            (name, model): keep(name, app_paths, model=model)
            for name in (kept, gone)
            for model in ("one", "two")
        }
        delete(store, gone)
        store.close()
        foreign = app_paths.states_folder / "notes.txt"
        foreign.write_text("not ours")
        assert start_and_end(qtbot, make_controller(), record) == []
        assert {key for key, path in files.items() if path.exists()} == {(kept, "one"), (kept, "two")}
        assert foreign.exists()

    def test_one_that_cannot_be_removed_is_told(self, qtbot, make_controller, app_paths, record) -> None:
        stuck = app_paths.states_folder / f"{'0' * 24}-{'1' * 24}.safetensors"
        (stuck / "something").mkdir(parents=True)
        assert start_and_end(qtbot, make_controller(), record) == ["state-file-stays"]

    def test_a_store_that_cannot_be_opened_says_nothing_of_what_exists(
        self, qtbot, make_controller, app_paths, record
    ) -> None:
        path = keep("a", app_paths)
        app_paths.conversations_file.mkdir()
        assert start_and_end(qtbot, make_controller(), record) != []
        assert path.exists()

    def test_nor_does_one_that_can_only_be_read(self, qtbot, make_controller, app_paths, record) -> None:
        path = keep("a", app_paths)
        ConversationStore(app_paths.conversations_file).close()
        with closing(sqlite3.connect(app_paths.conversations_file)) as connection:
            connection.execute("PRAGMA user_version = 999")
        assert start_and_end(qtbot, make_controller(), record) == ["store-newer"]
        assert path.exists()

    def test_those_of_a_damaged_store_stay_as_long_as_that_is_kept(
        self, qtbot, make_controller, app_paths, record
    ) -> None:
        """It may be mended and put back, also on a computer to which all was copied, with new times."""
        path = keep("a", app_paths, used_ns=time.time_ns() + 10**9)
        app_paths.conversations_file.write_bytes(b"no database" * 1000)
        assert start_and_end(qtbot, make_controller(), record) == ["store-damaged"]
        assert path.exists()
        assert start_and_end(qtbot, make_controller(), record) == []
        assert path.exists()
        [damaged] = app_paths.data_folder.glob("*damaged*")
        damaged.unlink()
        assert start_and_end(qtbot, make_controller(), record) == []
        assert not path.exists()

    def test_a_conversation_that_begins_meanwhile_keeps_its_file(self, app_paths) -> None:
        """Another window's: what is known is asked only after the files have been listed."""
        old = keep("old", app_paths)
        begun: list[Path] = []

        def known() -> list[str]:
            begun.append(keep("new", app_paths))
            return []

        assert forget_all_but(app_paths.states_folder, known) == ()
        assert (old.exists(), begun[0].exists()) == (False, True)


def test_what_is_on_disk_and_where_is_told_with_the_defaults(
    qtbot, controller, kept_files: int, app_paths
) -> None:
    with qtbot.waitSignal(controller.kept_states.measured) as measured:
        controller.kept_states.measure()
    (kept,) = measured.args
    assert (kept.folder, kept.num_bytes) == (app_paths.states_folder, 3 * kept_files)
    assert kept.default_disk_bytes == default_limit(app_paths.states_folder)
    assert 0 <= kept.default_ram_bytes <= 4 * 2**30


def test_limits_are_remembered_and_every_load_is_given_them(
    qtbot, make_controller, script, app_paths
) -> None:
    controller = make_controller()
    start(qtbot, controller)
    with qtbot.waitSignal(controller.kept_states.measured):
        controller.kept_states.limit(ram_bytes=0, disk_bytes=10**9)
    load(qtbot, controller, FIRST)
    assert controller.shutdown()
    settings = load_settings(app_paths.settings_file).settings
    assert (settings.state_ram_bytes, settings.state_disk_bytes) == (0, 10**9)
    assert [(each.state_ram_budget, each.state_disk_budget) for each in script.configs] == [
        (None, None),
        (0, 10**9),
    ]


def test_another_window_does_not_take_back_what_was_chosen(qtbot, make_controller, app_paths) -> None:
    chooses, other = make_controller(), make_controller()
    for controller in (chooses, other):
        start(qtbot, controller, model=None)
    with qtbot.waitSignal(chooses.kept_states.measured):
        chooses.kept_states.limit(ram_bytes=0, disk_bytes=10**9)
    other.update_settings(live_panel=True)
    assert chooses.shutdown()
    assert other.shutdown()
    settings = load_settings(app_paths.settings_file).settings
    assert (settings.state_ram_bytes, settings.state_disk_bytes, settings.live_panel) == (0, 10**9, True)


def test_a_lower_limit_holds_at_once_for_files_and_for_the_model_that_is_loaded(
    qtbot, controller, script, kept_files: int, app_paths
) -> None:
    start(qtbot, controller)
    with qtbot.waitSignal(controller.kept_states.measured):
        controller.kept_states.limit(ram_bytes=None, disk_bytes=2 * kept_files)
    assert used_bytes(app_paths.states_folder) == 2 * kept_files
    qtbot.waitUntil(lambda: script.limits == [(None, 2 * kept_files)])


def test_a_limit_of_nothing_leaves_nothing_on_disk_without_a_model_too(
    qtbot, controller, script, kept_files: int
) -> None:
    with qtbot.waitSignal(controller.kept_states.measured) as measured:
        controller.kept_states.limit(ram_bytes=0, disk_bytes=0)
    assert measured.args[0].num_bytes == 0
    assert script.limits == []


def test_removing_all_forgets_what_the_engine_has_and_every_file(
    qtbot, controller, script, kept_files: int, app_paths
) -> None:
    start(qtbot, controller)
    script.slots = tuple(
        SlotInfo(name, tokens=1, pages=1, place="pool", reused=0, total=1) for name in NAMES[:2]
    )
    with qtbot.waitSignal(controller.kept_states.measured):
        controller.kept_states.remove_all()
    qtbot.waitUntil(lambda: script.forgotten == ["a", "b"])
    assert list(app_paths.states_folder.iterdir()) == []


def test_removing_all_does_not_wait_for_the_answer_that_is_being_written(
    qtbot, controller, script, kept_files: int
) -> None:
    start(qtbot, controller)
    gate = begin(qtbot, controller, script, "Hi")
    with qtbot.waitSignal(controller.kept_states.measured) as measured:
        controller.kept_states.remove_all()
    assert measured.args[0].num_bytes == 0
    assert controller.answering
    with qtbot.waitSignal(controller.answering_changed):
        gate.set()
    send(qtbot, controller, "And after it")


def test_after_the_end_nothing_is_asked_of_the_disk(qtbot, controller, kept_files: int, app_paths) -> None:
    start(qtbot, controller)
    assert controller.shutdown()
    controller.kept_states.measure()
    controller.kept_states.limit(ram_bytes=0, disk_bytes=0)
    controller.kept_states.remove_all()
    assert used_bytes(app_paths.states_folder) == 3 * kept_files


def test_a_file_that_cannot_be_removed_is_told(qtbot, controller, record, app_paths) -> None:
    stuck = app_paths.states_folder / f"{'0' * 24}-{'1' * 24}.safetensors"
    (stuck / "something").mkdir(parents=True)  # a folder can't be removed as a file
    told = record(notice=controller.notice_raised)
    controller.kept_states.remove_all()
    qtbot.waitUntil(lambda: bool(told))
    assert [notice.code for _, notice in told] == ["state-file-stays"]


def test_a_program_with_files_of_its_own_keeps_these_there_too(
    qtbot, controller, script, app_paths, kept_files: int
) -> None:
    """Not beside those of the person's other conversations."""
    start(qtbot, controller)
    load(qtbot, controller, FIRST)
    assert script.configs[-1].states_folder == app_paths.states_folder
    assert app_paths.data_folder in app_paths.states_folder.parents
    assert not states_folder().exists()


def test_freeing_other_chats_removes_nothing_from_disk(
    qtbot, controller, script, kept_files: int, app_paths
) -> None:
    start(qtbot, controller)
    with qtbot.waitSignal(controller.slots_changed, check_params_cb=lambda _: bool(script.calls)):
        controller.free_slots()
    assert script.calls == ["free slots"]
    assert script.forgotten == []
    assert used_bytes(app_paths.states_folder) == 3 * kept_files


def test_freeing_other_chats_without_a_model_is_nothing_to_do(qtbot, controller, record) -> None:
    told = record(notice=controller.notice_raised)
    with qtbot.waitSignal(controller.slots_changed):
        controller.free_slots()
    assert told == []
