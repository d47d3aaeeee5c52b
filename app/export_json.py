"""Conversations as JSON of our own: everything there is of them, so that an import gives the same again.

A list of objects, each of which says what it is. Times are ISO 8601, keys are those of the file alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from app.answer_stats import AnswerStats
from app.archive import ArchivedConversation, ArchivedMessage
from app.attachments import attachments_as_json, attachments_from_json
from app.chat_settings import ChatSettings
from app.conversation_records import MessageStatus, Role
from app.import_json import WrongFieldError, as_object, list_field, text_field

FORMAT = "kestrel-chat-conversation"
VERSION = 1


def as_json(conversation: ArchivedConversation) -> str:
    values = {
        "format": FORMAT,
        "version": VERSION,
        "title": conversation.title,
        "created_at": _written(conversation.created_at),
        "updated_at": _written(conversation.updated_at),
        "model_path": str(conversation.model_path) if conversation.model_path else None,
        "pinned": conversation.pinned,
        "tags": list(conversation.tags),
        "settings": json.loads(conversation.settings.as_json() or "null"),
        "shown": conversation.shown,
        "messages": [_message_values(message) for message in conversation.messages],
    }
    return json.dumps(values, ensure_ascii=False, indent=1)


def is_own(value: Mapping[str, Any]) -> bool:
    return value.get("format") == FORMAT


def conversation_from_json(value: Mapping[str, Any]) -> ArchivedConversation:
    """Raises WrongFieldError."""
    version = value.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version > VERSION:
        raise WrongFieldError("“version” is that of a newer program")
    messages: dict[str, ArchivedMessage] = {}
    for one in list_field(value, "messages"):
        message = _message(as_object(one, "messages"))
        if message.key in messages or (message.parent is not None and message.parent not in messages):
            raise WrongFieldError("a message stands twice, or before the one that it follows")
        messages[message.key] = message
    shown = text_field(value, "shown")
    model_path = text_field(value, "model_path")
    return ArchivedConversation(
        title=text_field(value, "title"),
        messages=tuple(messages.values()),
        shown=shown if shown in messages else None,
        created_at=_time(value, "created_at"),
        updated_at=_time(value, "updated_at"),
        model_path=Path(model_path) if model_path and "\0" not in model_path else None,
        pinned=value.get("pinned") is True,
        tags=tuple(one for one in list_field(value, "tags") if isinstance(one, str)),
        settings=ChatSettings.from_json(json.dumps(value.get("settings"))),
    )


def _message_values(message: ArchivedMessage) -> dict[str, Any]:
    return {
        "key": message.key,
        "parent": message.parent,
        "role": message.role,
        "text": message.text,
        "thinking": message.thinking,
        "status": message.status,
        "created_at": _written(message.created_at),
        "stats": json.loads(message.stats.as_json()) if message.stats else None,
        "attachments": json.loads(attachments_as_json(message.attachments) or "[]"),
    }


def _message(values: Mapping[str, Any]) -> ArchivedMessage:
    key = text_field(values, "key")
    if not key:
        raise WrongFieldError("a message has no “key”")
    role = next((one for one in get_args(Role) if one == values.get("role")), None)
    if role is None:
        raise WrongFieldError("“role” is none of user, assistant and system")
    try:
        status = MessageStatus(text_field(values, "status") or "complete")
    except ValueError as error:
        raise WrongFieldError("“status” is not known") from error
    stats = values.get("stats")
    return ArchivedMessage(
        key=key,
        parent=text_field(values, "parent") or None,
        role=role,
        text=text_field(values, "text"),
        thinking=text_field(values, "thinking"),
        status=status,
        created_at=_time(values, "created_at"),
        stats=AnswerStats.from_json(json.dumps(stats)) if isinstance(stats, dict) else None,
        attachments=attachments_from_json(json.dumps(list_field(values, "attachments"))),
    )


def _written(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment is not None else None


def _time(values: Mapping[str, Any], key: str) -> datetime | None:
    text = text_field(values, key)
    try:
        moment = datetime.fromisoformat(text) if text else None
        if moment is None or moment.tzinfo is not None:
            return moment.astimezone(UTC) if moment is not None else None
        return moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise WrongFieldError(f"“{key}” is not a time") from error
