"""What a person does with whole conversations: pins, tags, reads and deletes them, and what stands unsent in
them. In SQL; part of the store.

A deletion comes in two steps. `set_deleted` hides a conversation and writes down which window did so; until
`delete` follows, everything of it is on disk and `restore` brings it back. A window that ended in between
has its deletions finished by whoever opens the file next.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager

from app.conversation_records import storable
from app.draft_files import DraftFiles
from app.titles import one_line

MAX_TAG_LENGTH = 40  # characters
Changing = Callable[[str], AbstractContextManager[None]]


class ConversationMarks:
    """Every method may raise StoreError; then nothing was changed."""

    def __init__(self, connection: sqlite3.Connection, *, writer: str, changing: Changing) -> None:
        """changing: a transaction of the store; is told what it is for. writer: this window."""
        self._connection = connection
        self._writer = writer
        self._changing = changing

    def set_pinned(self, conversation_ids: Collection[str], pinned: bool) -> None:
        with self._changing("pinning the conversation"):
            self._set("pinned", int(pinned), conversation_ids)

    def set_unread(self, conversation_id: str, unread: bool) -> None:
        with self._changing("marking the conversation"):
            self._set("unread", int(unread), [conversation_id])

    def tag(self, conversation_ids: Collection[str], name: str, *, on: bool = True) -> None:
        """Give conversations a tag, or take it away (`on` False). Upper and lower case make no difference:
        the spelling that is there already is kept.
        """
        name = tag_name(name)
        if not name:
            return
        with self._changing("changing the tags"):
            known = [row[0] for row in self._connection.execute("SELECT DISTINCT name FROM tags").fetchall()]
            same = [one for one in known if one.casefold() == name.casefold()]
            if on:
                self._connection.executemany(
                    "INSERT OR IGNORE INTO tags (conversation_id, name) SELECT id, ? FROM conversations"
                    " WHERE id = ?",
                    [(same[0] if same else name, one) for one in conversation_ids],
                )
            else:
                self._connection.executemany(
                    "DELETE FROM tags WHERE conversation_id = ? AND name = ?",
                    [(one, spelling) for one in conversation_ids for spelling in same],
                )

    def set_deleted(self, conversation_ids: Collection[str]) -> None:
        """Hide conversations; nothing of them is gone."""
        with self._changing("deleting the conversations"):
            self._set("deleted_by", self._writer, conversation_ids)

    def restore(self, conversation_ids: Collection[str]) -> None:
        """Undo `set_deleted`."""
        with self._changing("bringing the conversations back"):
            self._set("deleted_by", None, conversation_ids)

    def delete(self, conversation_ids: Collection[str]) -> None:
        """Delete them for good. Those that somebody brought back meanwhile are left alone."""
        with self._changing("deleting the conversations"):
            self._connection.executemany(
                "DELETE FROM conversations WHERE id = ? AND deleted_by IS NOT NULL",
                [(one,) for one in conversation_ids],
            )

    def waiting_deletions(self) -> dict[str, list[str]]:
        """What is hidden, by the window that did it."""
        waiting: dict[str, list[str]] = {}
        for writer, conversation_id in self._connection.execute(
            "SELECT deleted_by, id FROM conversations WHERE deleted_by IS NOT NULL"
        ).fetchall():
            waiting.setdefault(writer, []).append(conversation_id)
        return waiting

    def save_drafts(self, texts: Mapping[str, str], files: Mapping[str, DraftFiles] | None = None) -> None:
        """What stands unsent, by conversation ("" is the new chat), where it has changed; of one that is
        blank and has no files, nothing is kept.
        """
        with self._changing("saving what was being written"):
            self._set_draft("text", {key: text if text.strip() else "" for key, text in texts.items()})
            self._set_draft("files", {key: found.as_json() for key, found in (files or {}).items()})
            self._connection.execute("DELETE FROM drafts WHERE text = '' AND files IS NULL")

    def _set_draft(self, column: str, values: Mapping[str, str | None]) -> None:
        self._connection.executemany(
            "INSERT INTO drafts (conversation_id, text) SELECT ?1, '' WHERE ?1 = ''"
            " OR EXISTS (SELECT 1 FROM conversations WHERE id = ?1) ON CONFLICT DO NOTHING",
            [(key,) for key in values],
        )
        self._connection.executemany(
            f"UPDATE drafts SET {column} = ? WHERE conversation_id = ?",
            [(storable(value) if value is not None else None, key) for key, value in values.items()],
        )

    def _set(self, column: str, value: object, conversation_ids: Collection[str]) -> None:
        self._connection.executemany(
            f"UPDATE conversations SET {column} = ? WHERE id = ?", [(value, one) for one in conversation_ids]
        )


def tag_name(text: str) -> str:
    """A tag as it is kept: on one line, with no "#" before it; "" for what makes none."""
    return one_line(text.strip().lstrip("#"))[:MAX_TAG_LENGTH].strip()


def sorted_tags(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=lambda name: (name.casefold(), name)))
