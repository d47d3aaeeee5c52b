"""The store: what is written is read back, for any text and any sequence of changes."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from store_steps import delete

from app.conversations import (
    AnswerStats,
    ConversationStore,
    Message,
    MessageStatus,
    StoreError,
)
from app.titles import MAX_TITLE_LENGTH, UNTITLED, title_from

STATS = AnswerStats(
    prompt_tokens=30,
    reused_tokens=20,
    prefill_seconds=0.5,
    decode_tokens=40,
    decode_seconds=2.0,
    finish_reason="end",
    device="cpu",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "conversations.sqlite3"


# What is written is read back


def test_an_exchange_is_on_disk_as_it_was_returned(store: ConversationStore, path: Path) -> None:
    exchange = store.begin_exchange(None, "What is a kestrel?", model_path=Path("/models/模型 1"))
    answer = store.finish_answer(
        exchange.answer.id, text="A falcon.", thinking="Bird?", status=MessageStatus.COMPLETE, stats=STATS
    )
    assert answer is not None
    assert exchange.history == (exchange.question,)
    store.close()

    reopened = ConversationStore(path)
    conversation = reopened.conversation(exchange.summary.id)
    assert conversation.messages == (exchange.question, answer)
    assert conversation.messages[1].stats == STATS
    assert conversation.summary.model_path == Path("/models/模型 1")
    assert conversation.summary.title == "What is a kestrel?"
    assert reopened.notices == ()
    reopened.close()


def test_the_history_of_an_exchange_is_everything_before_its_answer(store: ConversationStore) -> None:
    first = store.begin_exchange(None, "one")
    store.finish_answer(first.answer.id, text="1", status=MessageStatus.STOPPED)
    second = store.begin_exchange(first.summary.id, "two")
    assert [(message.role, message.text) for message in second.history] == [
        ("user", "one"),
        ("assistant", "1"),
        ("user", "two"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0 in the middle\0",
        "😀👩‍👩‍👧中ñ\u202eabc",
        "a" * 1_000_000,
        "'; DROP TABLE messages; --",
        "\r\n\t ",
    ],
    ids=["empty", "nul", "unicode", "a-million", "sql", "blank"],
)
def test_any_text_comes_back_unchanged(store: ConversationStore, text: str) -> None:
    conversation = store.create("chat")
    message = store.add_message(conversation.id, "user", text)
    assert store.conversation(conversation.id).messages == (message,)
    assert message.text == text


def test_halves_of_surrogate_pairs_are_joined_and_a_lone_half_is_replaced(store: ConversationStore) -> None:
    conversation = store.create("chat")
    assert store.add_message(conversation.id, "user", "\ud83d\ude00 \ud83d").text == "😀 \ufffd"


def test_the_list_begins_with_the_newest_message_even_when_the_clock_goes_back(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(10**9, 0, -1))
    monkeypatch.setattr("app.conversation_rows.now_us", lambda: next(ticks))
    first, second = store.create("first"), store.create("second")
    assert [summary.id for summary in store.summaries()] == [second.id, first.id]
    store.add_message(first.id, "user", "newer")
    assert [summary.id for summary in store.summaries()] == [first.id, second.id]


def test_deleting_a_conversation_deletes_its_messages_and_no_others(
    store: ConversationStore, path: Path
) -> None:
    gone, kept = store.begin_exchange(None, "gone"), store.begin_exchange(None, "kept")
    delete(store, gone.summary.id)
    delete(store, gone.summary.id)  # a second time is no error
    assert [summary.title for summary in store.summaries()] == ["kept"]
    assert len(store.conversation(kept.summary.id).messages) == 2
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT count(*) FROM messages").fetchone() == (2,)
    raw.close()


def test_an_answer_whose_conversation_was_deleted_is_written_nowhere(store: ConversationStore) -> None:
    exchange = store.begin_exchange(None, "hello")
    delete(store, exchange.summary.id)
    assert store.extend_answer(exchange.answer.id, text="late") is False
    assert store.finish_answer(exchange.answer.id, text="late", status=MessageStatus.COMPLETE) is None
    assert store.summaries() == []


@pytest.mark.parametrize("change", ["conversation", "rename", "add_message", "begin_exchange"])
def test_a_deleted_conversation_is_refused_by_name_and_not_made_again(
    store: ConversationStore, change: str
) -> None:
    conversation_id = store.create("chat").id
    delete(store, conversation_id)
    arguments = {
        "conversation": (),
        "rename": ("new name",),
        "add_message": ("user", "hi"),
        "begin_exchange": ("hi",),
    }
    with pytest.raises(StoreError) as caught:
        getattr(store, change)(conversation_id, *arguments[change])
    assert caught.value.code == "conversation-gone"
    assert store.summaries() == []


# Titles


@pytest.mark.parametrize(
    ("message", "title"),
    [
        ("Hello", "Hello"),
        ("\n  \n  Second   line\thas it\nand more", "Second line has it"),
        ("", ""),
        ("\n\t\n", ""),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 59 + "…"),
        ("word " * 11 + "abcd more", "word " * 11 + "abcd…"),
        ("word " * 11 + "abcdefgh", "word " * 10 + "word…"),
        ("为" * 100, "为" * 59 + "…"),
        ("👩‍👩‍👧 family", "👩‍👩‍👧 family"),
        ("turned \u202earound", "turned around"),
        ("\u200b\ufeff\u200d", ""),
        ("\u200b\n\u2800\nseen", "seen"),
        ("\u0301\u0301", ""),
        ("\u200fمرحبا", "\u200fمرحبا"),
        (" " * 2_000 + "after many spaces", "after many spaces"),
        ("a" + " " * 1_000_000 + "b", "a"),
        ("## A heading", "A heading"),
        ("> - quoted item", "quoted item"),
        ("1. first", "first"),
        ("```python\nprint(1)\n```", "print(1)"),
        ("-5 degrees, #tag and *stress*", "-5 degrees, #tag and *stress*"),
        ("# \n\nbelow", "below"),
    ],
)
def test_a_title_is_the_first_line_cut_at_a_word(message: str, title: str) -> None:
    assert title_from(message) == title
    assert len(title) <= 60


def test_only_the_first_user_message_names_a_conversation_and_never_one_that_a_person_named(
    store: ConversationStore,
) -> None:
    conversation = store.create()
    assert conversation.title == UNTITLED
    store.add_message(conversation.id, "system", "be kind")
    store.add_message(conversation.id, "user", "first question")
    store.add_message(conversation.id, "user", "second question")
    assert store.conversation(conversation.id).summary.title == "first question"
    assert store.rename(conversation.id, "  mine\nalone ").title == "mine alone"

    named = store.create("named")
    store.add_message(named.id, "user", "question")
    assert store.conversation(named.id).summary.title == "named"


def test_a_name_must_hold_something_and_a_long_one_is_cut(store: ConversationStore) -> None:
    conversation = store.create("before")
    with pytest.raises(StoreError, match="needs a name"):
        store.rename(conversation.id, " \n\u202e ")
    assert store.conversation(conversation.id).summary.title == "before"
    assert store.rename(conversation.id, "n" * 1_000).title == "n" * MAX_TITLE_LENGTH


# Any sequence of changes, against a plain dictionary

TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40)


class StoreMachine(RuleBasedStateMachine):
    conversations = Bundle("conversations")
    answers = Bundle("answers")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="store-"))
        self.path = self.folder / "conversations.sqlite3"
        self.store = ConversationStore(self.path)
        self.titles: dict[str, str] = {}
        self.renamed: set[str] = set()
        self.messages: dict[str, list[Message]] = {}
        self.order: list[str] = []  # newest last

    @rule(target=conversations, title=st.sampled_from(["", "named"]))
    def create(self, title: str) -> str:
        conversation_id = self.store.create(title).id
        self.titles[conversation_id] = title or UNTITLED
        if title:
            self.renamed.add(conversation_id)
        self.messages[conversation_id] = []
        self._touch(conversation_id)
        return conversation_id

    @rule(conversation_id=conversations, text=TEXT, role=st.sampled_from(["user", "assistant", "system"]))
    def add(self, conversation_id: str, text: str, role: str) -> None:
        if conversation_id not in self.messages:
            with pytest.raises(StoreError):
                self.store.add_message(conversation_id, role, text)
            return
        if role == "user":
            self._name(conversation_id, text)
        message = self.store.add_message(conversation_id, role, text)
        assert (message.role, message.text) == (role, text)
        self.messages[conversation_id].append(message)
        self._touch(conversation_id)

    @rule(target=answers, conversation_id=conversations, text=TEXT)
    def begin(self, conversation_id: str, text: str) -> tuple[str, str]:
        if conversation_id not in self.messages:
            with pytest.raises(StoreError):
                self.store.begin_exchange(conversation_id, text)
            return conversation_id, "none"
        self._name(conversation_id, text)
        exchange = self.store.begin_exchange(conversation_id, text)
        self.messages[conversation_id] += [exchange.question, exchange.answer]
        assert list(exchange.history) == self.messages[conversation_id][:-1]
        self._touch(conversation_id)
        return conversation_id, exchange.answer.id

    @rule(answer=answers, text=TEXT, thinking=TEXT)
    def extend(self, answer: tuple[str, str], text: str, thinking: str) -> None:
        there = self.store.extend_answer(answer[1], text=text, thinking=thinking)
        assert there == self._replace(answer, text=text, thinking=thinking)

    @rule(answer=consumes(answers), text=TEXT, status=st.sampled_from(["complete", "stopped", "failed"]))
    def finish(self, answer: tuple[str, str], text: str, status: str) -> None:
        finished = self.store.finish_answer(answer[1], text=text, status=MessageStatus(status), stats=STATS)
        there = self._replace(answer, text=text, thinking="", status=MessageStatus(status), stats=STATS)
        assert (finished is not None) == there
        if there:
            self._touch(answer[0])

    @rule(conversation_id=conversations, title=st.sampled_from(["one", "二"]))
    def rename(self, conversation_id: str, title: str) -> None:
        if conversation_id in self.titles:
            self.store.rename(conversation_id, title)
            self.titles[conversation_id] = title
            self.renamed.add(conversation_id)

    @rule(conversation_id=conversations)
    def delete(self, conversation_id: str) -> None:
        delete(self.store, conversation_id)
        if conversation_id in self.titles:
            del self.titles[conversation_id], self.messages[conversation_id]
            self.order.remove(conversation_id)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = ConversationStore(self.path)
        for messages in self.messages.values():
            messages[:] = [
                replace(message, status=MessageStatus.INTERRUPTED)
                if message.status is MessageStatus.WRITING
                else message
                for message in messages
            ]

    @invariant()
    def store_holds_what_the_dictionary_holds(self) -> None:
        summaries = self.store.summaries()
        assert [(summary.id, summary.title) for summary in summaries] == [
            (conversation_id, self.titles[conversation_id]) for conversation_id in reversed(self.order)
        ]
        for summary in summaries:
            assert list(self.store.conversation(summary.id).messages) == self.messages[summary.id]

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    def _touch(self, conversation_id: str) -> None:
        if conversation_id in self.order:
            self.order.remove(conversation_id)
        self.order.append(conversation_id)

    def _name(self, conversation_id: str, text: str) -> None:
        first = not any(message.role == "user" for message in self.messages[conversation_id])
        if first and conversation_id not in self.renamed and title_from(text):
            self.titles[conversation_id] = title_from(text)

    def _replace(self, answer: tuple[str, str], **changes) -> bool:
        messages = self.messages.get(answer[0], [])
        for index, message in enumerate(messages):
            if message.id == answer[1]:
                messages[index] = replace(message, **changes)
                return True
        return False


TestStoreMachine = StoreMachine.TestCase

TestStoreMachine.settings = settings(
    max_examples=20, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
