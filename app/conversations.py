"""Conversations on disk: the records the program shows, and the store that keeps them in SQLite.

No Qt here. A store belongs to the thread that opened it; the controller gives it a thread of its own.
Every method that changes something returns only after the change is on disk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from app.answer_stats import AnswerStats
from app.conversation_database import BUSY_TIMEOUT_MS, StoreError, open_database, store_error, transaction
from app.titles import MAX_TITLE_LENGTH, UNTITLED, one_line, title_from
from engine.notices import Notice

Role = Literal["user", "assistant", "system"]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class MessageStatus(StrEnum):
    """Where a message stands. User messages are COMPLETE from the start."""

    WRITING = "writing"  # the answer grows now
    COMPLETE = "complete"  # the model ended it, or a limit did (see AnswerStats.finish_reason)
    STOPPED = "stopped"  # the person stopped it; the text so far is kept
    INTERRUPTED = "interrupted"  # the program ended while it grew; the text so far is kept
    FAILED = "failed"  # the engine could not go on; the text so far is kept


@dataclass(frozen=True)
class Message:
    """One turn, as it stands on disk. `thinking` is what the model wrote between its thinking tags."""

    id: str
    conversation_id: str
    role: Role
    text: str
    thinking: str
    status: MessageStatus
    created_at: datetime  # UTC
    stats: AnswerStats | None = None


@dataclass(frozen=True)
class ConversationSummary:
    """A line of the conversation list."""

    id: str
    title: str
    created_at: datetime  # UTC
    updated_at: datetime  # UTC; the last message
    model_path: Path | None = None  # the model of the last answer


@dataclass(frozen=True)
class Conversation:
    """A whole conversation, oldest message first."""

    summary: ConversationSummary
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True)
class Exchange:
    """A question that is on disk, and the row its answer will grow in."""

    summary: ConversationSummary
    question: Message
    answer: Message  # WRITING, empty
    history: tuple[Message, ...]  # everything before the answer, the question last


_MESSAGE_COLUMNS = "id, conversation_id, role, text, thinking, status, created_us, stats"
_SUMMARY_COLUMNS = "id, title, created_us, updated_us, model_path"


class ConversationStore:
    """The only thing that touches the file. Every method may raise StoreError; then nothing was changed."""

    def __init__(self, path: Path, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> None:
        """Open or make the file. An answer that was being written when the program ended becomes
        INTERRUPTED.
        """
        self.path = path
        opened = open_database(path, busy_timeout_ms=busy_timeout_ms)
        self._connection = opened.connection
        self.read_only = opened.read_only
        self.notices: tuple[Notice, ...] = (opened.notice,) if opened.notice else ()
        if not self.read_only:
            try:
                with self._changing("opening the conversations"):
                    self._connection.execute(
                        "UPDATE messages SET status = ? WHERE status = ?",
                        (MessageStatus.INTERRUPTED, MessageStatus.WRITING),
                    )
            except StoreError:
                self._connection.close()
                raise

    def close(self) -> None:
        self._connection.close()

    # Reading

    def summaries(self) -> list[ConversationSummary]:
        """All conversations, the one with the newest message first."""
        with self._reading("reading the list of conversations"):
            rows = self._connection.execute(
                f"SELECT {_SUMMARY_COLUMNS} FROM conversations ORDER BY activity DESC"
            ).fetchall()
        return [_summary(row) for row in rows]

    def conversation(self, conversation_id: str) -> Conversation:
        with self._reading("opening the conversation"):
            return Conversation(self._summary(conversation_id), self._messages(conversation_id))

    # Conversations

    def create(self, title: str = "", *, model_path: Path | None = None) -> ConversationSummary:
        """A new conversation. With no title it is named after its first user message."""
        with self._changing("making a conversation"):
            return self._summary(self._insert_conversation(title, model_path))

    def rename(self, conversation_id: str, title: str) -> ConversationSummary:
        title = one_line(title)[:MAX_TITLE_LENGTH]
        if not title:
            raise StoreError("empty-title", "A conversation needs a name.", "Type a name, then confirm it.")
        with self._changing("renaming the conversation"):
            self._summary(conversation_id)
            self._connection.execute(
                "UPDATE conversations SET title = ?, renamed = 1 WHERE id = ?", (title, conversation_id)
            )
            return self._summary(conversation_id)

    def delete(self, conversation_id: str) -> None:
        """Delete it with all its messages. One that is gone already is no error."""
        with self._changing("deleting the conversation"):
            self._connection.execute("DELETE FROM conversations WHERE id = ?", (conversation_id,))

    # Messages

    def begin_exchange(
        self, conversation_id: str | None, text: str, *, model_path: Path | None = None
    ) -> Exchange:
        """Save a question and the empty row of its answer in one step; None makes the conversation as
        well.
        """
        with self._changing("saving the message"):
            if conversation_id is None:
                conversation_id = self._insert_conversation("", model_path)
            question = self._insert_message(conversation_id, "user", text, MessageStatus.COMPLETE)
            history = self._messages(conversation_id)
            answer = self._insert_message(conversation_id, "assistant", "", MessageStatus.WRITING)
            if model_path is not None:
                self._connection.execute(
                    "UPDATE conversations SET model_path = ? WHERE id = ?",
                    (storable(str(model_path)), conversation_id),
                )
            return Exchange(self._summary(conversation_id), question, answer, history)

    def add_message(
        self,
        conversation_id: str,
        role: Role,
        text: str,
        *,
        status: MessageStatus = MessageStatus.COMPLETE,
    ) -> Message:
        with self._changing("saving the message"):
            return self._insert_message(conversation_id, role, text, status)

    def extend_answer(self, message_id: str, *, text: str, thinking: str = "") -> bool:
        """Write how far a WRITING answer has come (the whole text so far, so that a failed call can simply be
        made again). False: its conversation has been deleted, and nothing was written.
        """
        with self._changing("saving the answer"):
            cursor = self._connection.execute(
                "UPDATE messages SET text = ?, thinking = ? WHERE id = ?",
                (storable(text), storable(thinking), message_id),
            )
            return cursor.rowcount == 1

    def finish_answer(
        self,
        message_id: str,
        *,
        text: str,
        thinking: str = "",
        status: MessageStatus,
        stats: AnswerStats | None = None,
    ) -> Message | None:
        """Write the end of an answer. None: its conversation has been deleted, and nothing was written."""
        with self._changing("saving the answer"):
            cursor = self._connection.execute(
                "UPDATE messages SET text = ?, thinking = ?, status = ?, stats = ? WHERE id = ?",
                (storable(text), storable(thinking), status, stats.as_json() if stats else None, message_id),
            )
            if cursor.rowcount == 0:
                return None
            message = self._message(message_id)
            self._touch(message.conversation_id)
            return message

    # Inside a transaction

    def _insert_conversation(self, title: str, model_path: Path | None) -> str:
        conversation_id = uuid4().hex
        now_us = _now_us()
        title = one_line(title)[:MAX_TITLE_LENGTH]
        self._connection.execute(
            "INSERT INTO conversations (id, title, renamed, model_path, created_us, updated_us, activity)"
            " VALUES (?, ?, ?, ?, ?, ?, (SELECT ifnull(max(activity), 0) + 1 FROM conversations))",
            (
                conversation_id,
                title or UNTITLED,
                int(bool(title)),
                storable(str(model_path)) if model_path else None,
                now_us,
                now_us,
            ),
        )
        return conversation_id

    def _insert_message(self, conversation_id: str, role: Role, text: str, status: MessageStatus) -> Message:
        self._summary(conversation_id)  # raises when it is gone
        if role == "user":
            self._name_after_first_question(conversation_id, text)
        message_id = uuid4().hex
        self._connection.execute(
            "INSERT INTO messages (id, conversation_id, role, text, status, created_us)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (message_id, conversation_id, role, storable(text), status, _now_us()),
        )
        self._touch(conversation_id)
        return self._message(message_id)

    def _name_after_first_question(self, conversation_id: str, text: str) -> None:
        title = title_from(text)
        if title:
            self._connection.execute(
                "UPDATE conversations SET title = ? WHERE id = ? AND renamed = 0 AND NOT EXISTS"
                " (SELECT 1 FROM messages WHERE conversation_id = ? AND role = 'user')",
                (title, conversation_id, conversation_id),
            )

    def _touch(self, conversation_id: str) -> None:
        self._connection.execute(
            "UPDATE conversations SET updated_us = ?,"
            " activity = (SELECT max(activity) + 1 FROM conversations) WHERE id = ?",
            (_now_us(), conversation_id),
        )

    def _summary(self, conversation_id: str) -> ConversationSummary:
        row = self._connection.execute(
            f"SELECT {_SUMMARY_COLUMNS} FROM conversations WHERE id = ?", (conversation_id,)
        ).fetchone()
        if row is None:
            raise StoreError(
                "conversation-gone",
                "This conversation has been deleted.",
                "Choose another one, or begin a new chat.",
            )
        return _summary(row)

    def _messages(self, conversation_id: str) -> tuple[Message, ...]:
        rows = self._connection.execute(
            f"SELECT {_MESSAGE_COLUMNS} FROM messages WHERE conversation_id = ? ORDER BY sequence",
            (conversation_id,),
        ).fetchall()
        messages = tuple(_message(row) for row in rows)
        if self.read_only:  # nobody is writing it here, and the file can't be told so
            return tuple(_interrupted(message) for message in messages)
        return messages

    def _message(self, message_id: str) -> Message:
        row = self._connection.execute(
            f"SELECT {_MESSAGE_COLUMNS} FROM messages WHERE id = ?", (message_id,)
        ).fetchone()
        return _message(row)

    @contextmanager
    def _changing(self, doing: str) -> Iterator[None]:
        if self.read_only:
            raise StoreError(
                "store-read-only",
                f"{doing[:1].upper()}{doing[1:]} failed: the conversations in {self.path} can only be read.",
                self.notices[0].hint,
            )
        with self._reading(doing), transaction(self._connection):
            yield

    @contextmanager
    def _reading(self, doing: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise store_error(error, self.path, doing=doing) from error


def storable(text: str) -> str:
    """`text` as UTF-8 can hold it: halves of surrogate pairs are joined, a lone half becomes U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _now_us() -> int:
    return (datetime.now(UTC) - _EPOCH) // timedelta(microseconds=1)


def _time(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def _summary(row: tuple[Any, ...]) -> ConversationSummary:
    conversation_id, title, created_us, updated_us, model_path = row
    return ConversationSummary(
        id=conversation_id,
        title=title,
        created_at=_time(created_us),
        updated_at=_time(updated_us),
        model_path=Path(model_path) if model_path else None,
    )


def _message(row: tuple[Any, ...]) -> Message:
    message_id, conversation_id, role, text, thinking, status, created_us, stats = row
    return Message(
        id=message_id,
        conversation_id=conversation_id,
        role=role,
        text=text,
        thinking=thinking,
        status=_status(status),
        created_at=_time(created_us),
        stats=AnswerStats.from_json(stats) if stats else None,
    )


def _status(value: str) -> MessageStatus:
    try:
        return MessageStatus(value)
    except ValueError:  # a newer version's; the text is what counts when its file is only read
        return MessageStatus.COMPLETE


def _interrupted(message: Message) -> Message:
    writing = message.status is MessageStatus.WRITING
    return replace(message, status=MessageStatus.INTERRUPTED) if writing else message
