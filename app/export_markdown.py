"""Conversations as Markdown, as they are shown, to be read, pasted or printed.

Headings are in the language of the window.
"""

from __future__ import annotations

from app.archive import ArchivedConversation, ArchivedMessage
from app.attachments import FILE_HEADING, content_with
from app.language import mark, tr
from app.titles import UNTITLED

_SPEAKERS = {"user": mark("You"), "assistant": mark("Answer"), "system": mark("Instructions")}


def as_markdown(conversation: ArchivedConversation) -> str:
    parts = [f"# {conversation.title or tr(UNTITLED)}"]
    if conversation.tags:
        parts.append(" ".join(f"#{tag.replace(' ', '-')}" for tag in conversation.tags))
    if conversation.settings.instructions:
        parts.append(f"## {tr(_SPEAKERS['system'])}\n\n{conversation.settings.instructions.strip()}")
    parts += [_message(message) for message in conversation.path()]
    return "\n\n".join(parts) + "\n"


def _message(message: ArchivedMessage) -> str:
    parts = [f"## {tr(_SPEAKERS[message.role])}"]
    if message.thinking.strip():
        lines = message.thinking.strip().split("\n")
        parts.append("\n".join([f"> *{tr('Thinking')}*", ">", *(f"> {line}".rstrip() for line in lines)]))
    text = content_with(message.text, message.attachments, heading=tr(FILE_HEADING)).strip("\n")
    if text:
        parts.append(text)
    return "\n\n".join(parts)
