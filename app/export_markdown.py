"""Conversations as Markdown, as they are shown: to be read, pasted or printed."""

from __future__ import annotations

from app.archive import ArchivedConversation, ArchivedMessage
from app.attachments import content_with
from app.titles import UNTITLED

_SPEAKERS = {"user": "You", "assistant": "Answer", "system": "Instructions"}


def as_markdown(conversation: ArchivedConversation) -> str:
    parts = [f"# {conversation.title or UNTITLED}"]
    if conversation.tags:
        parts.append(" ".join(f"#{tag.replace(' ', '-')}" for tag in conversation.tags))
    if conversation.settings.instructions:
        parts.append(f"## {_SPEAKERS['system']}\n\n{conversation.settings.instructions.strip()}")
    parts += [_message(message) for message in conversation.path()]
    return "\n\n".join(parts) + "\n"


def _message(message: ArchivedMessage) -> str:
    parts = [f"## {_SPEAKERS[message.role]}"]
    if message.thinking.strip():
        lines = message.thinking.strip().split("\n")
        parts.append("\n".join(["> *Thinking*", ">", *(f"> {line}".rstrip() for line in lines)]))
    text = content_with(message.text, message.attachments).strip("\n")
    if text:
        parts.append(text)
    return "\n\n".join(parts)
