"""Editing, answering anew, paging and forking: everything stays, and the model reads what is shown."""

from __future__ import annotations

import threading

import pytest
from controller_steps import begin, codes, delete_for_good, load, only, send, start, watch

from app.chat_sampling import CHAT_SAMPLING
from app.context_policy import ContextPolicy
from app.controller import ChatController
from app.conversations import Conversation, ConversationStore, Message, MessageStatus, StoreError
from engine.generation import PrefillStats, ReuseReason


@pytest.fixture
def events(controller: ChatController, record) -> list[tuple]:
    return watch(controller, record)


def shown(qtbot, controller: ChatController) -> tuple[Message, ...]:
    """What is on disk of the open conversation."""
    with qtbot.waitSignal(controller.conversation_opened) as opened:
        controller.open_conversation(controller.current_conversation_id)
    return opened.args[0].messages


def texts(messages: tuple[Message, ...]) -> list[str]:
    return [message.text for message in messages]


def branch(events: list[tuple]) -> Conversation:
    return only(events, "branch_shown")[-1][1]


def edit(qtbot, controller: ChatController, message_id: str, text: str) -> None:
    with qtbot.waitSignal(controller.answering_changed, check_params_cb=lambda answering: not answering):
        controller.edit_message(message_id, text)


def regenerate(qtbot, controller: ChatController, message_id: str) -> None:
    with qtbot.waitSignal(controller.answering_changed, check_params_cb=lambda answering: not answering):
        controller.regenerate_answer(message_id)


@pytest.fixture
def chat(qtbot, controller: ChatController, events, script) -> tuple[Message, ...]:
    """Two turns, with an answer of their own each."""
    start(qtbot, controller)
    script.pieces = ["first"]
    send(qtbot, controller, "one")
    script.pieces = ["second"]
    send(qtbot, controller, "two")
    messages = shown(qtbot, controller)
    assert texts(messages) == ["one", "first", "two", "second"]
    script.pieces = ["other"]
    del events[:], script.prompts[:], script.requests[:]
    return messages


def test_an_edited_message_is_answered_in_the_place_of_the_old_one_which_can_be_paged_back_to(
    qtbot, controller, events, script, chat
) -> None:
    edit(qtbot, controller, chat[0].id, "uno")
    order = list(dict.fromkeys(event[0] for event in events))
    assert order[:5] == [
        "send_accepted",
        "conversations_changed",
        "branch_shown",
        "answer_started",
        "answering_changed",
    ]
    (question,) = branch(events).messages
    assert (question.text, question.version, question.versions) == ("uno", 2, 2)
    assert script.prompts == [[("user", "uno")]]
    assert script.requests[0].conversation == controller.current_conversation_id
    assert texts(shown(qtbot, controller)) == ["uno", "other"]
    with qtbot.waitSignal(controller.branch_shown):
        controller.select_version(question.id, -1)
    assert texts(branch(events).messages) == ["one", "first", "two", "second"]
    send(qtbot, controller, "three")
    assert script.prompts[-1][-1] == ("user", "three")
    assert len(script.prompts[-1]) == 5, "the model reads what is shown"


def test_an_answer_anew_keeps_the_old_one_and_draws_with_another_seed(
    qtbot, controller, events, script, chat
) -> None:
    for _ in range(2):
        regenerate(qtbot, controller, chat[3].id)
    assert "send_accepted" not in [event[0] for event in events]
    assert script.prompts == [[("user", "one"), ("assistant", "first"), ("user", "two")]] * 2
    seeds = [request.sampling.seed for request in script.requests]
    assert None not in seeds
    assert len(set(seeds)) == 2
    assert script.requests[0].sampling.temperature == CHAT_SAMPLING.temperature
    last = shown(qtbot, controller)[-1]
    assert (last.text, last.version, last.versions) == ("other", 3, 3)
    with qtbot.waitSignal(controller.branch_shown):
        controller.select_version(last.id, -2)
    assert texts(branch(events).messages)[-1] == "second"


def test_an_earlier_answer_anew_ends_the_path_there(qtbot, controller, events, script, chat) -> None:
    regenerate(qtbot, controller, chat[1].id)
    assert script.prompts == [[("user", "one")]]
    assert texts(branch(events).messages) == ["one"], "the answer itself follows as it is written"
    assert texts(shown(qtbot, controller)) == ["one", "other"]


def test_a_fork_is_opened_and_goes_its_own_way(qtbot, controller, events, script, chat) -> None:
    original_id = controller.current_conversation_id
    with qtbot.waitSignal(controller.conversation_opened) as opened:
        controller.fork_conversation(chat[1].id)
    fork = opened.args[0]
    assert fork.summary.title == "one (branch)"
    assert texts(fork.messages) == ["one", "first"]
    assert controller.current_conversation_id == fork.summary.id != original_id
    assert [one.title for one in only(events, "conversations_changed")[-1][1]] == ["one (branch)", "one"]
    send(qtbot, controller, "zwei")
    assert script.prompts[-1] == [("user", "one"), ("assistant", "first"), ("user", "zwei")]
    assert script.requests[0].conversation == fork.summary.id
    with qtbot.waitSignal(controller.conversation_opened) as opened:
        controller.open_conversation(original_id)
    assert texts(opened.args[0].messages) == ["one", "first", "two", "second"]


@pytest.mark.parametrize("waits", [True, False])
def test_a_fork_has_its_share_of_what_is_computed_before_the_original_is_deleted(
    waits: bool, qtbot, controller, script, chat
) -> None:
    """Also when the deletion is asked for before the fork is on disk."""
    original_id = controller.current_conversation_id
    if waits:
        with qtbot.waitSignal(controller.conversation_opened):
            controller.fork_conversation(chat[1].id)
    else:
        controller.fork_conversation(chat[1].id)
    with qtbot.waitSignal(controller.slots_changed, check_params_cb=lambda _: bool(script.forgotten)):
        delete_for_good(qtbot, controller, original_id)
    send(qtbot, controller, "zwei")
    assert script.forked == [(controller.current_conversation_id, (1, 2, 3))]
    assert set(script.forgotten) == {original_id} != {controller.current_conversation_id}
    assert script.calls[:2] == ["fork", "forget"]
    assert script.prompts[0] == [("user", "one"), ("assistant", "first"), ("user", "?")], "as the next turn's"


def test_a_fork_behind_a_question_shares_it_as_another_question_follows(
    qtbot, controller, script, chat
) -> None:
    with qtbot.waitSignal(controller.slots_changed, check_params_cb=lambda _: bool(script.forked)):
        controller.fork_conversation(chat[2].id)
    assert script.prompts == [
        [("user", "one"), ("assistant", "first"), ("user", "two"), ("user", "?")],
    ]


def test_an_answer_that_is_not_on_disk_yet_is_in_the_fork(
    qtbot, controller, script, events, monkeypatch
) -> None:
    start(qtbot, controller)

    def fail(*_arguments, **_options) -> None:
        raise StoreError("disk-full", "It could not be saved.", "Free some space.")

    with monkeypatch.context() as full:
        full.setattr(ConversationStore, "finish_answer", fail)
        send(qtbot, controller, "one")
    answer = only(events, "answer_finished")[-1][2]
    with qtbot.waitSignal(controller.conversation_opened) as opened:
        controller.fork_conversation(answer.id)
    assert texts(opened.args[0].messages) == ["one", "Hello there"]
    assert opened.args[0].messages[-1].status is MessageStatus.COMPLETE


def test_while_an_answer_is_written_its_conversation_takes_no_other(
    qtbot, controller, events, script
) -> None:
    start(qtbot, controller)
    gate = begin(qtbot, controller, script, "one")
    question = only(events, "message_added")[-1][2]
    answer = only(events, "answer_started")[-1][2]
    controller.edit_message(question.id, "uno")
    assert events[-1][:2] == ("send_rejected", "uno")
    assert events[-1][2].code == "answer-in-progress"
    for verb in (controller.regenerate_answer, controller.fork_conversation):
        verb(answer.id)
        assert events[-1][0] == "notice_raised"
        assert events[-1][1].code == "answer-in-progress"
    with qtbot.waitSignal(controller.answering_changed):
        gate.set()
    assert texts(shown(qtbot, controller)) == ["one", "Hello there"]


def test_paging_while_an_answer_is_written_lets_it_go_on_in_its_own_version(
    qtbot, controller, events, script
) -> None:
    start(qtbot, controller)
    send(qtbot, controller, "one")
    first = only(events, "answer_finished")[-1][2]
    gate = script.gates[1] = threading.Event()
    with qtbot.waitSignal(controller.answer_extended):
        controller.regenerate_answer(first.id)
    growing = only(events, "answer_started")[-1][2]
    with qtbot.waitSignal(controller.branch_shown):
        controller.select_version(growing.id, -1)
    assert branch(events).messages[-1].text == "Hello there"
    with qtbot.waitSignal(controller.branch_shown):
        controller.select_version(first.id, +1)
    back = branch(events).messages[-1]
    assert (back.id, back.text, back.status) == (growing.id, "Hel", MessageStatus.WRITING)
    with qtbot.waitSignal(controller.answer_finished) as finished:
        gate.set()
    assert (finished.args[1].version, finished.args[1].versions) == (2, 2)


def test_without_a_model_an_edit_keeps_its_text_and_an_answer_anew_is_told(
    qtbot, controller, events, script, chat
) -> None:
    with qtbot.waitSignal(controller.model_state_changed):
        controller.unload_model()
    controller.edit_message(chat[0].id, "uno")
    assert events[-1][:2] == ("send_rejected", "uno")
    controller.regenerate_answer(chat[1].id)
    assert codes(events)[-1] == "no-model"
    controller.edit_message(chat[0].id, "  ")
    assert events[-1][2].code == "empty-message"
    assert script.prompts == []


def test_a_change_that_cannot_be_saved_shows_nothing(
    qtbot, controller, events, script, chat, monkeypatch
) -> None:
    def fail(*_arguments, **_options) -> None:
        raise StoreError("disk-full", "It could not be saved.", "Free some space.")

    for name in ("begin_edit", "begin_regeneration", "fork", "select_version"):
        monkeypatch.setattr(ConversationStore, name, fail)
    with qtbot.waitSignal(controller.send_rejected):
        controller.edit_message(chat[0].id, "uno")
    for verb in (
        lambda: controller.regenerate_answer(chat[1].id),
        lambda: controller.fork_conversation(chat[1].id),
        lambda: controller.select_version(chat[1].id, 1),
    ):
        with qtbot.waitSignal(controller.notice_raised):
            verb()
    assert only(events, "branch_shown", "conversation_opened", "answer_started") == []
    assert script.prompts == []
    monkeypatch.undo()
    edit(qtbot, controller, chat[0].id, "uno")
    assert texts(shown(qtbot, controller)) == ["uno", "other"]


def test_an_edit_that_is_saved_when_another_chat_is_open_does_not_show_itself_there(
    qtbot, controller, events, chat
) -> None:
    with qtbot.waitSignal(controller.answer_finished):
        controller.edit_message(chat[0].id, "uno")
        controller.new_conversation()
    assert only(events, "branch_shown") == []
    assert controller.current_conversation_id is None


def test_why_little_was_reused_and_what_was_left_out_is_on_disk_with_the_answer(
    qtbot, controller, events, script, record
) -> None:
    told = record(left_out=controller.messages_left_out, prefilled=controller.answer_prefilled)
    script.counts_words = True
    script.prefill = PrefillStats(40, 3, 0.1, reason=ReuseReason.HISTORY_REWRITTEN, diverged_at=3)
    start(qtbot, controller)
    controller.update_settings(context_policy=ContextPolicy.DROP_OLDEST)
    for number in range(6):
        send(qtbot, controller, f"{number} " + "word " * 12)
    last = shown(qtbot, controller)[-1]
    conversation_id = controller.current_conversation_id
    assert last.stats.left_out == 8
    assert (last.stats.reuse_reason, last.stats.diverged_at) == ("context-policy", 3)
    assert told[-2:] == [
        ("left_out", conversation_id, 8),
        ("prefilled", conversation_id, PrefillStats(40, 3, 0.1, ReuseReason.CONTEXT_POLICY, 3)),
    ]
    send(qtbot, controller, "short")
    last = shown(qtbot, controller)[-1]
    assert (last.stats.left_out, last.stats.reuse_reason) == (8, "history-rewritten"), "the cut stays"


def test_a_full_context_ends_the_answer_where_nothing_may_be_left_out(
    qtbot, controller, events, script
) -> None:
    script.counts_words = True
    start(qtbot, controller)
    for number in range(6):
        send(qtbot, controller, f"{number} " + "word " * 25)
    last = shown(qtbot, controller)[-1]
    assert (last.status, last.stats.left_out) == (MessageStatus.FAILED, 0)
    assert "context-full" in codes(events)
    load(qtbot, controller, controller.model_state.path)
