"""The rows of conversations, and of the questions and answers in them, for `app/conversations.py`.

Called inside of its transactions alone, which also make errors of SQLite its own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from app.attachments import Attachment
from app.chat_settings import ChatSettings
from app.conversation_database import StoreError
from app.conversation_marks import sorted_tags
from app.conversation_records import (
    Conversation,
    ConversationSummary,
    Exchange,
    Message,
    MessageStatus,
    Role,
    storable,
)
from app.language import tr
from app.message_tree import MessageTree
from app.record_times import now_us, time_from
from app.titles import MAX_TITLE_LENGTH, UNTITLED, one_line, title_from

_SUMMARY_COLUMNS = (
    "id, title, created_us, updated_us, model_path, pinned, unread,"
    " (SELECT group_concat(name, char(10)) FROM tags WHERE conversation_id = conversations.id)"
)


class ConversationRows:
    """StoreError is raised for a conversation that is gone."""

    def __init__(self, connection: sqlite3.Connection, tree: MessageTree, *, read_only: bool) -> None:
        self._connection = connection
        self._tree = tree
        self._read_only = read_only

    def summaries(self) -> list[ConversationSummary]:
        """Of all but those whose deletion can still be undone, the one with the newest message first."""
        rows = self._connection.execute(
            f"SELECT {_SUMMARY_COLUMNS} FROM conversations WHERE deleted_by IS NULL"
            " ORDER BY activity DESC, updated_us DESC"
        ).fetchall()
        return [_summary(row) for row in rows]

    def insert(self, title: str, model_path: Path | None) -> str:
        """A new conversation; gives its id. With no title it is named after its first question."""
        conversation_id = uuid4().hex
        now = now_us()
        title = one_line(title)[:MAX_TITLE_LENGTH]
        self._connection.execute(
            "INSERT INTO conversations (id, title, renamed, model_path, created_us, updated_us, activity)"
            " VALUES (?, ?, ?, ?, ?, ?, (SELECT ifnull(max(activity), 0) + 1 FROM conversations))",
            (
                conversation_id,
                title or tr(UNTITLED),
                int(bool(title)),
                storable(str(model_path)) if model_path else None,
                now,
                now,
            ),
        )
        return conversation_id

    def append(
        self,
        conversation_id: str,
        role: Role,
        text: str,
        status: MessageStatus,
        attachments: Sequence[Attachment] = (),
    ) -> str:
        """Behind the last message that is shown."""
        self.summary(conversation_id)  # raises when it is gone
        if role == "user":
            names = "\n".join(attachment.name for attachment in attachments)
            self._name_after_first_question(conversation_id, f"{text}\n{names}")
        parent_id = self._tree.last_shown(conversation_id)
        message_id = self._tree.insert(
            conversation_id, role, storable(text), status, parent_id=parent_id, attachments=attachments
        )
        self.touch(conversation_id)
        return message_id

    def begin_answer(self, question_id: str, model_path: Path | None) -> Exchange:
        """Make the empty row of an answer behind a message that is on disk."""
        history = self._tree.up_to(question_id)
        question = history[-1]
        conversation_id = question.conversation_id
        answer_id = self._tree.insert(
            conversation_id, "assistant", "", MessageStatus.WRITING, parent_id=question_id
        )
        self.touch(conversation_id)
        if model_path is not None:
            self._connection.execute(
                "UPDATE conversations SET model_path = ? WHERE id = ?",
                (storable(str(model_path)), conversation_id),
            )
        return Exchange(
            self.summary(conversation_id),
            question,
            self._tree.message(answer_id),
            history,
            self.settings(conversation_id),
        )

    def touch(self, conversation_id: str) -> None:
        """It comes to the top of the list."""
        self._connection.execute(
            "UPDATE conversations SET updated_us = ?,"
            " activity = (SELECT max(activity) + 1 FROM conversations) WHERE id = ?",
            (now_us(), conversation_id),
        )

    def summary(self, conversation_id: str) -> ConversationSummary:
        row = self._connection.execute(
            f"SELECT {_SUMMARY_COLUMNS} FROM conversations WHERE id = ? AND deleted_by IS NULL",
            (conversation_id,),
        ).fetchone()
        if row is None:
            raise StoreError(
                "conversation-gone",
                "This conversation has been deleted.",
                "Choose another one, or begin a new chat.",
            )
        return _summary(row)

    def conversation(self, conversation_id: str) -> Conversation:
        return Conversation(
            self.summary(conversation_id), self.messages(conversation_id), self.settings(conversation_id)
        )

    def settings(self, conversation_id: str) -> ChatSettings:
        (text,) = self._connection.execute(
            "SELECT settings FROM conversations WHERE id = ?", (conversation_id,)
        ).fetchone()
        return ChatSettings.from_json(text)

    def save_settings(self, conversation_id: str, settings: ChatSettings) -> None:
        self._connection.execute(
            "UPDATE conversations SET settings = ? WHERE id = ?", (settings.as_json(), conversation_id)
        )

    def messages(self, conversation_id: str) -> tuple[Message, ...]:
        messages = self._tree.shown(conversation_id)
        if self._read_only:  # nobody is writing it here, and the file can't be told so
            return tuple(_interrupted(message) for message in messages)
        return messages

    def _name_after_first_question(self, conversation_id: str, text: str) -> None:
        title = title_from(text)
        if title:
            self._connection.execute(
                "UPDATE conversations SET title = ? WHERE id = ? AND renamed = 0 AND NOT EXISTS"
                " (SELECT 1 FROM messages WHERE conversation_id = ? AND role = 'user')",
                (title, conversation_id, conversation_id),
            )


def _summary(row: tuple[Any, ...]) -> ConversationSummary:
    conversation_id, title, created_us, updated_us, model_path, pinned, unread, tags = row
    return ConversationSummary(
        id=conversation_id,
        title=title,
        created_at=time_from(created_us),
        updated_at=time_from(updated_us),
        model_path=Path(model_path) if model_path else None,
        pinned=bool(pinned),
        unread=bool(unread),
        tags=sorted_tags(tags.split("\n") if tags else ()),
    )


def _interrupted(message: Message) -> Message:
    writing = message.status in (MessageStatus.WRITING, MessageStatus.ELSEWHERE)
    return replace(message, status=MessageStatus.INTERRUPTED) if writing else message
