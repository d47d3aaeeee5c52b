"""Switching, renaming and deleting conversations, on a fake engine: nothing that is shown is lost."""

from __future__ import annotations

import pytest
from controller_steps import begin, codes, delete_for_good, failing, on_disk, only, send, start, watch
from store_steps import delete

from app.controller import ChatController
from app.conversation_marks import ConversationMarks
from app.conversations import ConversationStore, MessageStatus


@pytest.fixture
def events(controller: ChatController, record) -> list[tuple]:
    return watch(controller, record)


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
        delete_for_good(qtbot, controller, gone_id)
    assert controller.current_conversation_id is None
    assert codes(events) == []
    qtbot.waitUntil(lambda: len(script.forgotten) >= 2)  # before the messages, and behind them
    assert set(script.forgotten) == {gone_id}
    kept, *stopped = only(events, "answer_finished")  # the deleted one's may come while it is only hidden
    assert kept[1] == kept_id
    assert {(of, message.status) for _, of, message in stopped} <= {(gone_id, MessageStatus.STOPPED)}
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
    delete_for_good(qtbot, controller, gone_id)
    assert controller.shutdown()
    assert script.forgotten == [gone_id]
    store = ConversationStore(app_paths.conversations_file)
    assert store.summaries() == []
    store.close()


def test_a_conversation_that_another_window_deletes_while_it_is_answered_leaves_nothing(
    qtbot, controller, script, app_paths
) -> None:
    start(qtbot, controller)
    gate = begin(qtbot, controller, script, "Hi")
    conversation_id = controller.current_conversation_id
    store = ConversationStore(app_paths.conversations_file)
    delete(store, conversation_id)
    store.close()
    with qtbot.waitSignal(controller.notice_raised) as told:
        gate.set()
    assert told.args[0].code == "conversation-gone"
    qtbot.waitUntil(lambda: script.forgotten == [conversation_id])


def test_a_deletion_that_fails_is_told_and_the_stopped_answer_is_kept(
    qtbot, controller, events, script, app_paths, monkeypatch
) -> None:
    start(qtbot, controller)
    begin(qtbot, controller, script, "Hi")
    conversation_id = controller.current_conversation_id
    monkeypatch.setattr(ConversationMarks, "set_deleted", failing("store-locked"))
    with qtbot.waitSignal(controller.answering_changed, check_params_cb=lambda answering: not answering):
        controller.trash.delete([conversation_id])
    assert codes(events) == ["store-locked"]
    assert controller.current_conversation_id == conversation_id
    assert on_disk(app_paths, conversation_id)[1] == ("assistant", "Hel", MessageStatus.STOPPED)


def test_a_deletion_for_good_that_fails_is_told_and_the_messages_are_still_there(
    qtbot, controller, events, app_paths, monkeypatch
) -> None:
    start(qtbot, controller)
    send(qtbot, controller, "Hi")
    conversation_id = controller.current_conversation_id
    monkeypatch.setattr(ConversationMarks, "delete", failing("store-locked"))
    with qtbot.waitSignal(controller.notice_raised):
        delete_for_good(qtbot, controller, conversation_id)
    assert codes(events) == ["store-locked"]
    assert len(on_disk(app_paths, conversation_id)) == 2


def test_deleting_another_conversation_leaves_the_answer_alone(qtbot, controller, script, app_paths) -> None:
    start(qtbot, controller)
    send(qtbot, controller, "other")
    other_id = controller.current_conversation_id
    controller.new_conversation()
    gate = begin(qtbot, controller, script, "mine")
    mine_id = controller.current_conversation_id
    with qtbot.waitSignal(controller.conversations_changed):
        controller.trash.delete([other_id])
    with qtbot.waitSignal(controller.answer_finished):
        gate.set()
    assert controller.current_conversation_id == mine_id
    assert on_disk(app_paths, mine_id)[1] == ("assistant", "Hello there", MessageStatus.COMPLETE)


def test_opening_a_conversation_that_is_gone_is_told(qtbot, controller) -> None:
    start(qtbot, controller)
    with qtbot.waitSignal(controller.notice_raised) as told:
        controller.open_conversation("no such id")
    assert told.args[0].code == "conversation-gone"
