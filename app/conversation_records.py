"""What conversations are made of, as plain records: what the store returns and the window shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Literal

from app.answer_stats import AnswerStats
from app.attachments import Attachment
from app.chat_settings import ChatSettings

Role = Literal["user", "assistant", "system"]


class MessageStatus(StrEnum):
    """Where a message stands. User messages are COMPLETE from the start."""

    WRITING = "writing"  # the answer grows now
    WAITING = "waiting"  # it is WRITING on disk, but another conversation's answer has to end before it
    ELSEWHERE = "elsewhere"  # it is WRITING on disk, by another window
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
    version: int = 1  # which of its versions it is, and how many there are: a message that was edited or
    versions: int = 1  # answered anew keeps the old ones beside it
    attachments: tuple[Attachment, ...] = ()  # files that came with it


@dataclass(frozen=True)
class ConversationSummary:
    """A line of the conversation list."""

    id: str
    title: str
    created_at: datetime  # UTC
    updated_at: datetime  # UTC; the last message
    model_path: Path | None = None  # the model of the last answer
    pinned: bool = False
    unread: bool = False  # an answer ended in it that nobody has seen yet
    tags: tuple[str, ...] = ()  # by name


@dataclass(frozen=True)
class Conversation:
    """A conversation as it is shown: of every message the version that was looked at last, oldest first."""

    summary: ConversationSummary
    messages: tuple[Message, ...] = ()
    settings: ChatSettings = field(default_factory=ChatSettings)


@dataclass(frozen=True)
class Exchange:
    """A question that is on disk, and the row its answer will grow in. It may be a new version of either."""

    summary: ConversationSummary
    question: Message
    answer: Message  # WRITING, empty
    history: tuple[Message, ...]  # everything before the answer, the question last
    settings: ChatSettings = field(default_factory=ChatSettings)


def storable(text: str) -> str:
    """`text` as UTF-8 can hold it: halves of surrogate pairs are joined, a lone half becomes U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
