"""What is chosen for a conversation, and files that came with its messages, in the store."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from store_steps import delete

from app.attachments import Attachment
from app.chat_sampling import SamplingChoice
from app.chat_settings import ChatSettings
from app.conversations import ConversationStore, MessageStatus, StoreError

POET = ChatSettings("Write in verse.", SamplingChoice(temperature=0.9, stop=("END",)))
FILES = (Attachment("notes.md", "# Notes\nkestrel 红隼\n"), Attachment("paper.pdf", "Abstract", 3))


def test_what_is_chosen_before_the_first_message_is_saved_with_it(store: ConversationStore) -> None:
    exchange = store.begin_exchange(None, "Hi", settings=POET)
    assert exchange.settings == POET
    assert store.conversation(exchange.summary.id).settings == POET


def test_a_later_message_changes_nothing_that_is_chosen(store: ConversationStore) -> None:
    first = store.begin_exchange(None, "Hi", settings=POET)
    second = store.begin_exchange(first.summary.id, "And?", settings=ChatSettings())
    assert second.settings == POET
    store.change_settings(first.summary.id, ChatSettings("Be brief."))
    assert store.begin_regeneration(second.answer.id).settings == ChatSettings("Be brief.")
    store.change_settings(first.summary.id, ChatSettings())
    assert store.conversation(first.summary.id).settings == ChatSettings()


def test_files_come_back_with_their_message_and_its_answer_reads_them(store: ConversationStore) -> None:
    exchange = store.begin_exchange(None, "What is this?", attachments=FILES)
    assert exchange.history[-1].attachments == FILES
    question, answer = store.conversation(exchange.summary.id).messages
    assert question.attachments == FILES
    assert answer.attachments == ()


def test_an_edited_message_has_the_files_it_was_sent_with(store: ConversationStore) -> None:
    first = store.begin_exchange(None, "What is this?", attachments=FILES)
    edit = store.begin_edit(first.question.id, "And this?", attachments=FILES[:1])
    assert edit.question.attachments == FILES[:1]
    assert store.select_version(edit.question.id, -1).messages[0].attachments == FILES


def test_a_branch_has_a_copy_of_files_and_of_what_is_chosen(store: ConversationStore) -> None:
    exchange = store.begin_exchange(None, "What is this?", attachments=FILES, settings=POET)
    branch = store.fork(exchange.question.id)
    assert branch.settings == POET
    assert branch.messages[0].attachments == FILES
    store.change_settings(branch.summary.id, ChatSettings())
    delete(store, branch.summary.id)
    assert store.conversation(exchange.summary.id).settings == POET
    assert store.conversation(exchange.summary.id).messages[0].attachments == FILES


def test_a_message_of_files_alone_names_its_conversation(store: ConversationStore) -> None:
    assert store.begin_exchange(None, "", attachments=FILES).summary.title == "notes.md"
    assert store.begin_exchange(None, "Sum up", attachments=FILES).summary.title == "Sum up"


def test_settings_of_a_conversation_that_is_gone_are_a_sentence(store: ConversationStore) -> None:
    with pytest.raises(StoreError, match="has been deleted"):
        store.change_settings("gone", POET)


def test_damaged_values_leave_the_conversation_readable(path: Path, store: ConversationStore) -> None:
    exchange = store.begin_exchange(None, "Hi", attachments=FILES, settings=POET)
    store.finish_answer(exchange.answer.id, text="Ho", status=MessageStatus.COMPLETE)
    raw = sqlite3.connect(path)
    raw.execute("UPDATE messages SET attachments = '[{'")
    raw.execute("UPDATE conversations SET settings = '7'")
    raw.commit()
    raw.close()
    conversation = store.conversation(exchange.summary.id)
    assert conversation.settings == ChatSettings()
    assert [(one.text, one.attachments) for one in conversation.messages] == [("Hi", ()), ("Ho", ())]
