"""Conversations on disk: the records the program shows, and the store that keeps them in SQLite.

No Qt here. A store belongs to the thread that opened it; the controller gives it a thread of its own.
Every method that changes something returns only after the change is on disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Literal

Role = Literal["user", "assistant", "system"]


class MessageStatus(StrEnum):
    """Where a message stands. User messages are COMPLETE from the start."""

    WRITING = "writing"  # the answer grows now
    COMPLETE = "complete"  # the model ended it, or a limit did (see AnswerStats.finish_reason)
    STOPPED = "stopped"  # the person stopped it; the text so far is kept
    INTERRUPTED = "interrupted"  # the program ended while it grew; the text so far is kept
    FAILED = "failed"  # the engine could not go on; the text so far is kept


@dataclass(frozen=True)
class AnswerStats:
    """What an answer cost. The first token comes from the prefill and is not in `decode_tokens`."""

    prompt_tokens: int
    reused_tokens: int
    prefill_seconds: float
    decode_tokens: int
    decode_seconds: float
    finish_reason: str
    device: str

    @property
    def decode_tokens_per_second(self) -> float:
        return self.decode_tokens / self.decode_seconds if self.decode_seconds > 0 else 0.0

    @property
    def prefill_tokens_per_second(self) -> float:
        read = self.prompt_tokens - self.reused_tokens
        return read / self.prefill_seconds if self.prefill_seconds > 0 else 0.0


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
