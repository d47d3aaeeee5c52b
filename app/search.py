"""Searching all conversations: their titles, and everything that was ever said in them, in every version.

No Qt. A `ConversationSearch` belongs to the thread that opened it and only reads the conversations.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from app.attachments import attachments_from_json
from app.conversation_database import open_reader, store_error
from app.conversation_records import Role
from app.record_times import time_from
from app.search_index import SearchIndex, text_of
from app.search_text import Snippet, folded, is_without_case, marks_in, occur_in, snippet_of, terms_of

MAX_HITS = 200  # messages
MAX_HITS_EACH = 20  # of one conversation
_BATCH = 64  # changes that the index takes in at once
_MESSAGES = (
    "SELECT m.id, m.conversation_id, m.role, m.text, m.thinking, m.attachments, m.created_us"
    " FROM messages AS m JOIN conversations AS c ON c.id = m.conversation_id WHERE c.deleted_by IS NULL"
)
_ONE = f"{_MESSAGES} AND m.sequence = ?"


@dataclass(frozen=True)
class MessageHit:
    id: str
    role: Role
    snippet: Snippet
    created_at: datetime  # UTC


@dataclass(frozen=True)
class ConversationHit:
    """A conversation in which something was found: in its title (then that has marks), in messages, or in
    both. Messages are the newest first.
    """

    id: str
    title: Snippet
    messages: tuple[MessageHit, ...]
    num_more: int = 0  # messages beyond those


@dataclass(frozen=True)
class SearchResult:
    """`conversations` are in the order of their list, the one that went on last first."""

    query: str
    terms: tuple[str, ...]
    conversations: tuple[ConversationHit, ...] = ()
    complete: bool = True  # False: there are more than are given

    @property
    def num_messages(self) -> int:
        return sum(len(one.messages) + one.num_more for one in self.conversations)


class SearchOvertakenError(Exception):
    """Its result is not wanted any more."""


@dataclass
class _Found:
    messages: list[MessageHit] = field(default_factory=list)
    num_more: int = 0


class ConversationSearch:
    """Methods raise StoreError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        reader = open_reader(path)
        self._connection = reader.connection
        try:
            self._index = SearchIndex(path, reader.connection, writable=not reader.read_only)
        except sqlite3.Error as error:
            reader.connection.close()
            raise store_error(error, path, doing="searching the conversations") from error

    def close(self) -> None:
        self._index.close()
        self._connection.close()

    def advance(self) -> bool:
        """Have the index take in some of what has changed. False: it knows everything, or there is none."""
        return self._index.advance(_BATCH)

    def find(self, query: str, *, wanted: Callable[[], bool] = lambda: True) -> SearchResult:
        """`wanted` is asked before every message, which may be a book; once it says no, SearchOvertakenError
        is raised.
        """
        terms = terms_of(query)
        if not terms:
            return SearchResult(query, terms)
        try:
            return self._find(query, terms, wanted)
        except sqlite3.Error as error:
            raise store_error(error, self._path, doing="searching the conversations") from error

    def _find(self, query: str, terms: tuple[str, ...], wanted: Callable[[], bool]) -> SearchResult:
        found: dict[str, _Found] = {}
        num_hits, complete = 0, True
        for row in self._rows(terms):
            if not wanted():
                raise SearchOvertakenError
            hit = _hit(row, terms)
            if hit is None:
                continue
            if num_hits == MAX_HITS:
                complete = False
                break
            conversation_id, message = hit
            here = found.setdefault(conversation_id, _Found())
            if len(here.messages) < MAX_HITS_EACH:
                here.messages.append(message)
                num_hits += 1
            else:
                here.num_more += 1
        return SearchResult(query, terms, tuple(self._conversations(found, terms)), complete)

    def _rows(self, terms: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
        """Messages that may have the terms: what the index doesn't know yet, then what it says, each with the
        newest first; where it can't tell, all.
        """
        known = self._index.look_up(terms)
        if known is None:
            having, values = _having([term for term in terms if is_without_case(term)])
            yield from self._connection.execute(f"{_MESSAGES}{having} ORDER BY m.sequence DESC", values)
            return
        unknown = self._connection.execute(
            "SELECT sequence FROM search_log WHERE number > ?", (known.done,)
        ).fetchall()
        newer = {sequence for (sequence,) in unknown}
        for sequence in chain(
            sorted(newer, reverse=True), (one for one in known.candidates if one not in newer)
        ):
            if (row := self._connection.execute(_ONE, (sequence,)).fetchone()) is not None:
                yield row

    def _conversations(self, found: dict[str, _Found], terms: tuple[str, ...]) -> Iterator[ConversationHit]:
        rows = self._connection.execute(
            "SELECT id, title FROM conversations WHERE deleted_by IS NULL ORDER BY activity DESC"
        ).fetchall()
        titles: dict[str, str] = dict(rows)
        for conversation_id, title in titles.items():
            if conversation_id in found or occur_in(terms, folded(title)):
                here = found.get(conversation_id, _Found())
                yield ConversationHit(
                    conversation_id,
                    Snippet(title, marks_in(title, terms)),
                    tuple(here.messages),
                    here.num_more,
                )


def _having(terms: Sequence[str]) -> tuple[str, list[str]]:
    """What SQL can tell by itself: that a text hasn't a word whose signs have one case. Files are written in
    another way. Beside a busy window, two Chinese characters are looked for in 100,000 messages in 0.2 s, and
    without this in 1.3 s.
    """
    wanted = " AND (instr(m.text, ?) OR instr(m.thinking, ?) OR m.attachments IS NOT NULL)"
    return wanted * len(terms), [term for term in terms for _ in range(2)]


def _hit(row: tuple[Any, ...], terms: tuple[str, ...]) -> tuple[str, MessageHit] | None:
    """Its conversation and what is shown of it; None: it hasn't all terms."""
    message_id, conversation_id, role, text, thinking, attachments, created_us = row
    if not occur_in(terms, text_of((text, thinking, attachments))):
        return None
    files = (f"{one.name}: {one.text}" for one in attachments_from_json(attachments))
    parts = [part for part in chain((text, thinking), files) if part]
    best = max(parts, key=lambda part: sum(term in folded(part) for term in terms))
    message = MessageHit(message_id, role, snippet_of(best, terms), time_from(created_us))
    return conversation_id, message
