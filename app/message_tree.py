"""The messages of a conversation as a tree, in SQL. What is shown is one path through it.

Everything here runs inside a transaction of the store. Nothing is taken out of a tree but what a person
deletes: another version of a message is a sibling, and showing it only moves the pointer of their parent.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from app.answer_stats import AnswerStats
from app.attachments import Attachment, attachments_as_json, attachments_from_json
from app.conversation_database import StoreError
from app.conversation_records import Message, MessageStatus, Role
from app.record_times import now_us, time_from

# Siblings of a first message have no parent, so they are told by their conversation as well.
_SIBLINGS = (
    "SELECT count(*) FROM messages AS other WHERE other.parent_id IS message.parent_id"
    " AND other.conversation_id = message.conversation_id"
)
_COLUMNS = (
    "message.id, message.conversation_id, role, text, thinking, status, created_us, stats,"
    " attachments, writer,"
    f" ({_SIBLINGS} AND other.sequence <= message.sequence), ({_SIBLINGS})"
)
_SHOWN_PATH = """
    WITH RECURSIVE path (id, depth) AS (
        SELECT active_first, 0 FROM conversations WHERE id = ?
        UNION ALL
        SELECT active_child, depth + 1 FROM path JOIN messages USING (id)
    )
"""
_PATH_UP = """
    WITH RECURSIVE path (id, depth) AS (
        SELECT ?, 0
        UNION ALL
        SELECT parent_id, depth - 1 FROM path JOIN messages USING (id) WHERE parent_id IS NOT NULL
    )
"""
_ON_PATH = f"SELECT {_COLUMNS} FROM path JOIN messages AS message USING (id) ORDER BY depth"


class MessageTree:
    """Reads and grows the trees of one open file. Methods raise sqlite3.Error, and StoreError where said."""

    def __init__(self, connection: sqlite3.Connection, *, writer: str) -> None:
        """writer: who writes the answers that are begun here."""
        self._connection = connection
        self._writer = writer

    def message(self, message_id: str) -> Message:
        """Raises StoreError when it is gone."""
        row = self._connection.execute(
            f"SELECT {_COLUMNS} FROM messages AS message WHERE id = ?", (message_id,)
        ).fetchone()
        if row is None:
            raise StoreError(
                "message-gone",
                "This message has been deleted together with its conversation.",
                "Choose another conversation, or begin a new chat.",
            )
        return self._message(row)

    def shown(self, conversation_id: str) -> tuple[Message, ...]:
        """The path that is shown, oldest message first."""
        return self._messages(_SHOWN_PATH + _ON_PATH, conversation_id)

    def up_to(self, message_id: str) -> tuple[Message, ...]:
        """The path from the first message to this one, whether it is shown or not."""
        return self._messages(_PATH_UP + _ON_PATH, message_id)

    def parent_of(self, message_id: str) -> str | None:
        (parent_id,) = self._connection.execute(
            "SELECT parent_id FROM messages WHERE id = ?", (message_id,)
        ).fetchone()
        return parent_id

    def last_shown(self, conversation_id: str) -> str | None:
        """The end of the path that is shown."""
        row = self._connection.execute(
            _SHOWN_PATH + "SELECT id FROM path WHERE id IS NOT NULL ORDER BY depth DESC LIMIT 1",
            (conversation_id,),
        ).fetchone()
        return row[0] if row else None

    def insert(
        self,
        conversation_id: str,
        role: Role,
        text: str,
        status: MessageStatus,
        *,
        parent_id: str | None,
        attachments: Sequence[Attachment] = (),
    ) -> str:
        """A new last child of `parent_id` (None: a new first message), which is the one that is shown."""
        message_id = uuid4().hex
        self._connection.execute(
            "INSERT INTO messages"
            " (id, conversation_id, role, text, status, created_us, parent_id, writer, attachments)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                message_id,
                conversation_id,
                role,
                text,
                status,
                now_us(),
                parent_id,
                self._writer if status is MessageStatus.WRITING else None,
                attachments_as_json(attachments),
            ),
        )
        self._show(message_id, conversation_id, parent_id)
        return message_id

    def show_version(self, message_id: str, delta: int) -> None:
        """Show the version `delta` further on in the place of this one, or the last there is that way. What
        follows it is what was shown there last.
        """
        message = self.message(message_id)
        parent_id = self.parent_of(message_id)
        wanted = min(max(message.version + delta, 1), message.versions)
        (sibling_id,) = self._connection.execute(
            "SELECT id FROM messages WHERE parent_id IS ? AND conversation_id = ? ORDER BY sequence"
            " LIMIT 1 OFFSET ?",
            (parent_id, message.conversation_id, wanted - 1),
        ).fetchone()
        self._show(sibling_id, message.conversation_id, parent_id)

    def reveal(self, message_id: str) -> None:
        """Show the path that this message is on, and below it what was shown there last."""
        path = self.up_to(message_id)
        parent_id: str | None = None
        for message in path:
            self._show(message.id, message.conversation_id, parent_id)
            parent_id = message.id

    def delete(self, message_id: str) -> None:
        """Take a message out, with all that ever followed it. The version before it, or else the one after
        it, is shown in its place; where it was the only one, what is shown ends above it. Raises StoreError
        while an answer among them is being written.
        """
        message = self.message(message_id)
        parent_id = self.parent_of(message_id)
        below = (
            "WITH RECURSIVE below (id) AS (SELECT ? UNION ALL"
            " SELECT messages.id FROM messages JOIN below ON parent_id = below.id)"
        )
        (num_writing,) = self._connection.execute(
            f"{below} SELECT count(*) FROM below JOIN messages USING (id) WHERE status = ?",
            (message_id, MessageStatus.WRITING),
        ).fetchone()
        if num_writing:
            raise StoreError(
                "message-writing",
                "What follows this message is still being written, so it is not deleted.",
                "Stop the answer first.",
            )
        if message.versions > 1:
            self.show_version(message_id, -1 if message.version > 1 else 1)
        else:
            self._show(None, message.conversation_id, parent_id)
        self._connection.execute(
            f"{below} DELETE FROM messages WHERE id IN (SELECT id FROM below)", (message_id,)
        )

    def copy_path(self, message_id: str, conversation_id: str) -> None:
        """Give an empty conversation copies of the messages up to this one. An answer that is being written
        is copied as far as it is on disk.
        """
        parent_id: str | None = None
        for message in self.up_to(message_id):
            copy_id = uuid4().hex
            writing = message.status in (MessageStatus.WRITING, MessageStatus.ELSEWHERE)
            self._connection.execute(
                "INSERT INTO messages"
                " (id, conversation_id, role, text, thinking, status, created_us, stats, attachments,"
                " parent_id)"
                " SELECT ?, ?, role, text, thinking, ?, created_us, stats, attachments, ?"
                " FROM messages WHERE id = ?",
                (
                    copy_id,
                    conversation_id,
                    MessageStatus.INTERRUPTED if writing else message.status,
                    parent_id,
                    message.id,
                ),
            )
            self._show(copy_id, conversation_id, parent_id)
            parent_id = copy_id

    def _show(self, message_id: str | None, conversation_id: str, parent_id: str | None) -> None:
        if parent_id is None:
            self._connection.execute(
                "UPDATE conversations SET active_first = ? WHERE id = ?", (message_id, conversation_id)
            )
        else:
            self._connection.execute(
                "UPDATE messages SET active_child = ? WHERE id = ?", (message_id, parent_id)
            )

    def _messages(self, query: str, key: str) -> tuple[Message, ...]:
        return tuple(self._message(row) for row in self._connection.execute(query, (key,)).fetchall())

    def _message(self, row: tuple[Any, ...]) -> Message:
        message_id, conversation_id, role, text, thinking, status_name, created_us, stats = row[:8]
        attachments, writer, version, versions = row[8:]
        status = _status(status_name)
        if status is MessageStatus.WRITING and writer != self._writer:
            status = MessageStatus.ELSEWHERE
        return Message(
            id=message_id,
            conversation_id=conversation_id,
            role=role,
            text=text,
            thinking=thinking,
            status=status,
            created_at=time_from(created_us),
            stats=AnswerStats.from_json(stats) if stats else None,
            version=version,
            versions=versions,
            attachments=attachments_from_json(attachments),
        )


def _status(value: str) -> MessageStatus:
    try:
        return MessageStatus(value)
    except ValueError:  # a newer version's; the text is what counts when its file is only read
        return MessageStatus.COMPLETE
