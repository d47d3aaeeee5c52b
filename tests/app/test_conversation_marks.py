"""Pins, tags, unread marks, drafts, and deletions that can be undone."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_steps import delete

from app.attachments import Attachment
from app.conversation_marks import MAX_TAG_LENGTH, tag_name
from app.conversations import ConversationStore, MessageStatus, StoreError
from app.draft_files import DraftFiles

FILES = DraftFiles((Attachment("鸟.txt", "红隼"), Attachment("a.pdf", "x", pages=3)), ("too large.txt",))


def titles(store: ConversationStore) -> list[str]:
    return [summary.title for summary in store.summaries()]


def test_marks_are_there_again_after_a_start(store: ConversationStore, path: Path) -> None:
    kept, other = store.create("kept").id, store.create("other").id
    store.marks.set_pinned([kept], True)
    store.marks.set_unread(kept, True)
    store.marks.tag([kept, other], "birds")
    store.marks.tag([kept], "鸟")
    store.marks.save_drafts({kept: "half a question", "": "a new chat's"})
    store.close()

    store = ConversationStore(path)
    summaries = {summary.title: summary for summary in store.summaries()}
    assert summaries["kept"].pinned
    assert summaries["kept"].unread
    assert summaries["kept"].tags == ("birds", "鸟")
    assert not summaries["other"].pinned
    assert not summaries["other"].unread
    assert summaries["other"].tags == ("birds",)
    assert store.drafts() == {kept: "half a question", "": "a new chat's"}
    store.close()


def test_no_mark_moves_a_conversation_to_the_top(store: ConversationStore) -> None:
    old = store.create("old").id
    store.create("new")
    store.marks.set_pinned([old], True)
    store.marks.set_unread(old, True)
    store.marks.tag([old], "birds")
    assert titles(store) == ["new", "old"]


def test_a_tag_in_other_letters_is_the_same_tag(store: ConversationStore) -> None:
    first, second = store.create("first").id, store.create("second").id
    store.marks.tag([first], "Straße")
    store.marks.tag([second], "#STRASSE ")
    store.marks.tag([first], "straße")
    assert [summary.tags for summary in store.summaries()] == [("Straße",), ("Straße",)]
    store.marks.tag([first, second], "STRASSE", on=False)
    assert [summary.tags for summary in store.summaries()] == [(), ()]


@pytest.mark.parametrize(
    ("typed", "kept"),
    [("#birds", "birds"), (" two  words ", "two words"), ("###", ""), ("\u200b", ""), ("a\nb", "a b")],
)
def test_a_tag_is_one_line_without_its_sign(typed: str, kept: str) -> None:
    assert tag_name(typed) == kept


def test_a_tag_has_an_end() -> None:
    assert len(tag_name("x" * 1_000)) == MAX_TAG_LENGTH


def test_a_conversation_that_is_gone_gets_no_tag_and_no_draft(store: ConversationStore) -> None:
    gone = store.create("gone").id
    delete(store, gone)
    store.marks.tag([gone], "birds")
    store.marks.save_drafts({gone: "text"})
    assert store.drafts() == {}


def test_a_blank_draft_is_forgotten(store: ConversationStore) -> None:
    store.marks.save_drafts({"": "text"})
    store.marks.save_drafts({"": " \n"})
    assert store.drafts() == {}


def test_a_draft_goes_with_its_conversation(store: ConversationStore) -> None:
    conversation_id = store.create("one").id
    store.marks.save_drafts({conversation_id: "text", "": "kept"}, {conversation_id: FILES})
    store.marks.set_deleted([conversation_id])
    store.marks.delete([conversation_id])
    assert store.drafts() == {"": "kept"}


def test_files_and_text_of_a_draft_come_and_go_each_by_itself(store) -> None:
    marks = store.marks
    marks.save_drafts({"": "text"}, {"": FILES})
    marks.save_drafts({"": " "})
    assert (store.drafts(), store.draft_files()) == ({}, {"": FILES})
    marks.save_drafts({"": "more"})
    assert (store.drafts(), store.draft_files()) == ({"": "more"}, {"": FILES})
    marks.save_drafts({}, {"": DraftFiles()})
    assert (store.drafts(), store.draft_files()) == ({"": "more"}, {})
    marks.save_drafts({"": ""}, {"a chat that is gone": FILES})
    assert (store.drafts(), store.draft_files()) == ({}, {})


def test_a_deletion_that_is_undone_has_lost_nothing(store: ConversationStore) -> None:
    exchange = store.begin_exchange(None, "What is a kestrel?")
    store.finish_answer(exchange.answer.id, text="A falcon.", status=MessageStatus.COMPLETE)
    conversation_id = exchange.summary.id
    store.marks.tag([conversation_id], "birds")
    before = store.conversation(conversation_id)

    store.marks.set_deleted([conversation_id])
    assert store.summaries() == []
    assert store.all_ids() == [conversation_id]  # what the engine keeps of it stays, too
    with pytest.raises(StoreError, match="has been deleted"):
        store.conversation(conversation_id)
    store.marks.restore([conversation_id])

    assert store.conversation(conversation_id) == before


def test_what_was_brought_back_is_not_deleted_by_the_end_of_the_undo(store: ConversationStore) -> None:
    conversation_id = store.create("one").id
    store.marks.set_deleted([conversation_id])
    store.marks.restore([conversation_id])
    store.marks.delete([conversation_id])
    assert titles(store) == ["one"]


def test_a_deletion_of_a_window_that_is_still_there_can_be_undone_beside_another_start(
    store: ConversationStore, path: Path
) -> None:
    conversation_id = store.create("one").id
    store.marks.set_deleted([conversation_id])
    other = ConversationStore(path)
    assert other.summaries() == []
    other.close()
    store.marks.restore([conversation_id])
    assert titles(store) == ["one"]


def test_a_deletion_ends_with_its_window(store: ConversationStore, path: Path) -> None:
    store.marks.set_deleted([store.create("one").id])
    store.close()
    reopened = ConversationStore(path)
    assert reopened.all_ids() == []
    reopened.close()


def test_an_answer_that_ends_after_the_deletion_is_there_when_it_is_undone(store: ConversationStore) -> None:
    exchange = store.begin_exchange(None, "What is a kestrel?")
    store.marks.set_deleted([exchange.summary.id])
    store.finish_answer(exchange.answer.id, text="A fal", status=MessageStatus.STOPPED)
    store.marks.restore([exchange.summary.id])
    assert store.conversation(exchange.summary.id).messages[-1].text == "A fal"
