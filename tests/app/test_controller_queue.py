"""Answers in several conversations: one is written, the others wait their turn and can be called off."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from controller_steps import begin, delete_for_good, load, on_disk, only, start, watch

from app.controller import Answering, ChatController, ModelPhase
from app.conversations import ConversationStore, MessageStatus


@pytest.fixture
def events(controller: ChatController, record) -> list[tuple]:
    return watch(controller, record)


@pytest.fixture
def writing(qtbot, controller: ChatController, events, script) -> threading.Event:
    """An answer is being written; what is open is a new chat. Opening the gate lets it end."""
    start(qtbot, controller)
    gate = begin(qtbot, controller, script, "one")
    controller.new_conversation()
    return gate


def send_waiting(qtbot, controller: ChatController, text: str) -> str:
    """Send in the open chat while another is answered; its id."""
    with qtbot.waitSignal(controller.answer_waiting) as waiting:
        controller.send_message(text)
    return waiting.args[0]


def finished(events: list[tuple]) -> list[str]:
    return [event[1] for event in only(events, "answer_finished")]


def test_a_message_in_another_chat_is_on_disk_at_once_and_answered_when_its_turn_comes(
    qtbot, controller, events, script, writing, app_paths
) -> None:
    first = controller.answers.writing
    second = send_waiting(qtbot, controller, "two")
    assert controller.answers == Answering(first, (second,))
    message = only(events, "answer_waiting")[-1][2]
    assert (message.status, message.text) == (MessageStatus.WAITING, "")
    assert on_disk(app_paths, second) == [
        ("user", "two", MessageStatus.COMPLETE),
        ("assistant", "", MessageStatus.WRITING),  # a program that ended now would find it as interrupted
    ]
    with qtbot.waitSignal(controller.conversation_opened) as opened:
        controller.open_conversation(second)
    assert opened.args[0].messages[-1].status is MessageStatus.WAITING
    del events[:]
    writing.set()
    qtbot.waitUntil(lambda: finished(events) == [first, second])
    qtbot.waitUntil(lambda: not controller.answering)
    assert controller.answers == Answering()
    (started,) = only(events, "answer_started")
    assert started[2].id == message.id
    assert [prompt[-1] for prompt in script.prompts] == [("user", "one"), ("user", "two")]


def test_answers_come_in_the_order_in_which_they_were_asked_for(
    qtbot, controller, events, script, writing
) -> None:
    waiting = []
    for text in ("two", "three", "four"):
        waiting.append(send_waiting(qtbot, controller, text))
        controller.new_conversation()
    assert controller.answers.waiting == tuple(waiting)
    writing.set()
    qtbot.waitUntil(lambda: len(finished(events)) == 4)
    assert finished(events)[1:] == waiting


def test_an_answer_that_waits_can_be_called_off_and_the_one_that_is_written_goes_on(
    qtbot, controller, events, script, writing, app_paths
) -> None:
    second = send_waiting(qtbot, controller, "two")
    with qtbot.waitSignal(controller.answer_finished) as ended:
        controller.stop_answer()  # of the chat that is open
    assert (ended.args[0], ended.args[1].status) == (second, MessageStatus.STOPPED)
    assert on_disk(app_paths, second)[1] == ("assistant", "", MessageStatus.STOPPED)
    assert controller.answers.waiting == ()
    assert controller.answering
    with qtbot.waitSignal(controller.answer_finished) as ended:
        writing.set()
    assert ended.args[1].text == "Hello there"
    assert len(script.requests) == 1


def test_a_chat_whose_answer_waits_takes_no_second_message(
    qtbot, controller, events, script, writing
) -> None:
    send_waiting(qtbot, controller, "two")
    controller.send_message("and more")
    assert events[-1][:2] == ("send_rejected", "and more")
    assert events[-1][2].code == "answer-in-progress"
    writing.set()
    qtbot.waitUntil(lambda: len(finished(events)) == 2)


def test_deleting_a_chat_whose_answer_waits_leaves_the_others_alone(
    qtbot, controller, events, script, writing, app_paths
) -> None:
    second = send_waiting(qtbot, controller, "two")
    with qtbot.waitSignal(controller.conversation_opened):
        delete_for_good(qtbot, controller, second)
    assert controller.answers.waiting == ()
    qtbot.waitUntil(lambda: on_disk(app_paths, second) == [])
    with qtbot.waitSignal(controller.answering_changed):
        writing.set()
    assert len(script.requests) == 1
    assert [event[1].code for event in only(events, "notice_raised")] == []


def test_a_model_that_is_loaded_meanwhile_answers_what_waits(
    qtbot, controller, events, script, writing
) -> None:
    send_waiting(qtbot, controller, "two")
    script.load_gate = threading.Event()
    controller.load_model(Path("/models/second"))
    with qtbot.waitSignal(controller.answering_changed):
        writing.set()
    assert not controller.answering, "what waits isn't handed to a model that is on its way out"
    assert len(controller.answers.waiting) == 1
    with qtbot.waitSignal(controller.answering_changed, check_params_cb=lambda answering: not answering):
        script.load_gate.set()
    assert controller.model_state.phase is ModelPhase.READY
    assert len(script.requests) == 2
    assert script.closed == [Path("/models/first")]


def test_a_load_that_fails_lets_the_model_before_it_answer_what_waits(
    qtbot, controller, events, script, writing
) -> None:
    script.load_errors["second"] = RuntimeError("a bug")
    send_waiting(qtbot, controller, "two")
    controller.load_model(Path("/models/second"))
    writing.set()
    qtbot.waitUntil(lambda: len(finished(events)) == 2)
    assert script.closed == []


def test_unloading_ends_what_is_written_and_what_waits(qtbot, controller, events, script, writing) -> None:
    first = controller.answers.writing
    second = send_waiting(qtbot, controller, "two")
    with qtbot.waitSignal(
        controller.model_state_changed, check_params_cb=lambda state: state.phase is ModelPhase.NONE
    ):
        controller.unload_model()
    qtbot.waitUntil(lambda: set(finished(events)) == {first, second})
    assert {event[2].status for event in only(events, "answer_finished")} == {MessageStatus.STOPPED}
    qtbot.waitUntil(lambda: not controller.answering)
    load(qtbot, controller, Path("/models/first"))
    assert len(script.requests) == 1


def test_what_waits_when_the_program_ends_is_found_as_interrupted(
    qtbot, controller, events, script, writing, app_paths
) -> None:
    first = controller.answers.writing
    second = send_waiting(qtbot, controller, "two")
    assert controller.shutdown()
    assert len(script.requests) == 1
    store = ConversationStore(app_paths.conversations_file)
    assert store.conversation(first).messages[-1].status is MessageStatus.STOPPED
    question, answer = store.conversation(second).messages
    assert (question.text, answer.text, answer.status) == ("two", "", MessageStatus.INTERRUPTED)
    store.close()


def test_the_list_is_told_of_every_change(qtbot, controller, events, script, writing, record) -> None:
    told = record(answers=controller.answers_changed)
    first = controller.answers.writing
    second = send_waiting(qtbot, controller, "two")
    writing.set()
    qtbot.waitUntil(lambda: len(finished(events)) == 2 and not controller.answering)
    states = list(dict.fromkeys(state for _, state in told))
    assert states == [
        Answering(first, (second,)),
        Answering(None, (second,)),
        Answering(second),
        Answering(),
    ]


def test_the_slot_table_of_the_engine_reaches_the_window(qtbot, controller, script, record) -> None:
    tables = record(slots=controller.slots_changed)
    start(qtbot, controller)
    qtbot.waitUntil(lambda: bool(tables))
    assert tables[-1][1] == controller.slots
    assert controller.slots.memory_bytes > 0
