"""Conversations as files hold them: what is exported, and what an import found. Plain records."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from app.answer_stats import AnswerStats
from app.attachments import Attachment
from app.chat_settings import ChatSettings
from app.conversation_records import MessageStatus, Role


@dataclass(frozen=True)
class ArchivedMessage:
    """One message of a tree. `key` tells it from the others of its conversation."""

    key: str
    parent: str | None  # the key of the message that it follows; None: it is a first one
    role: Role
    text: str
    thinking: str = ""
    status: MessageStatus = MessageStatus.COMPLETE
    created_at: datetime | None = None  # UTC
    stats: AnswerStats | None = None
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True)
class ArchivedConversation:
    """A conversation with every version of its messages. Parents stand before their children, and versions of
    one message in their order.
    """

    title: str  # "": it is named after its first question
    messages: tuple[ArchivedMessage, ...]
    shown: str | None = None  # the key of the last message that is shown; None: the newest versions
    created_at: datetime | None = None  # UTC
    updated_at: datetime | None = None
    model_path: Path | None = None
    pinned: bool = False
    tags: tuple[str, ...] = ()
    settings: ChatSettings = field(default_factory=ChatSettings)

    def path(self) -> tuple[ArchivedMessage, ...]:
        """What is shown, oldest first."""
        by_key = {message.key: message for message in self.messages}
        if self.shown in by_key:
            path = [by_key[self.shown]]
            while path[-1].parent is not None:
                path.append(by_key[path[-1].parent])
            return tuple(reversed(path))
        newest = {message.parent: message for message in self.messages}  # the last one wins
        shown: list[ArchivedMessage] = []
        key: str | None = None
        while (message := newest.get(key)) is not None:
            shown.append(message)
            key = message.key
        return tuple(shown)
