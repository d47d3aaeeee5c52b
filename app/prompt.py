"""Which of a conversation's messages the model gets to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.conversations import Message

if TYPE_CHECKING:
    from engine.templates.chat_template import ChatMessage


def chat_messages(messages: Sequence[Message]) -> list[ChatMessage]:
    """The turns for the chat template, oldest first.

    An answer with no text (stopped or failed before its first word, or while it still thought) is left out:
    an empty assistant turn teaches the model to be silent. The user turns around it may then stand side by
    side, which the chat template deals with.
    """
    from engine.templates.chat_template import (
        ChatMessage,
    )  # on the engine's thread: it brings the template engine with it

    return [
        ChatMessage(role=message.role, content=message.text, thinking=message.thinking)
        for message in messages
        if message.role != "assistant" or message.text.strip()
    ]
