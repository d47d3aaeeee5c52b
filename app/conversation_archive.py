"""Whole conversations out of the store and into it, with every version of their messages. In SQL."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from app.answer_stats import AnswerStats
from app.archive import ArchivedConversation, ArchivedMessage
from app.attachments import Attachment, attachments_as_json, attachments_from_json
from app.chat_settings import ChatSettings
from app.conversation_marks import sorted_tags, tag_name
from app.conversation_records import MessageStatus, storable
from app.language import tr
from app.record_times import microseconds_of, now_us, time_from
from app.titles import MAX_TITLE_LENGTH, UNTITLED, one_line, title_from

_ENDED = frozenset(MessageStatus) - {MessageStatus.WRITING, MessageStatus.WAITING, MessageStatus.ELSEWHERE}


def read_archived(connection: sqlite3.Connection, conversation_id: str) -> ArchivedConversation | None:
    """None: it has been deleted. An answer that is being written is taken as far as it is on disk."""
    row = connection.execute(
        "SELECT title, created_us, updated_us, model_path, pinned, settings, active_first FROM conversations"
        " WHERE id = ? AND deleted_by IS NULL",
        (conversation_id,),
    ).fetchone()
    if row is None:
        return None
    title, created_us, updated_us, model_path, pinned, settings, shown = row
    tags = connection.execute(
        "SELECT name FROM tags WHERE conversation_id = ?", (conversation_id,)
    ).fetchall()
    messages: list[ArchivedMessage] = []
    shown_next: dict[str, str | None] = {}
    for message_id, parent_id, active_child, *values in connection.execute(
        "SELECT id, parent_id, active_child, role, text, thinking, status, created_us, stats, attachments"
        " FROM messages WHERE conversation_id = ? ORDER BY sequence",
        (conversation_id,),
    ).fetchall():
        messages.append(_message(message_id, parent_id, *values))
        shown_next[message_id] = active_child
    while shown is not None and shown_next.get(shown) is not None:
        shown = shown_next[shown]
    return ArchivedConversation(
        title=title,
        messages=tuple(messages),
        shown=shown,
        created_at=time_from(created_us),
        updated_at=time_from(updated_us),
        model_path=Path(model_path) if model_path else None,
        pinned=bool(pinned),
        tags=sorted_tags(name for (name,) in tags),
        settings=ChatSettings.from_json(settings),
    )


def insert_archived(connection: sqlite3.Connection, conversation: ArchivedConversation) -> str:
    """Inside a transaction. Gives the id of the new conversation."""
    conversation_id = uuid4().hex
    now = now_us()
    created = microseconds_of(conversation.created_at, now)
    updated = microseconds_of(conversation.updated_at, created)
    title = one_line(conversation.title)[:MAX_TITLE_LENGTH]
    connection.execute(
        "INSERT INTO conversations"
        " (id, title, renamed, model_path, created_us, updated_us, pinned, settings, activity)"
        # Among the others by its time; those that are newer go on above it.
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?,"
        " (SELECT ifnull(max(activity), 0) FROM conversations WHERE updated_us <= ?))",
        (
            conversation_id,
            title or _first_title(conversation) or tr(UNTITLED),
            int(bool(title)),
            storable(str(conversation.model_path)) if conversation.model_path else None,
            created,
            updated,
            int(conversation.pinned),
            conversation.settings.as_json(),
            updated,
        ),
    )
    names = {name.casefold(): name for name in map(tag_name, conversation.tags) if name}
    connection.executemany(
        "INSERT INTO tags (conversation_id, name) VALUES (?, ?)",
        [(conversation_id, storable(name)) for name in names.values()],
    )
    _insert_messages(connection, conversation, conversation_id, created)
    return conversation_id


def _insert_messages(
    connection: sqlite3.Connection, conversation: ArchivedConversation, conversation_id: str, created: int
) -> None:
    ids = {message.key: uuid4().hex for message in conversation.messages}
    shown: dict[str | None, str] = {}  # by the message above it
    for message in conversation.messages:
        shown[message.parent] = message.key
    for message in conversation.path():
        shown[message.parent] = message.key
    connection.executemany(
        "INSERT INTO messages (id, conversation_id, role, text, thinking, status, created_us, stats,"
        " attachments, parent_id, active_child) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            (
                ids[message.key],
                conversation_id,
                message.role,
                storable(message.text),
                storable(message.thinking),
                message.status if message.status in _ENDED else MessageStatus.INTERRUPTED,
                microseconds_of(message.created_at, created),
                message.stats.as_json() if message.stats else None,
                attachments_as_json([_storable_file(one) for one in message.attachments]),
                ids[message.parent] if message.parent is not None else None,
                ids[shown[message.key]] if message.key in shown else None,
            )
            for message in conversation.messages
        ),
    )
    if None in shown:
        connection.execute(
            "UPDATE conversations SET active_first = ? WHERE id = ?", (ids[shown[None]], conversation_id)
        )


def _storable_file(attachment: Attachment) -> Attachment:
    return replace(attachment, name=storable(attachment.name), text=storable(attachment.text))


def _first_title(conversation: ArchivedConversation) -> str:
    questions = (message.text for message in conversation.path() if message.role == "user")
    return title_from(next(questions, ""))


def _message(
    message_id: str,
    parent_id: str | None,
    role: str,
    text: str,
    thinking: str,
    status: str,
    created_us: int,
    stats: str | None,
    attachments: str | None,
) -> ArchivedMessage:
    known = status in _ENDED
    return ArchivedMessage(
        key=message_id,
        parent=parent_id,
        role="assistant" if role == "assistant" else "system" if role == "system" else "user",
        text=text,
        thinking=thinking,
        status=MessageStatus(status) if known else MessageStatus.INTERRUPTED,
        created_at=time_from(created_us),
        stats=AnswerStats.from_json(stats) if stats else None,
        attachments=attachments_from_json(attachments),
    )
