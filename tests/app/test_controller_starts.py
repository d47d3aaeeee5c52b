"""From one start of the program to the next, however the one before ended: everything is there again."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from controller_steps import FIRST, begin, codes, load, on_disk, only, send, start, watch
from PySide6.QtTest import QSignalSpy

from app.controller import ChatController, ModelPhase
from app.conversations import ConversationStore, MessageStatus
from app.settings import load_settings
from app.threads import running_threads


@pytest.fixture
def events(controller: ChatController, record) -> list[tuple]:
    return watch(controller, record)


# The next start


def test_the_next_start_shows_the_last_conversation_and_loads_the_last_model(
    qtbot, make_controller, app_paths, record
) -> None:
    first = make_controller()
    start(qtbot, first)
    send(qtbot, first, "one")
    last_id = first.current_conversation_id
    first.update_settings(window_geometry_base64="AdnQ")
    assert first.shutdown()

    second = make_controller()
    events = watch(second, record)
    with qtbot.waitSignal(
        second.model_state_changed, check_params_cb=lambda state: state.phase is ModelPhase.READY
    ):
        second.start()
    qtbot.waitUntil(lambda: second.current_conversation_id == last_id)
    (opened,) = only(events, "conversation_opened")
    assert [message.text for message in opened[1].messages] == ["one", "Hello there"]
    assert second.model_state.path == FIRST
    assert second.settings.window_geometry_base64 == "AdnQ"
    assert ("recent_models_changed", [FIRST]) in events
    qtbot.waitUntil(lambda: not app_paths.load_marker_file.exists())


def test_a_shutdown_in_the_middle_of_an_answer_leaves_its_text_on_disk(
    qtbot, make_controller, script, app_paths, record
) -> None:
    controller = make_controller()
    events = watch(controller, record)
    start(qtbot, controller)
    begin(qtbot, controller, script, "Hi", after=2)
    conversation_id = controller.current_conversation_id
    qtbot.waitUntil(lambda: "".join(e[3].text for e in only(events, "answer_extended")) == "Hello")
    assert controller.shutdown()
    assert running_threads() == []
    assert not list(app_paths.data_folder.glob("*-wal"))  # the file was closed, not abandoned
    assert on_disk(app_paths, conversation_id) == [
        ("user", "Hi", MessageStatus.COMPLETE),
        ("assistant", "Hello", MessageStatus.STOPPED),
    ]


_TALKER = """
import itertools, sys, time
from pathlib import Path
from types import SimpleNamespace
from PySide6.QtCore import QCoreApplication
import app.answer
from app.controller import ChatController, ModelPhase
from app.paths import AppPaths
from engine.templates.chat_template import ChatPrompt
from engine.generation import Prefilled, PrefillStats, SamplingParams, TextDelta

class Talker:
    summary = SimpleNamespace(
        path=Path("/m"),
        name="m",
        device="cpu",
        context_length=1_000_000,
        sampling_defaults=SamplingParams(),
        notices=(),
    )
    def chat_prompt(self, messages):
        return ChatPrompt(ids=(1,), text="", notices=())
    def encode(self, text):
        return []
    def generate(self, request, cancel):
        yield Prefilled(PrefillStats(1, 0, 0.0))
        for number in itertools.count():
            time.sleep(0.001)  # a model takes its time; without it the answer would outgrow the memory
            yield TextDelta(f"word{number} ", number)
    def slot_table(self):
        return ()

app.answer.SAVE_INTERVAL_MS = 10
application = QCoreApplication(sys.argv)
controller = ChatController(AppPaths.under(Path(sys.argv[1])), engine_factory=lambda *_: Talker())
def on_state(state):
    if state.phase is ModelPhase.READY:
        controller.send_message("Tell me everything")
controller.model_state_changed.connect(on_state)
controller.answer_started.connect(lambda conversation_id, _: print(conversation_id, flush=True))
controller.start(Path("/m"))
application.exec()
"""


def test_a_kill_during_an_answer_loses_neither_the_question_nor_the_text_so_far(
    qtbot, app_paths, tmp_path
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _TALKER, str(tmp_path / "program")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    with process.stdout as output:
        conversation_id = output.readline().strip()
        qtbot.waitUntil(lambda: len(on_disk(app_paths, conversation_id)[1][1].split()) >= 20, timeout=20_000)
        process.kill()
    process.wait()
    store = ConversationStore(app_paths.conversations_file)
    assert store.notices == ()
    question, answer = store.conversation(conversation_id).messages
    assert question.text == "Tell me everything"
    assert answer.status is MessageStatus.INTERRUPTED
    words = answer.text.split()
    assert words == [f"word{number}" for number in range(len(words))]
    assert len(words) >= 20
    store.close()


@pytest.mark.parametrize("instant", ["at once", "while starting", "while loading", "while sending"])
def test_a_shutdown_in_any_state_ends_every_thread(
    qtbot, make_controller, script, app_paths, instant: str
) -> None:
    controller = make_controller()
    if instant != "at once":
        controller.start()
    if instant == "while loading":
        script.load_gate = threading.Event()
        with qtbot.waitSignal(controller.model_state_changed, check_params_cb=lambda state: state.progress):
            controller.load_model(FIRST)
    if instant == "while sending":
        load(qtbot, controller, FIRST)
        controller.send_message("Hi")
    assert controller.shutdown()
    assert running_threads() == []
    if instant == "while sending":
        store = ConversationStore(app_paths.conversations_file)
        (summary,) = store.summaries()
        question, answer = store.conversation(summary.id).messages
        assert (question.text, answer.status) == ("Hi", MessageStatus.INTERRUPTED)
        store.close()


def test_verbs_after_the_shutdown_do_nothing(qtbot, controller, events) -> None:
    start(qtbot, controller)
    assert controller.shutdown()
    del events[:]
    controller.send_message("late")
    controller.open_conversation("x")
    controller.trash.delete(["x"])
    controller.rename_conversation("x", "y")
    controller.inspect_model(FIRST)
    controller.load_model(FIRST)
    controller.unload_model()
    controller.stop_answer()
    controller.update_settings(threads=2)
    assert [event[0] for event in events] == ["send_rejected"]


def test_a_store_that_cannot_be_opened_is_told_and_tried_again_with_the_next_message(
    qtbot, controller, events, app_paths
) -> None:
    app_paths.data_folder.parent.mkdir(parents=True)
    app_paths.data_folder.write_text("a file where the folder should be")
    with qtbot.waitSignal(controller.conversation_opened):
        controller.start(FIRST)
    qtbot.waitUntil(lambda: controller.model_state.phase is ModelPhase.READY)
    assert codes(events) == ["store-unavailable"]
    with qtbot.waitSignal(controller.send_rejected) as refused:
        controller.send_message("Hi")
    assert refused.args[1].code == "store-unavailable"
    app_paths.data_folder.unlink()
    send(qtbot, controller, "Hi")
    assert only(events, "answer_finished")


def test_a_damaged_store_and_damaged_settings_are_told_and_the_program_works(
    qtbot, make_controller, app_paths, record
) -> None:
    for file in (app_paths.conversations_file, app_paths.settings_file):
        file.parent.mkdir(parents=True)
        file.write_bytes(b"{ not what it should be" * 50)
    controller = make_controller()
    events = watch(controller, record)
    start(qtbot, controller)
    assert codes(events) == ["settings-damaged", "store-damaged"]
    send(qtbot, controller, "Hi")
    assert only(events, "answer_finished")


def test_settings_that_cannot_be_saved_are_told_and_still_hold(
    qtbot, make_controller, app_paths, monkeypatch
) -> None:
    controller = make_controller()
    start(qtbot, controller)

    def full(*_arguments) -> None:
        raise OSError(28, "No space left on device", str(app_paths.settings_file))

    with monkeypatch.context() as full_disk:
        full_disk.setattr("app.settings_keeper.save_changes", full)
        told = QSignalSpy(controller.notice_raised)
        for threads in (3, 2):
            controller.update_settings(threads=threads)
            with qtbot.waitSignal(controller.conversations_changed):
                controller.trash.delete(["none"])  # comes after it on the disk's thread
    assert told.count() == 1, "not anew for every change"
    assert "No space left" in told.at(0)[0].message
    assert controller.settings.threads == 2
    controller.update_settings(context_tokens=512)  # the next change takes the one before along
    assert controller.shutdown()
    saved = load_settings(app_paths.settings_file).settings
    assert (saved.threads, saved.context_tokens) == (2, 512)


def test_changes_made_while_the_settings_are_written_are_not_lost(qtbot, controller, app_paths) -> None:
    start(qtbot, controller)
    for number in range(1, 30):
        controller.update_settings(threads=number)
    assert controller.shutdown()
    assert load_settings(app_paths.settings_file).settings.threads == 29
