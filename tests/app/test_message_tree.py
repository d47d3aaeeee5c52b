"""Versions and branches: every message ever written stays, and what is shown is one path through them."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from store_steps import delete

from app.conversations import (
    AnswerStats,
    Conversation,
    ConversationStore,
    Exchange,
    MessageStatus,
    StoreError,
)

STATS = AnswerStats(30, 20, 0.5, 40, 2.0, "end", "cpu", reuse_reason="new", diverged_at=7, left_out=2)
STORES = Path(__file__).parent / "stores"


def answered(store: ConversationStore, exchange: Exchange, text: str) -> Exchange:
    message = store.finish_answer(exchange.answer.id, text=text, status=MessageStatus.COMPLETE, stats=STATS)
    assert message is not None
    return replace(exchange, answer=message)


def texts(conversation: Conversation) -> list[str]:
    return [message.text for message in conversation.messages]


@pytest.fixture
def two_turns(store: ConversationStore) -> tuple[Exchange, Exchange]:
    first = answered(store, store.begin_exchange(None, "one"), "1")
    return first, answered(store, store.begin_exchange(first.summary.id, "two"), "2")


def test_an_edited_message_stands_beside_the_old_one_with_what_followed_it(
    store: ConversationStore, two_turns
) -> None:
    first, second = two_turns
    edit = answered(store, store.begin_edit(first.question.id, "uno"), "I")
    assert edit.history == (edit.question,)
    assert (edit.question.version, edit.question.versions) == (2, 2)
    conversation_id = first.summary.id
    assert texts(store.conversation(conversation_id)) == ["uno", "I"]
    assert texts(store.select_version(edit.question.id, -1)) == ["one", "1", "two", "2"]
    assert texts(store.conversation(conversation_id)) == ["one", "1", "two", "2"], "it is on disk"
    assert texts(store.select_version(first.question.id, +1)) == ["uno", "I"]
    assert store.begin_exchange(conversation_id, "due").history[:2] == (edit.question, edit.answer)
    assert second.answer.version == second.answer.versions == 1


def test_an_answer_made_anew_reads_what_its_question_had_before_it(
    store: ConversationStore, two_turns
) -> None:
    first, second = two_turns
    again = store.begin_regeneration(second.answer.id)
    assert [message.text for message in again.history] == ["one", "1", "two"]
    assert again.question.id == second.question.id
    assert (again.answer.version, again.answer.versions) == (2, 2)
    assert again.answer.status is MessageStatus.WRITING
    earlier = answered(store, store.begin_regeneration(first.answer.id), "1'")
    assert texts(store.conversation(first.summary.id)) == ["one", "1'"]
    shown = store.select_version(earlier.answer.id, -1).messages
    assert [(message.text, message.version, message.versions) for message in shown] == [
        ("one", 1, 1),
        ("1", 1, 2),
        ("two", 1, 1),
        ("", 2, 2),
    ]


@pytest.mark.parametrize(("delta", "shown"), [(-9, "a"), (-1, "a"), (0, "b"), (1, "c"), (9, "c")])
def test_paging_ends_at_the_first_and_the_last_version(
    store: ConversationStore, delta: int, shown: str
) -> None:
    first = store.begin_exchange(None, "a")
    middle = store.begin_edit(first.question.id, "b")
    store.begin_edit(middle.question.id, "c")
    assert texts(store.select_version(middle.question.id, delta))[0] == shown


def test_first_messages_of_other_conversations_are_no_versions(store: ConversationStore) -> None:
    one, two = store.begin_exchange(None, "one"), store.begin_exchange(None, "two")
    assert texts(store.select_version(one.question.id, +1)) == ["one", ""]
    assert two.question.versions == 1


def test_a_fork_is_a_copy_up_to_its_message_and_neither_disturbs_the_other(
    store: ConversationStore, two_turns
) -> None:
    first, second = two_turns
    fork = store.fork(first.answer.id)
    assert fork.summary.title == "one (branch)"
    copies = fork.messages
    assert [(copy.text, copy.role, copy.status, copy.stats) for copy in copies] == [
        ("one", "user", MessageStatus.COMPLETE, None),
        ("1", "assistant", MessageStatus.COMPLETE, STATS),
    ]
    assert {copy.conversation_id for copy in copies} == {fork.summary.id}
    assert {copy.id for copy in copies}.isdisjoint({first.question.id, first.answer.id})
    store.begin_exchange(fork.summary.id, "zwei")
    assert texts(store.conversation(first.summary.id)) == ["one", "1", "two", "2"]
    assert texts(store.conversation(fork.summary.id)) == ["one", "1", "zwei", ""]
    assert [summary.title for summary in store.summaries()] == ["one (branch)", "one"]
    delete(store, first.summary.id)
    assert texts(store.conversation(fork.summary.id)) == ["one", "1", "zwei", ""]
    with pytest.raises(StoreError, match="deleted"):
        store.fork(second.answer.id)


def test_forks_of_one_conversation_and_of_forks_have_names_of_their_own(store: ConversationStore) -> None:
    exchange = answered(store, store.begin_exchange(None, "Birds"), "Yes?")
    fork = store.fork(exchange.answer.id)
    titles = [fork, store.fork(exchange.answer.id), store.fork(fork.messages[-1].id)]
    assert [one.summary.title for one in titles] == [
        "Birds (branch)",
        "Birds (branch 2)",
        "Birds (branch 3)",
    ]


def test_a_fork_of_an_answer_that_is_being_written_has_its_text_so_far_and_is_not_being_written(
    store: ConversationStore,
) -> None:
    exchange = store.begin_exchange(None, "one")
    store.extend_answer(exchange.answer.id, text="so far")
    copy = store.fork(exchange.answer.id).messages[-1]
    assert (copy.text, copy.status) == ("so far", MessageStatus.INTERRUPTED)
    assert store.conversation(exchange.summary.id).messages[-1].status is MessageStatus.WRITING


def test_an_answer_that_begins_its_conversation_cannot_be_made_anew(store: ConversationStore) -> None:
    conversation = store.create("chat")
    greeting = store.add_message(conversation.id, "assistant", "Hello, what can I do?")
    with pytest.raises(StoreError, match="nothing to answer"):
        store.begin_regeneration(greeting.id)
    assert texts(store.conversation(conversation.id)) == ["Hello, what can I do?"]


def test_what_is_edited_after_its_conversation_was_deleted_is_told(store: ConversationStore) -> None:
    exchange = store.begin_exchange(None, "one")
    delete(store, exchange.summary.id)
    for change in (
        lambda: store.begin_edit(exchange.question.id, "uno"),
        lambda: store.begin_regeneration(exchange.answer.id),
        lambda: store.select_version(exchange.answer.id, 1),
    ):
        with pytest.raises(StoreError) as told:
            change()
        assert told.value.code == "message-gone"
    assert store.summaries() == []


def test_a_very_long_conversation_is_read_and_deleted_as_a_short_one(store: ConversationStore) -> None:
    """A chain of foreign keys that deletes along itself would end at SQLite's limit of 1,000."""
    conversation_id = store.begin_exchange(None, "0").summary.id
    store._connection.execute("PRAGMA synchronous = OFF")  # the disk is not what is tested
    for number in range(1, 1_201):
        store.add_message(conversation_id, "user", str(number))
    messages = store.conversation(conversation_id).messages
    assert [message.text for message in messages if message.text] == [str(n) for n in range(1_201)]
    delete(store, conversation_id)
    assert store._connection.execute("SELECT count(*) FROM messages").fetchone() == (0,)


def plan(store: ConversationStore, query: str) -> str:
    rows = store._connection.execute(f"EXPLAIN QUERY PLAN {query}", ("x",)).fetchall()
    return "\n".join(row[-1] for row in rows)


def test_versions_are_counted_by_an_index_not_by_reading_the_conversation(store: ConversationStore) -> None:
    from app.message_tree import _ON_PATH, _PATH_UP, _SHOWN_PATH

    for query in (_SHOWN_PATH + _ON_PATH, _PATH_UP + _ON_PATH):
        steps = plan(store, query)
        assert steps.count("INDEX messages_by_parent (parent_id=? AND conversation_id=?") == 2, steps
        assert "SCAN message" not in steps.replace("messages_by_parent", "")


def load(path: Path, script: str) -> None:
    raw = sqlite3.connect(path)
    raw.executescript((STORES / script).read_text(encoding="utf-8"))
    raw.close()


def test_a_version_of_version_2_can_be_paged_back_to(tmp_path: Path) -> None:
    path = tmp_path / "conversations.sqlite3"
    load(path, "v2.sql")
    store = ConversationStore(path)
    (summary,) = store.summaries()
    question, answer, _ = store.conversation(summary.id).messages
    assert (question.versions, answer.version, answer.versions) == (1, 1, 2)
    other = store.select_version(answer.id, +1)
    assert texts(other) == ["What is a kestrel?", "A bird of prey.", "How large?"]
    store.close()


def test_an_older_store_that_cannot_be_written_is_read_and_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "conversations.sqlite3"
    load(path, "v1.sql")
    before = path.read_bytes()
    monkeypatch.setattr("app.conversation_database._writable", lambda path: False)
    store = ConversationStore(path)
    (summary,) = store.summaries()
    messages = store.conversation(summary.id).messages
    assert [message.text for message in messages] == [
        "What is a kestrel?",
        "A small falcon. 🦅",
        "And its pr",
    ]
    with pytest.raises(StoreError, match="can only be read"):
        store.fork(messages[0].id)
    store.close()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


# Any sequence of changes, against a plain tree


def test_a_deleted_message_takes_all_that_followed_it(store: ConversationStore, two_turns) -> None:
    first, second = two_turns
    other = answered(store, store.begin_regeneration(second.answer.id), "2b")
    assert texts(store.delete_message(second.question.id)) == ["one", "1"]
    for gone in (second.question, second.answer, other.answer):
        with pytest.raises(StoreError, match="deleted"):
            store.fork(gone.id)
    third = answered(store, store.begin_exchange(first.summary.id, "three"), "3")
    assert texts(store.conversation(third.summary.id)) == ["one", "1", "three", "3"]


def test_a_deleted_version_leaves_the_others(store: ConversationStore, two_turns) -> None:
    _, second = two_turns
    versions = [second, *(answered(store, store.begin_regeneration(second.answer.id), text) for text in "bc")]
    assert texts(store.delete_message(versions[1].answer.id))[-1] == "2"
    shown = store.delete_message(versions[0].answer.id)
    assert texts(shown)[-1] == "c"
    assert (shown.messages[-1].version, shown.messages[-1].versions) == (1, 1)
    assert texts(store.delete_message(versions[2].answer.id)) == ["one", "1", "two"]


def test_deleting_the_first_message_leaves_an_empty_conversation(store: ConversationStore, two_turns) -> None:
    first, _ = two_turns
    assert store.delete_message(first.question.id).messages == ()
    again = answered(store, store.begin_exchange(first.summary.id, "anew"), "4")
    assert texts(store.conversation(again.summary.id)) == ["anew", "4"]


def test_what_is_being_written_is_not_deleted(store: ConversationStore, two_turns) -> None:
    first, second = two_turns
    growing = store.begin_exchange(second.summary.id, "three")
    for message in (first.question, second.answer, growing.answer):
        with pytest.raises(StoreError, match="still being written"):
            store.delete_message(message.id)
    assert len(store.conversation(first.summary.id).messages) == 6


class TreeMachine(RuleBasedStateMachine):
    """The model: every message by id with its parent and its place among its siblings, and the path shown."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tree-"))
        self.path = self.folder / "conversations.sqlite3"
        self.store = ConversationStore(self.path)
        self.texts: dict[str, str] = {}
        self.roles: dict[str, str] = {}
        self.children: dict[tuple[str, str | None], list[str]] = {}  # by conversation and parent
        self.active: dict[tuple[str, str | None], str] = {}
        self.parents: dict[str, tuple[str, str | None]] = {}
        self.conversations: list[str] = []

    def _add(self, message_id: str, key: tuple[str, str | None], role: str, text: str) -> None:
        self.texts[message_id], self.roles[message_id], self.parents[message_id] = text, role, key
        self.children.setdefault(key, []).append(message_id)
        self.active[key] = message_id

    def _shown(self, conversation_id: str) -> list[str]:
        path: list[str] = []
        key: tuple[str, str | None] = (conversation_id, None)
        while key in self.active:
            path.append(self.active[key])
            key = (conversation_id, path[-1])
        return path

    def _up(self, message_id: str) -> list[str]:
        path = [message_id]
        while (parent := self.parents[path[-1]][1]) is not None:
            path.append(parent)
        return path[::-1]

    def _took(self, exchange: Exchange, key: tuple[str, str | None]) -> None:
        conversation_id = exchange.summary.id
        if exchange.question.id not in self.texts:
            self._add(exchange.question.id, key, "user", exchange.question.text)
        self._add(exchange.answer.id, (conversation_id, exchange.question.id), "assistant", "")
        assert [message.id for message in exchange.history] == self._up(exchange.question.id)

    def _any(self, seed: int, role: str | None = None) -> str:
        """In the order in which they were made: ids are drawn anew in every run."""
        known = [message for message, kind in self.roles.items() if role in (None, kind)]
        return known[seed % len(known)]

    @rule(text=st.sampled_from("abc"))
    def begin(self, text: str) -> None:
        exchange = self.store.begin_exchange(None, text)
        self.conversations.append(exchange.summary.id)
        self._took(exchange, (exchange.summary.id, None))

    @precondition(lambda self: self.conversations)
    @rule(seed=st.integers(0, 99), text=st.sampled_from("abc"))
    def go_on(self, seed: int, text: str) -> None:
        conversation_id = self.conversations[seed % len(self.conversations)]
        last = self._shown(conversation_id)[-1]
        self._took(self.store.begin_exchange(conversation_id, text), (conversation_id, last))

    @precondition(lambda self: self.conversations)
    @rule(seed=st.integers(0, 99), text=st.sampled_from("abc"))
    def edit(self, seed: int, text: str) -> None:
        message_id = self._any(seed, "user")
        self._took(self.store.begin_edit(message_id, text), self.parents[message_id])

    @precondition(lambda self: "assistant" in self.roles.values())  # a fork may end with its first question
    @rule(seed=st.integers(0, 99))
    def regenerate(self, seed: int) -> None:
        message_id = self._any(seed, "assistant")
        self._took(self.store.begin_regeneration(message_id), self.parents[message_id])

    @precondition(lambda self: self.conversations)
    @rule(seed=st.integers(0, 99), delta=st.integers(-3, 3))
    def page(self, seed: int, delta: int) -> None:
        message_id = self._any(seed)
        key = self.parents[message_id]
        siblings = self.children[key]
        wanted = min(max(siblings.index(message_id) + delta, 0), len(siblings) - 1)
        self.active[key] = siblings[wanted]
        shown = self.store.select_version(message_id, delta)
        assert [message.id for message in shown.messages] == self._shown(key[0])

    @precondition(lambda self: self.conversations)
    @rule(seed=st.integers(0, 99))
    def fork(self, seed: int) -> None:
        path = self._up(self._any(seed))
        fork = self.store.fork(path[-1])
        key: tuple[str, str | None] = (fork.summary.id, None)
        self.conversations.append(fork.summary.id)
        assert len(fork.messages) == len(path)
        for copy, original in zip(fork.messages, path, strict=True):
            assert (copy.text, copy.role) == (self.texts[original], self.roles[original])
            self._add(copy.id, key, copy.role, copy.text)
            key = (fork.summary.id, copy.id)

    @precondition(lambda self: self.conversations)
    @rule(seed=st.integers(0, 99))
    def delete(self, seed: int) -> None:
        conversation_id = self.conversations[seed % len(self.conversations)]
        delete(self.store, conversation_id)
        self.conversations.remove(conversation_id)
        for message_id in [one for one, key in self.parents.items() if key[0] == conversation_id]:
            del self.texts[message_id], self.roles[message_id], self.parents[message_id]
        for kept in (self.children, self.active):
            for key in [key for key in kept if key[0] == conversation_id]:
                del kept[key]

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = ConversationStore(self.path)

    @invariant()
    def what_is_shown_is_the_active_path_with_its_versions(self) -> None:
        for conversation_id in self.conversations:
            messages = self.store.conversation(conversation_id).messages
            expected = []
            for message_id in self._shown(conversation_id):
                siblings = self.children[self.parents[message_id]]
                expected.append(
                    (message_id, self.texts[message_id], siblings.index(message_id) + 1, len(siblings))
                )
            assert [(one.id, one.text, one.version, one.versions) for one in messages] == expected

    @invariant()
    def nothing_is_ever_lost(self) -> None:
        rows = self.store._connection.execute("SELECT id FROM messages").fetchall()
        assert {message_id for (message_id,) in rows} == set(self.texts)

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)


TestTreeMachine = TreeMachine.TestCase
TestTreeMachine.settings = settings(
    max_examples=20, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
