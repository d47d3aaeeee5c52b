"""Searching conversations: the index and plain reading find the same, whatever has happened before."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from store_steps import delete

import app.search_index
from app.attachments import Attachment
from app.conversations import ConversationStore, MessageStatus
from app.search import MAX_HITS, ConversationSearch, SearchOvertakenError, SearchResult
from app.search_index import SUFFIX

STORES = Path(__file__).parent / "stores"  # what released versions wrote


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats" / "conversations.sqlite3"


@pytest.fixture
def search(store: ConversationStore, path: Path):
    search = ConversationSearch(path)
    yield search
    search.close()


def ask(store: ConversationStore, question: str, answer: str = "", thinking: str = "", **options) -> str:
    exchange = store.begin_exchange(None, question, **options)
    store.finish_answer(exchange.answer.id, text=answer, thinking=thinking, status=MessageStatus.COMPLETE)
    return exchange.summary.id


def index_all(search: ConversationSearch) -> None:
    while search.advance():
        pass


def found(result: SearchResult) -> list[tuple[str, list[str]]]:
    return [(one.id, [message.id for message in one.messages]) for one in result.conversations]


@pytest.mark.parametrize("query", ["kes", "KESTREL", "红", "红隼", "型红隼", "falcon 红隼", "élan", "r"])
def test_words_are_found_in_any_script_with_and_without_the_index(
    store: ConversationStore, search: ConversationSearch, query: str
) -> None:
    wanted = ask(store, "A kestrel is a falcon", "小型红隼, plein d'Élan")
    ask(store, "小麦", "no")
    if " " in query:  # both words have to be in one message
        ask(store, query, "ok")
    plain = search.find(query)
    index_all(search)
    assert found(search.find(query)) == found(plain)
    assert (wanted in [one.id for one in plain.conversations]) == (" " not in query)


def test_titles_thinking_files_and_hidden_versions_are_searched(
    store: ConversationStore, search: ConversationSearch
) -> None:
    by_title = store.create("Merlin").id
    by_thinking = ask(store, "one", "two", thinking="perhaps a merlin")
    by_file = ask(store, "see the file", attachments=[Attachment("birds.txt", "kestrel\nmerlin\n")])
    by_version = ask(store, "a merlin?", "yes")
    question = store.conversation(by_version).messages[0]
    store.begin_edit(question.id, "an eagle?")
    index_all(search)
    result = search.find("merlin")
    assert {one.id for one in result.conversations} == {by_title, by_thinking, by_file, by_version}
    assert all("merlin" in m.snippet.text.lower() for one in result.conversations for m in one.messages)
    (titled,) = [one for one in result.conversations if one.id == by_title]
    assert titled.title.marks == ((0, 6),)
    assert [m.id for one in result.conversations if one.id == by_version for m in one.messages] == [
        question.id
    ]


def test_what_was_said_since_the_last_look_is_found(
    store: ConversationStore, search: ConversationSearch
) -> None:
    old = ask(store, "an old kestrel")
    index_all(search)
    new = ask(store, "a new kestrel")
    assert [one.id for one in search.find("kestrel").conversations] == [new, old]


def test_what_is_deleted_is_not_found_and_leaves_the_index(
    store: ConversationStore, search: ConversationSearch, path: Path
) -> None:
    gone = ask(store, "a secret kestrel")
    index_all(search)
    store.marks.set_deleted([gone])
    assert search.find("secret").conversations == ()
    store.marks.delete([gone])
    index_all(search)
    index = sqlite3.connect(path.with_name(path.name + SUFFIX))
    assert index.execute("SELECT count(*) FROM runs WHERE runs MATCH 'sec'").fetchone() == (0,)
    index.close()


def test_a_result_has_an_end_and_says_so(store: ConversationStore, search: ConversationSearch) -> None:
    for number in range(12):
        conversation_id = store.create(f"chat {number}").id
        for _ in range(20):
            store.add_message(conversation_id, "user", "kestrel")
    result = search.find("kestrel")
    assert not result.complete
    assert sum(len(one.messages) for one in result.conversations) == MAX_HITS


def test_many_hits_in_one_conversation_leave_room_for_others(
    store: ConversationStore, search: ConversationSearch
) -> None:
    old = ask(store, "the old kestrel")
    busy = store.create("busy").id
    for _ in range(300):
        store.add_message(busy, "user", "kestrel")
    result = search.find("kestrel")
    assert [one.id for one in result.conversations] == [busy, old]
    assert result.num_messages == 301


def test_a_search_that_was_overtaken_ends(store: ConversationStore, search: ConversationSearch) -> None:
    ask(store, "kestrel")
    with pytest.raises(SearchOvertakenError):
        search.find("kestrel", wanted=lambda: False)


def test_a_search_waits_for_no_more_than_the_message_that_is_being_read(
    store: ConversationStore, search: ConversationSearch
) -> None:
    for number in range(3):
        ask(store, f"kestrel {number} ")
    answers = iter([True, False])
    with pytest.raises(SearchOvertakenError):
        search.find("kestrel", wanted=lambda: next(answers))


def test_long_messages_come_into_the_index_one_by_one(
    store: ConversationStore, search: ConversationSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.search_index, "_STEP_CHARACTERS", 100)
    for number in range(3):
        ask(store, f"kestrel{number} " * 20)
    terms = ("kestrel",)
    sizes = []
    while search.advance():
        lookup = search._index.look_up(terms)
        assert lookup is not None
        sizes.append(len(lookup.candidates))
    assert sizes == sorted(sizes)
    assert set(sizes) >= {1, 2}
    assert len(found(search.find("kestrel"))) == 3


@pytest.mark.parametrize("how", ["garbage", "other store", "ahead", "truncated"])
def test_an_index_that_does_not_fit_is_made_anew(store: ConversationStore, path: Path, how: str) -> None:
    wanted = ask(store, "a kestrel")
    first = ConversationSearch(path)
    index_all(first)
    first.close()
    file = path.with_name(path.name + SUFFIX)
    if how == "garbage":
        file.write_bytes(b"no database " * 1_000)
    elif how == "truncated":
        file.write_bytes(file.read_bytes()[:5_000])
    else:
        raw = sqlite3.connect(file)
        column = "store_id = 'x'" if how == "other store" else "done = 1000000"
        raw.execute(f"UPDATE state SET {column}")
        raw.execute("DELETE FROM runs")
        raw.commit()
        raw.close()
    search = ConversationSearch(path)
    index_all(search)
    assert [one.id for one in search.find("kestrel").conversations] == [wanted]
    search.close()


def test_an_index_that_breaks_is_done_without(store: ConversationStore, path: Path) -> None:
    wanted = ask(store, "a kestrel")
    search = ConversationSearch(path)
    index_all(search)
    raw = sqlite3.connect(path.with_name(path.name + SUFFIX))
    raw.execute("DROP TABLE runs")
    raw.close()
    assert [one.id for one in search.find("kestrel").conversations] == [wanted]
    assert not search.advance()
    search.close()


def test_a_file_that_cannot_be_written_is_searched_without_an_index(
    store: ConversationStore, path: Path, monkeypatch
) -> None:
    wanted = ask(store, "a kestrel")
    store.close()
    monkeypatch.setattr(os, "access", lambda *_: False)  # the superuser may write everywhere
    search = ConversationSearch(path)
    assert not search.advance()
    assert [one.id for one in search.find("kestrel").conversations] == [wanted]
    assert not path.with_name(path.name + SUFFIX).exists()
    search.close()


@pytest.mark.parametrize("script", sorted(STORES.glob("*.sql")), ids=lambda script: script.stem)
def test_what_older_versions_wrote_is_found(path: Path, script: Path) -> None:
    path.parent.mkdir()
    raw = sqlite3.connect(path)
    raw.executescript(script.read_text(encoding="utf-8"))
    raw.close()
    store = ConversationStore(path)
    search = ConversationSearch(path)
    plain = search.find("kestrel")
    assert plain.num_messages >= 1
    index_all(search)
    assert found(search.find("kestrel")) == found(plain)
    search.close()
    store.close()


def test_two_windows_share_an_index(store: ConversationStore, path: Path) -> None:
    wanted = ask(store, "a kestrel")
    first, second = ConversationSearch(path), ConversationSearch(path)
    index_all(first)
    assert not second.advance()
    assert [one.id for one in second.find("kestrel").conversations] == [wanted]
    first.close()
    second.close()


WORDS = st.text(alphabet="abAB 山月隼\"'*ßİé\0\n", max_size=12)


class Searching(RuleBasedStateMachine):
    """Whatever is written, changed, deleted and indexed when: the index finds what reading finds."""

    @initialize()
    def open(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        path = self.folder / "conversations.sqlite3"
        self.store = ConversationStore(path)
        self.search = ConversationSearch(path)
        self.plain = ConversationSearch(path)
        self.plain._index.close()
        self.conversations: list[str] = []

    @rule(text=WORDS)
    def say(self, text: str) -> None:
        self.conversations.append(ask(self.store, text or "x", text[::-1]))

    @rule(text=WORDS, place=st.integers(0, 9))
    def change(self, text: str, place: int) -> None:
        if self.conversations:
            shown = self.store.conversation(self.conversations[place % len(self.conversations)]).messages
            self.store.extend_answer(shown[-1].id, text=text)

    @rule(place=st.integers(0, 9))
    def delete(self, place: int) -> None:
        if self.conversations:
            delete(self.store, self.conversations.pop(place % len(self.conversations)))

    @rule()
    def index(self) -> None:
        self.search.advance()

    @rule(query=WORDS)
    def find(self, query: str) -> None:
        assert found(self.search.find(query)) == found(self.plain.find(query))

    @invariant()
    def known_words_are_found(self) -> None:
        if hasattr(self, "search"):
            for query in ("ab", "aba", "山月隼", "b 山"):
                assert found(self.search.find(query)) == found(self.plain.find(query))

    def teardown(self) -> None:
        if hasattr(self, "search"):
            self.search.close()
            self.plain.close()
            self.store.close()
            shutil.rmtree(self.folder)


TestSearching = Searching.TestCase
TestSearching.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
