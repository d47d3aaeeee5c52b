"""Messages and their answers, on a fake engine: what is shown is on disk, and nothing is lost or blocked."""

from __future__ import annotations

import threading

import pytest
from controller_steps import FIRST, begin, codes, failing, on_disk, only, rejected, send, start, watch

from app import answer as answer_module
from app.chat_sampling import chat_sampling
from app.controller import ChatController, ModelPhase
from app.conversations import ConversationStore, MessageStatus, StoreError
from engine.errors import ContextFullError, ModelFileError
from engine.generation import SamplingParams
from engine.notices import Notice


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
