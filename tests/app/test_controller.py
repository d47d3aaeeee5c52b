"""The verbs of the program, on a fake engine: what is shown is on disk, and nothing is lost or blocked."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from controller_steps import FIRST, begin, codes, load, on_disk, only, send, start, watch
from PySide6.QtTest import QSignalSpy

from app import answer as answer_module
from app.chat_sampling import chat_sampling
from app.controller import ChatController, ModelPhase
from app.conversations import ConversationStore, MessageStatus, StoreError
from app.settings import Settings, load_settings, save_settings
from app.threads import running_threads
from engine.errors import ContextFullError, ModelFileError
from engine.generation import SamplingParams
from engine.notices import Notice

SECOND = Path("/models/second")


@pytest.fixture
def events(controller: ChatController, record) -> list[tuple]:
    return watch(controller, record)


# A message and its answer


def test_a_message_in_a_new_chat_is_shown_when_it_is_on_disk_and_then_answered(
    qtbot, controller, events, script, app_paths
) -> None:
    start(qtbot, controller)
    assert only(events, "conversations_changed", "conversation_opened") == [
        ("conversations_changed", []),
        ("conversation_opened", None),
    ]
    del events[:]
    found_on_disk: list[object] = []
    controller.message_added.connect(
        lambda conversation_id, _: found_on_disk.extend(on_disk(app_paths, conversation_id))
    )
    send(qtbot, controller, "Hi")

    order = list(dict.fromkeys(event[0] for event in events))
    assert order == [
        "send_accepted",
        "conversation_opened",
        "conversations_changed",
        "message_added",
        "answer_started",
        "answering_changed",
        "answer_extended",
        "answer_finished",
    ]
    assert ("user", "Hi", MessageStatus.COMPLETE) in found_on_disk
    (added,), (started,), (finished,) = (
        only(events, name) for name in ("message_added", "answer_started", "answer_finished")
    )
    conversation_id = controller.current_conversation_id
    assert {added[1], started[1], finished[1]} == {conversation_id}
    assert (started[2].text, started[2].status) == ("", MessageStatus.WRITING)
    assert "".join(event[3].text for event in only(events, "answer_extended")) == "Hello there"
    answer = finished[2]
    assert (answer.id, answer.text, answer.status) == (started[2].id, "Hello there", MessageStatus.COMPLETE)
    assert (answer.stats.prompt_tokens, answer.stats.reused_tokens, answer.stats.device) == (3, 1, "cpu")
    assert answer.stats.finish_reason == "end"
    assert on_disk(app_paths, conversation_id) == [
        ("user", "Hi", MessageStatus.COMPLETE),
        ("assistant", "Hello there", MessageStatus.COMPLETE),
    ]


def test_the_engine_is_given_the_history_from_disk_and_the_conversation_s_name(
    qtbot, controller, script
) -> None:
    start(qtbot, controller)
    send(qtbot, controller, "one")
    send(qtbot, controller, "two")
    assert script.prompts == [
        [("user", "one")],
        [("user", "one"), ("assistant", "Hello there"), ("user", "two")],
    ]
    assert [request.conversation for request in script.requests] == [controller.current_conversation_id] * 2
    assert script.requests[0].sampling == chat_sampling(SamplingParams())


def test_thinking_is_saved_apart_from_the_text(qtbot, controller, events, script, app_paths) -> None:
    script.pieces = ["<think>why", "</think>", "because"]
    start(qtbot, controller)
    send(qtbot, controller, "Hi")
    ((_, conversation_id, answer),) = only(events, "answer_finished")
    assert (answer.thinking.strip(), answer.text.strip()) == ("why", "because")
    assert on_disk(app_paths, conversation_id)[1][1].strip() == "because"


def test_a_growing_answer_is_on_disk_before_it_ends(
    qtbot, make_controller, script, app_paths, monkeypatch
) -> None:
    monkeypatch.setattr(answer_module, "SAVE_INTERVAL_MS", 10)
    controller = make_controller()
    start(qtbot, controller)
    gate = begin(qtbot, controller, script, "Hi", after=2)
    conversation_id = controller.current_conversation_id
    qtbot.waitUntil(
        lambda: on_disk(app_paths, conversation_id)[1] == ("assistant", "Hello", MessageStatus.WRITING)
    )
    with qtbot.waitSignal(controller.answer_finished):
        gate.set()


def test_a_stopped_answer_keeps_its_text_and_the_chat_goes_on(
    qtbot, controller, events, script, app_paths
) -> None:
    start(qtbot, controller)
    begin(qtbot, controller, script, "one", after=2)
    qtbot.waitUntil(lambda: "".join(e[3].text for e in only(events, "answer_extended")) == "Hello")
    with qtbot.waitSignal(controller.answering_changed, check_params_cb=lambda answering: not answering):
        controller.stop_answer()
    controller.stop_answer()  # nothing to stop is no error
    script.gates.clear()
    send(qtbot, controller, "two")
    assert script.prompts[1] == [("user", "one"), ("assistant", "Hello"), ("user", "two")]
    assert on_disk(app_paths, controller.current_conversation_id)[1] == (
        "assistant",
        "Hello",
        MessageStatus.STOPPED,
    )


def test_an_answer_stopped_before_its_first_word_never_makes_a_chat_unusable(
    qtbot, controller, script, app_paths
) -> None:
    start(qtbot, controller)
    script.gates[0] = threading.Event()
    with qtbot.waitSignal(controller.answer_started):
        controller.send_message("one")
    with qtbot.waitSignal(controller.answering_changed, check_params_cb=lambda answering: not answering):
        controller.stop_answer()
    assert on_disk(app_paths, controller.current_conversation_id)[1] == (
        "assistant",
        "",
        MessageStatus.STOPPED,
    )
    script.gates.clear()
    send(qtbot, controller, "two")
    assert script.prompts[-1] == [("user", "one"), ("user", "two")]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ContextFullError("The prompt is too long.", "Begin a new chat."), "context-full"),
        (ValueError("bug"), "fault"),
    ],
)
def test_a_failed_answer_keeps_its_text_says_why_and_the_next_one_works(
    qtbot, controller, events, script, app_paths, error: Exception, code: str
) -> None:
    start(qtbot, controller)
    script.pieces = ["Hel", error]
    send(qtbot, controller, "Hi")
    assert codes(events) == [code]
    conversation_id = controller.current_conversation_id
    assert on_disk(app_paths, conversation_id)[1] == ("assistant", "Hel", MessageStatus.FAILED)
    (told,) = only(events, "notice_raised")
    assert only(events, "answer_finished")[0][2].stats.finish_reason == told[1].message
    script.pieces = ["fine"]
    send(qtbot, controller, "again")
    assert on_disk(app_paths, conversation_id)[3] == ("assistant", "fine", MessageStatus.COMPLETE)


def test_what_a_template_rewrites_is_said_once_for_a_chat(qtbot, controller, events, script) -> None:
    script.prompt_notices = (Notice("system-rewritten", "The model knows no system role."),)
    start(qtbot, controller)
    send(qtbot, controller, "one")
    send(qtbot, controller, "two")
    assert codes(events) == ["system-rewritten"]
    controller.new_conversation()
    send(qtbot, controller, "three")
    assert codes(events) == ["system-rewritten"] * 2


def test_what_the_engine_notices_at_a_load_and_at_an_answer_is_told(
    qtbot, controller, events, script
) -> None:
    script.summary_notices = (
        Notice("cpu", "The model runs on the CPU because no card was found."),
        Notice("ignored", "top_k was left out.", "Correct the file."),
        Notice("ignored", "top_p was left out.", "Correct the file."),
    )
    script.finish_notices = (Notice("context-full", "The context is full."),)
    start(qtbot, controller)
    send(qtbot, controller, "Hi")
    assert codes(events) == ["cpu", "ignored", "context-full"]
    (both,) = [event[1] for event in only(events, "notice_raised") if event[1].code == "ignored"]
    assert both == Notice("ignored", "top_k was left out. top_p was left out.", "Correct the file.")


# Messages that can't be sent keep their text


def rejected(controller: ChatController, events: list[tuple], text: str) -> str:
    """The code of the refusal, which must come at once."""
    del events[:]
    controller.send_message(text)
    ((name, kept, notice),) = events
    assert (name, kept) == ("send_rejected", text)
    assert notice.message
    assert notice.hint
    return notice.code


def test_a_send_without_a_model_while_loading_and_after_a_failed_load_keeps_the_text(
    qtbot, controller, events, script, app_paths
) -> None:
    start(qtbot, controller, model=None)
    assert rejected(controller, events, "Hi") == "no-model"

    script.load_gate = threading.Event()
    controller.load_model(FIRST)
    assert rejected(controller, events, "Hi") == "model-loading"

    script.load_errors["first"] = ModelFileError("config.json is missing in /models/first.")
    with qtbot.waitSignal(controller.load_failed):
        script.load_gate.set()
    assert rejected(controller, events, "Hi") == "no-model"
    assert "config.json is missing" in events[0][2].message

    store = ConversationStore(app_paths.conversations_file)
    assert store.summaries() == []
    store.close()


@pytest.mark.parametrize("text", ["", "  \n\t"])
def test_an_empty_message_is_not_sent(qtbot, controller, events, text: str) -> None:
    start(qtbot, controller)
    assert rejected(controller, events, text) == "empty-message"


def test_a_second_message_during_an_answer_keeps_its_text(qtbot, controller, events, script) -> None:
    start(qtbot, controller)
    gate = begin(qtbot, controller, script, "one")
    assert controller.answering
    assert rejected(controller, events, "two") == "answer-in-progress"
    with qtbot.waitSignal(controller.answering_changed):
        gate.set()
    assert not controller.answering


def test_of_two_messages_sent_at_once_the_second_is_refused(qtbot, controller, events) -> None:
    start(qtbot, controller)
    controller.send_message("one")
    assert rejected(controller, events, "two") == "answer-in-progress"
    qtbot.waitUntil(lambda: "answer_finished" in [event[0] for event in events])
    assert [event[1] for event in only(events, "send_accepted")] == ["one"]


@pytest.mark.parametrize("code", ["disk-full", "store-locked"])
def test_a_message_that_cannot_be_saved_is_not_shown_and_keeps_its_text(
    qtbot, controller, events, script, monkeypatch, code: str
) -> None:
    start(qtbot, controller)
    del events[:]
    with monkeypatch.context() as broken:
        broken.setattr(ConversationStore, "begin_exchange", failing(code))
        with qtbot.waitSignal(controller.send_rejected) as refused:
            controller.send_message("Hi")
    assert refused.args[0] == "Hi"
    assert refused.args[1].code == code
    assert [event[0] for event in events] == ["send_rejected"]
    assert script.requests == []
    send(qtbot, controller, "Hi")
    assert only(events, "send_accepted") == [("send_accepted", "Hi")]


def failing(code: str) -> Callable[..., object]:
    def fail(*_arguments, **_options) -> None:
        raise StoreError(code, "It could not be saved.", "Free some space.")

    return fail


# Saving an answer fails


def test_an_answer_that_cannot_be_saved_stays_is_told_once_and_is_saved_later(
    qtbot, make_controller, script, app_paths, monkeypatch, record
) -> None:
    monkeypatch.setattr(answer_module, "SAVE_INTERVAL_MS", 5)
    monkeypatch.setattr(answer_module, "RETRY_INTERVAL_MS", 20)
    controller = make_controller()
    events = watch(controller, record)
    start(qtbot, controller)
    failures: list[str] = []

    def fail(*_arguments, **_options) -> None:
        failures.append("extend")
        raise StoreError("disk-full", "It could not be saved.", "Free some space.")

    with monkeypatch.context() as full:
        full.setattr(ConversationStore, "extend_answer", fail)
        full.setattr(ConversationStore, "finish_answer", failing("disk-full"))
        gate = begin(qtbot, controller, script, "Hi", after=2)
        qtbot.waitUntil(lambda: len(failures) >= 3)
        assert codes(events) == ["disk-full"]  # not once a second
        with qtbot.waitSignal(controller.answer_finished) as finished:
            gate.set()
        assert finished.args[1].text == "Hello there"  # it stays on the screen
        assert codes(events) == ["disk-full", "disk-full"]
        conversation_id = controller.current_conversation_id
        assert on_disk(app_paths, conversation_id)[1][2] is MessageStatus.WRITING
        with qtbot.waitSignal(controller.conversation_opened) as opened:
            controller.open_conversation(conversation_id)
        assert opened.args[0].messages[-1].text == "Hello there"  # and comes back to it
    qtbot.waitUntil(lambda: codes(events)[-1] == "answer-saved")
    assert on_disk(app_paths, conversation_id)[1] == ("assistant", "Hello there", MessageStatus.COMPLETE)


def test_an_unsaved_answer_goes_to_disk_with_the_next_message_and_into_its_prompt(
    qtbot, controller, events, script, app_paths, monkeypatch
) -> None:
    start(qtbot, controller)
    with monkeypatch.context() as full:
        full.setattr(ConversationStore, "finish_answer", failing("disk-full"))
        send(qtbot, controller, "one")
        with qtbot.waitSignal(controller.send_rejected):  # the history would have a hole
            controller.send_message("two")
    send(qtbot, controller, "two")
    assert codes(events) == ["disk-full", "answer-saved"]
    assert script.prompts[1] == [("user", "one"), ("assistant", "Hello there"), ("user", "two")]


# Conversations


def test_switching_away_from_an_answer_lets_it_go_on_and_coming_back_shows_all_of_it(
    qtbot, controller, events, script, app_paths
) -> None:
    start(qtbot, controller)
    gate = begin(qtbot, controller, script, "one")
    answering_id = controller.current_conversation_id
    controller.new_conversation()
    assert controller.current_conversation_id is None
    assert events[-1] == ("conversation_opened", None)

    with qtbot.waitSignal(controller.conversation_opened) as opened:
        controller.open_conversation(answering_id)
    growing = opened.args[0].messages[-1]
    assert (growing.text, growing.status) == ("Hel", MessageStatus.WRITING)  # newer than on disk
    controller.new_conversation()
    with qtbot.waitSignal(controller.answer_finished):
        gate.set()
    assert on_disk(app_paths, answering_id)[1] == ("assistant", "Hello there", MessageStatus.COMPLETE)


def test_of_two_conversations_opened_at_once_only_the_last_is_shown(
    qtbot, controller, events, script
) -> None:
    start(qtbot, controller)
    ids = []
    for text in ("one", "two"):
        controller.new_conversation()
        send(qtbot, controller, text)
        ids.append(controller.current_conversation_id)
    del events[:]
    with qtbot.waitSignal(controller.conversation_opened):
        controller.open_conversation(ids[0])
        controller.open_conversation(ids[1])
    send(qtbot, controller, "more")  # by now a late answer would have come
    assert [event[1].summary.id for event in only(events, "conversation_opened")] == [ids[1]]


def test_a_chat_begun_while_a_message_is_on_its_way_to_disk_stays_on_screen(
    qtbot, controller, events, script
) -> None:
    start(qtbot, controller)
    del events[:]
    with qtbot.waitSignal(controller.answering_changed, check_params_cb=lambda answering: not answering):
        controller.send_message("one")
        controller.new_conversation()
    assert controller.current_conversation_id is None
    assert only(events, "conversation_opened") == [("conversation_opened", None)]
    assert len(only(events, "conversations_changed")[0][1]) == 1


def test_an_empty_chat_leaves_no_row_behind(qtbot, controller, app_paths) -> None:
    start(qtbot, controller)
    for _ in range(3):
        controller.new_conversation()
    assert controller.shutdown()
    store = ConversationStore(app_paths.conversations_file)
    assert store.summaries() == []
    store.close()


def test_renaming_changes_the_list_and_an_empty_name_is_told(qtbot, controller, events) -> None:
    start(qtbot, controller)
    send(qtbot, controller, "Hi")
    conversation_id = controller.current_conversation_id
    with qtbot.waitSignal(
        controller.conversations_changed, check_params_cb=lambda summaries: summaries[0].title == "Mine"
    ):
        controller.rename_conversation(conversation_id, "Mine")
    with qtbot.waitSignal(controller.notice_raised) as told:
        controller.rename_conversation(conversation_id, " ")
    assert told.args[0].code == "empty-title"


def test_deleting_the_conversation_that_answers_stops_it_and_leaves_an_empty_chat(
    qtbot, controller, events, script, app_paths
) -> None:
    start(qtbot, controller)
    send(qtbot, controller, "kept")
    kept_id = controller.current_conversation_id
    controller.new_conversation()
    begin(qtbot, controller, script, "gone", after=1)
    gone_id = controller.current_conversation_id
    with qtbot.waitSignals(
        [controller.conversation_opened, controller.answering_changed],
        check_params_cbs=[lambda conversation: conversation is None, lambda answering: not answering],
    ):
        controller.delete_conversation(gone_id)
    assert controller.current_conversation_id is None
    assert only(events, "answer_finished")[1:] == []  # only the kept one's
    assert codes(events) == []
    qtbot.waitUntil(lambda: script.forgotten == [gone_id, gone_id])  # before the messages, and behind them
    script.gates.clear()
    send(qtbot, controller, "after")
    assert controller.shutdown()
    store = ConversationStore(app_paths.conversations_file)
    titles = [summary.title for summary in store.summaries()]
    assert titles == ["after", "kept"]
    assert len(store.conversation(kept_id).messages) == 2
    store.close()


def test_a_conversation_that_is_deleted_just_before_the_program_ends_leaves_nothing(
    qtbot, controller, script, app_paths
) -> None:
    start(qtbot, controller)
    send(qtbot, controller, "gone")
    gone_id = controller.current_conversation_id
    controller.delete_conversation(gone_id)
    assert controller.shutdown()
    assert script.forgotten == [gone_id]
    store = ConversationStore(app_paths.conversations_file)
    assert store.summaries() == []
    store.close()


def test_a_deletion_that_fails_is_told_and_the_stopped_answer_is_kept(
    qtbot, controller, events, script, app_paths, monkeypatch
) -> None:
    start(qtbot, controller)
    begin(qtbot, controller, script, "Hi")
    conversation_id = controller.current_conversation_id
    monkeypatch.setattr(ConversationStore, "delete", failing("store-locked"))
    with qtbot.waitSignal(controller.answering_changed, check_params_cb=lambda answering: not answering):
        controller.delete_conversation(conversation_id)
    assert codes(events) == ["store-locked"]
    assert controller.current_conversation_id == conversation_id
    assert on_disk(app_paths, conversation_id)[1] == ("assistant", "Hel", MessageStatus.STOPPED)


def test_deleting_another_conversation_leaves_the_answer_alone(qtbot, controller, script, app_paths) -> None:
    start(qtbot, controller)
    send(qtbot, controller, "other")
    other_id = controller.current_conversation_id
    controller.new_conversation()
    gate = begin(qtbot, controller, script, "mine")
    mine_id = controller.current_conversation_id
    with qtbot.waitSignal(controller.conversations_changed):
        controller.delete_conversation(other_id)
    with qtbot.waitSignal(controller.answer_finished):
        gate.set()
    assert controller.current_conversation_id == mine_id
    assert on_disk(app_paths, mine_id)[1] == ("assistant", "Hello there", MessageStatus.COMPLETE)


def test_opening_a_conversation_that_is_gone_is_told(qtbot, controller) -> None:
    start(qtbot, controller)
    with qtbot.waitSignal(controller.notice_raised) as told:
        controller.open_conversation("no such id")
    assert told.args[0].code == "conversation-gone"


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
    controller.delete_conversation("x")
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
        full_disk.setattr("app.settings_keeper.save_settings", full)
        told = QSignalSpy(controller.notice_raised)
        for threads in (3, 2):
            controller.update_settings(threads=threads)
            with qtbot.waitSignal(controller.conversations_changed):
                controller.delete_conversation("none")  # comes after it on the disk's thread
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


# Models


def test_a_load_goes_through_its_states_and_is_remembered(
    qtbot, controller, events, app_paths, script
) -> None:
    controller.update_settings(context_tokens=64, threads=2)
    start(qtbot, controller)
    states = [event[1] for event in only(events, "model_state_changed")]
    phases = list(dict.fromkeys(state.phase for state in states))
    assert phases == [ModelPhase.NONE, ModelPhase.LOADING, ModelPhase.READY]
    assert states[1].path == FIRST
    assert states[1].name == "first"
    assert states[1].progress is None  # it waits for the engine's thread
    assert any(state.progress is not None for state in states)
    assert states[-1].summary.path == FIRST
    assert controller.settings.recent_models == (FIRST,)
    assert (script.configs[0].context, script.configs[0].threads) == (64, 2)


def test_a_failed_load_goes_back_to_the_model_before_it_which_works(
    qtbot, controller, events, script
) -> None:
    start(qtbot, controller)
    before = controller.model_state
    error = ModelFileError("config.json is missing in /models/second.", "Choose another folder.")
    script.load_errors["second"] = error
    with qtbot.waitSignal(controller.load_failed) as failed:
        controller.load_model(SECOND)
        assert controller.model_state.phase is ModelPhase.LOADING
        assert controller.model_state.path == SECOND
        assert controller.model_state.summary == before.summary
    assert failed.args == [SECOND, Notice("model-file", error.message, error.hint)]
    assert controller.model_state == before
    assert controller.settings.recent_models == (FIRST,)
    send(qtbot, controller, "Hi")


def test_a_cancelled_load_is_no_failure(qtbot, controller, events, script) -> None:
    start(qtbot, controller, model=None)
    script.load_gate = threading.Event()
    with qtbot.waitSignal(controller.model_state_changed, check_params_cb=lambda state: state.progress):
        controller.load_model(FIRST)
    with qtbot.waitSignal(
        controller.model_state_changed, check_params_cb=lambda state: state.phase is ModelPhase.NONE
    ):
        controller.cancel_load()
    assert only(events, "load_failed", "notice_raised") == []
    assert rejected(controller, events, "Hi") == "no-model"


def test_a_second_load_takes_the_place_of_the_one_that_runs(qtbot, controller, events, script) -> None:
    start(qtbot, controller, model=None)
    script.load_gate = threading.Event()
    with qtbot.waitSignal(controller.model_state_changed, check_params_cb=lambda state: state.progress):
        controller.load_model(FIRST)
    del events[:]
    with qtbot.waitSignal(
        controller.model_state_changed, check_params_cb=lambda state: state.phase is ModelPhase.READY
    ):
        controller.load_model(SECOND)
        script.load_gate.set()
    states = [event[1] for event in only(events, "model_state_changed")]
    assert {state.path for state in states} == {SECOND}  # the first one's end is not shown
    assert only(events, "load_failed") == []


def test_a_model_chosen_during_an_answer_is_loaded_when_it_ends(qtbot, controller, events, script) -> None:
    start(qtbot, controller)
    gate = begin(qtbot, controller, script, "Hi")
    controller.load_model(SECOND)
    assert controller.model_state.phase is ModelPhase.LOADING
    with qtbot.waitSignal(
        controller.model_state_changed, check_params_cb=lambda state: state.phase is ModelPhase.READY
    ):
        gate.set()
    qtbot.waitUntil(lambda: not controller.answering)
    ((_, _, answer),) = only(events, "answer_finished")
    assert (answer.text, answer.status) == ("Hello there", MessageStatus.COMPLETE)
    assert controller.settings.recent_models == (SECOND, FIRST)


def test_unloading_stops_the_answer_and_is_remembered(qtbot, controller, events, script) -> None:
    start(qtbot, controller)
    begin(qtbot, controller, script, "Hi")
    with qtbot.waitSignal(
        controller.model_state_changed, check_params_cb=lambda state: state.phase is ModelPhase.NONE
    ):
        controller.unload_model()
    qtbot.waitUntil(lambda: not controller.answering)
    ((_, _, answer),) = only(events, "answer_finished")
    assert answer.status is MessageStatus.STOPPED
    assert script.closed == [FIRST]
    assert controller.settings.last_model is None
    assert controller.settings.recent_models == (FIRST,)


def test_a_model_whose_load_took_the_program_down_is_not_loaded_by_itself_again(
    qtbot, make_controller, script, app_paths, record
) -> None:
    save_settings(app_paths.settings_file, Settings(last_model=FIRST, recent_models=(FIRST,)))
    app_paths.load_marker_file.parent.mkdir(parents=True)
    app_paths.load_marker_file.write_text(json.dumps({"model": str(FIRST)}))  # of a process that ended
    for expected in (["load-ended-program"], []):  # the second start finds no reason to tell it again
        controller = make_controller()
        events = watch(controller, record)
        start(qtbot, controller, model=None)
        qtbot.waitUntil(lambda events=events, expected=expected: codes(events) == expected)
        assert controller.shutdown()
        assert script.configs == []
        assert not app_paths.load_marker_file.exists()
    assert load_settings(app_paths.settings_file).settings.recent_models == (FIRST,)


def test_the_mark_stands_on_disk_exactly_while_the_last_model_loads_by_itself(
    qtbot, make_controller, script, app_paths
) -> None:
    save_settings(app_paths.settings_file, Settings(last_model=FIRST))
    script.load_gate = threading.Event()
    controller = make_controller()
    with qtbot.waitSignal(controller.model_state_changed, check_params_cb=lambda state: state.progress):
        controller.start()
    assert json.loads(app_paths.load_marker_file.read_text())["model"] == str(FIRST)
    script.load_gate.set()
    qtbot.waitUntil(lambda: not app_paths.load_marker_file.exists())


def test_a_second_window_takes_the_load_of_the_first_for_no_crash(
    qtbot, make_controller, script, app_paths, record
) -> None:
    save_settings(app_paths.settings_file, Settings(last_model=FIRST))
    script.load_gate = threading.Event()
    first = make_controller()
    with qtbot.waitSignal(first.model_state_changed, check_params_cb=lambda state: state.progress):
        first.start()
    second = make_controller()
    events = watch(second, record)
    with qtbot.waitSignal(second.model_state_changed, check_params_cb=lambda state: state.progress):
        second.start()
    script.load_gate.set()
    for controller in (first, second):
        qtbot.waitUntil(lambda controller=controller: controller.model_state.phase is ModelPhase.READY)
    assert codes(events) == []


def test_closing_the_window_during_the_first_load_is_no_crash(
    qtbot, make_controller, script, app_paths
) -> None:
    save_settings(app_paths.settings_file, Settings(last_model=FIRST))
    script.load_gate = threading.Event()
    controller = make_controller()
    with qtbot.waitSignal(controller.model_state_changed, check_params_cb=lambda state: state.progress):
        controller.start()
    assert controller.shutdown()
    assert not app_paths.load_marker_file.exists()
    assert load_settings(app_paths.settings_file).settings.last_model == FIRST


def test_a_model_given_at_the_start_is_loaded_instead_of_the_last_one(
    qtbot, make_controller, app_paths
) -> None:
    save_settings(app_paths.settings_file, Settings(last_model=FIRST))
    controller = make_controller()
    with qtbot.waitSignal(
        controller.model_state_changed, check_params_cb=lambda state: state.phase is ModelPhase.READY
    ):
        controller.start(SECOND)
    assert controller.model_state.path == SECOND


# Looking at a model


def test_only_the_last_model_looked_at_is_reported_and_the_looking_blocks_nothing(
    qtbot, make_controller, record
) -> None:
    gate = threading.Event()
    threads: set[int] = set()

    def inspector(path: Path, config) -> SimpleNamespace:
        threads.add(threading.get_ident())
        assert gate.wait(20)
        return SimpleNamespace(path=path)

    controller = make_controller(inspector=inspector)
    events = watch(controller, record)
    for path in (FIRST, Path("/models/between"), SECOND):
        controller.inspect_model(path)
    start(qtbot, controller)  # the store and the engine go on meanwhile
    send(qtbot, controller, "Hi")
    assert only(events, "model_inspected") == []
    with qtbot.waitSignal(controller.model_inspected):
        gate.set()
    assert [event[1].path for event in only(events, "model_inspected")] == [SECOND]
    assert threading.get_ident() not in threads


def test_a_look_that_fails_is_told(qtbot, make_controller) -> None:
    def inspector(path: Path, config) -> None:
        raise ValueError("bug")

    controller = make_controller(inspector=inspector)
    with qtbot.waitSignal(controller.inspection_failed) as told:
        controller.inspect_model(FIRST)
    path, notice = told.args
    assert (path, notice.code) == (FIRST, "fault")


# The event loop


def test_the_event_loop_never_stalls_during_a_whole_session(qtbot, controller, script, stall_meter) -> None:
    script.pieces = [f"word{number} " for number in range(3_000)]
    with qtbot.waitSignal(controller.conversation_opened):
        controller.start(FIRST)
    qtbot.waitUntil(lambda: controller.model_state.phase is ModelPhase.READY)
    stall_meter.start()
    with qtbot.waitSignal(
        controller.answering_changed, check_params_cb=lambda answering: not answering, timeout=20_000
    ):
        controller.send_message("Hi")
    with qtbot.waitSignal(controller.conversation_opened):
        controller.open_conversation(controller.current_conversation_id)
    assert stall_meter.stop() < 100
