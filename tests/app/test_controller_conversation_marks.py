"""Deleting with undo, unread marks, drafts, search, exports and imports, through the controller."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from app.archive import ArchivedConversation, ArchivedMessage
from app.conversations import ConversationStore, MessageStatus
from app.export_json import as_json
from app.transfer_session import ExportFormat


@pytest.fixture
def store_path(app_paths) -> Path:
    return app_paths.conversations_file


@pytest.fixture
def written(store_path: Path) -> list[str]:
    """Ids of two conversations on disk, before the program starts."""
    store = ConversationStore(store_path)
    ids = []
    for question in ("What is a kestrel?", "红隼是什么？"):
        exchange = store.begin_exchange(None, question)
        store.finish_answer(exchange.answer.id, text="A falcon.", status=MessageStatus.COMPLETE)
        ids.append(exchange.summary.id)
    store.close()
    return ids


@pytest.fixture
def started(qtbot, controller, written):
    with qtbot.waitSignal(controller.conversations_changed):
        controller.start()
    return controller


def on_disk(store_path: Path) -> list[str]:
    store = ConversationStore(store_path)
    ids = store.all_ids()
    store.close()
    return ids


def test_a_deletion_hides_and_an_undo_brings_back(qtbot, started, written) -> None:
    with qtbot.waitSignal(started.conversation_opened):
        started.open_conversation(written[0])
    listed: list[set[str]] = []
    with qtbot.waitSignal(started.trash.changed) as deleted:
        started.trash.delete(written)
    assert deleted.args[0].ids == tuple(written)
    assert started.current_conversation_id is None
    with qtbot.waitSignals([back := started.conversations_changed, started.conversation_opened]):
        back.connect(lambda summaries: listed.append({summary.id for summary in summaries}))
        started.trash.undo()
    assert listed == [set(written)]
    assert started.current_conversation_id == written[0]


def test_nothing_is_lost_until_the_undo_is_gone(qtbot, started, written, script, store_path) -> None:
    with qtbot.waitSignal(started.trash.changed):
        started.trash.delete([written[0]])
    assert started.trash.last is not None
    reader = ConversationStore(store_path)
    assert set(reader.all_ids()) == set(written)
    with qtbot.waitSignal(started.conversations_changed):
        started.trash.delete([written[1]])  # ends the first undo
    qtbot.waitUntil(lambda: reader.all_ids() == [written[1]])
    reader.close()
    assert started.trash.last.ids == (written[1],)


def test_the_end_of_the_program_ends_the_undo(qtbot, started, written, store_path) -> None:
    with qtbot.waitSignal(started.trash.changed):
        started.trash.delete([written[0]])
    assert started.shutdown()
    assert on_disk(store_path) == [written[1]]


def open_with_a_model_that_waits(
    qtbot, controller, script, conversation_id: str, model: Path
) -> threading.Event:
    """Its next answer stops behind the first words, until the event that this gives is set."""
    script.gates[1] = gate = threading.Event()
    controller.load_model(model)
    qtbot.waitUntil(lambda: controller.model_state.summary is not None)
    with qtbot.waitSignal(controller.conversation_opened):
        controller.open_conversation(conversation_id)
    return gate


def test_an_answer_in_a_deleted_conversation_is_stopped_and_comes_back(
    qtbot, started, written, script, tmp_path
) -> None:
    open_with_a_model_that_waits(qtbot, started, script, written[0], tmp_path / "model")
    with qtbot.waitSignal(started.answer_extended):
        started.send_message("and now?")
    with qtbot.waitSignals([started.trash.changed, started.answer_finished]):
        started.trash.delete([written[0]])
    with qtbot.waitSignal(started.conversation_opened) as opened:
        started.trash.undo()
    assert opened.args[0].messages[-1].text == "Hel"
    assert opened.args[0].messages[-1].status is MessageStatus.STOPPED


def test_an_answer_that_ends_in_the_background_marks_its_conversation(
    qtbot, started, written, script, tmp_path
) -> None:
    gate = open_with_a_model_that_waits(qtbot, started, script, written[0], tmp_path / "model")
    with qtbot.waitSignal(started.answer_started):
        started.send_message("and now?")
    with qtbot.waitSignal(started.conversation_opened):
        started.open_conversation(written[1])

    def is_unread(expected: bool):
        return lambda summaries: (
            {one.id: one.unread for one in summaries}
            == {
                written[0]: expected,
                written[1]: False,
            }
        )

    with qtbot.waitSignal(started.conversations_changed, check_params_cb=is_unread(True)):
        gate.set()
    with qtbot.waitSignal(started.conversations_changed, check_params_cb=is_unread(False)):
        started.open_conversation(written[0])


def test_an_answer_that_ends_where_a_person_looks_is_read(
    qtbot, started, written, script, tmp_path, record
) -> None:
    started.load_model(tmp_path / "model")
    qtbot.waitUntil(lambda: started.model_state.summary is not None)
    with qtbot.waitSignal(started.conversation_opened):
        started.open_conversation(written[0])
    seen = record(changed=started.conversations_changed)
    with qtbot.waitSignal(started.answering_changed, check_params_cb=lambda active: not active):
        started.send_message("and now?")
    qtbot.waitUntil(lambda: len(seen) >= 2)
    assert not any(one.unread for _, summaries in seen for one in summaries)


def test_drafts_are_there_after_a_start(qtbot, started, written, make_controller) -> None:
    started.drafts.keep(None, "a new chat")
    started.drafts.keep(written[0], "half a question")
    started.drafts.keep(written[0], "half a question 红")
    assert started.drafts.text(written[0]) == "half a question 红"
    assert started.shutdown()
    again = make_controller()
    with qtbot.waitSignal(again.drafts_read):
        again.start()
    assert again.drafts.text(None) == "a new chat"
    assert again.drafts.text(written[0]) == "half a question 红"
    assert again.drafts.text(written[1]) == ""


def test_only_the_last_search_is_answered(qtbot, started, written, record) -> None:
    seen = record(found=started.search.found)
    with qtbot.waitSignal(started.search.found, check_params_cb=lambda result: result.query == "红隼"):
        for query in ("k", "ke", "kestrel", "红", "红隼"):
            started.search.search(query)
    assert [result.query for _, result in seen] == ["红隼"]
    (hit,) = seen[0][1].conversations
    assert hit.id == written[1]
    with qtbot.waitSignal(started.message_shown) as shown:
        started.open_message(hit.messages[0].id)
    assert shown.args == [hit.messages[0].id]
    assert started.current_conversation_id == written[1]


def test_a_hit_on_another_branch_shows_that_branch(qtbot, started, written, record) -> None:
    with qtbot.waitSignal(started.conversation_opened) as opened:
        started.open_conversation(written[0])
    hidden = opened.args[0].messages[1].id
    store = ConversationStore(started.folders.chats / "conversations.sqlite3")
    again = store.begin_regeneration(hidden)
    store.finish_answer(again.answer.id, text="A bird.", status=MessageStatus.COMPLETE)
    store.close()
    seen = record(branch=started.branch_shown, opened=started.conversation_opened)
    with qtbot.waitSignal(started.message_shown):
        started.open_message(hidden)
    ((name, conversation),) = seen
    assert name == "branch"
    assert [message.id for message in conversation.messages][-1] == hidden


def test_a_message_that_is_gone_is_told(qtbot, started, written) -> None:
    with qtbot.waitSignal(started.notice_raised) as told:
        started.open_message("gone")
    assert told.args[0].code == "message-gone"


@pytest.mark.parametrize("form", list(ExportFormat))
def test_what_was_exported_is_in_the_file(qtbot, started, written, tmp_path, form) -> None:
    target = tmp_path / "out 红.txt"
    with qtbot.waitSignal(started.transfer.notice_raised) as told:
        started.transfer.export(written, target, form)
    assert told.args[0].code == "conversations-exported"
    text = target.read_text(encoding="utf-8")
    assert "红隼是什么？" in text
    if form is ExportFormat.JSON:
        assert [one["title"] for one in json.loads(text)] == ["What is a kestrel?", "红隼是什么？"]


def test_an_export_that_fails_is_told(qtbot, started, written, tmp_path) -> None:
    target = tmp_path / "no folder" / "out.md"
    (tmp_path / "no folder").write_text("a file")
    with qtbot.waitSignal(started.transfer.notice_raised) as told:
        started.transfer.export(written, target, ExportFormat.MARKDOWN)
    assert told.args[0].code == "system-error"


def test_an_import_adds_what_is_sound_and_refuses_the_rest(qtbot, started, written, tmp_path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    message = ArchivedMessage("q", None, "user", "Imported?")
    good.write_text(as_json(ArchivedConversation("Imported", (message,))), encoding="utf-8")
    bad.write_text("Dear diary", encoding="utf-8")
    codes: list[str] = []
    started.notice_raised.connect(lambda notice: codes.append(notice.code))
    with qtbot.waitSignal(started.conversations_changed) as changed:
        started.transfer.import_files([bad, good])
    assert changed.args[0][0].title == "Imported"
    qtbot.waitUntil(lambda: sorted(codes) == ["conversations-imported", "import-refused"])


def test_pins_and_tags_are_listed(qtbot, started, written) -> None:
    with qtbot.waitSignal(started.conversations_changed) as changed:
        started.pin_conversations([written[0]], True)
    assert {one.id: one.pinned for one in changed.args[0]} == {written[0]: True, written[1]: False}
    with qtbot.waitSignal(started.conversations_changed) as changed:
        started.tag_conversations(written, "birds", on=True)
    assert [one.tags for one in changed.args[0]] == [("birds",), ("birds",)]
