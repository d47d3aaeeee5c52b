"""LM Studio's *.conversation.json: one conversation, each message with its versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.archive import ArchivedConversation, ArchivedMessage
from app.chat_settings import MAX_INSTRUCTIONS, ChatSettings
from app.import_json import WrongFieldError, as_object, list_field, object_field, text_field, time_field


def is_lmstudio(value: Mapping[str, Any]) -> bool:
    messages = value.get("messages")
    return isinstance(messages, list) and all(
        isinstance(one, dict) and isinstance(one.get("versions"), list) for one in messages
    )


def conversation_from_lmstudio(value: Mapping[str, Any]) -> ArchivedConversation:
    """Raises WrongFieldError. Versions of a message stand beside each other; what follows belongs to the one
    that is selected, as it does there. Pictures, and what tools were asked, are left out.
    """
    messages: list[ArchivedMessage] = []
    parent: str | None = None
    for place, message in enumerate(list_field(value, "messages")):
        versions = list_field(as_object(message, "messages"), "versions")
        if not versions:
            continue
        selected = message.get("currentlySelected", 0)
        if isinstance(selected, bool) or not isinstance(selected, int) or not 0 <= selected < len(versions):
            raise WrongFieldError("“currentlySelected” names no version")
        found = {
            number: one
            for number, version in enumerate(versions)
            if (one := _message(as_object(version, "versions"), f"{place}.{number}", parent)) is not None
        }
        messages += found.values()
        if selected in found:
            parent = found[selected].key
        elif found:
            parent = list(found.values())[-1].key
    return ArchivedConversation(
        title=text_field(value, "name"),
        messages=tuple(messages),
        shown=parent,
        created_at=time_field(value, "createdAt"),
        updated_at=time_field(value, "assistantLastMessagedAt") or time_field(value, "userLastMessagedAt"),
        pinned=value.get("pinned") is True,
        settings=ChatSettings(instructions=_instructions(value)[:MAX_INSTRUCTIONS]),
    )


def _instructions(value: Mapping[str, Any]) -> str:
    for field in list_field(object_field(value, "perChatPredictionConfig"), "fields"):
        if isinstance(field, dict) and field.get("key") == "llm.prediction.systemPrompt":
            return text_field(field, "value")
    if prompt := text_field(value, "systemPrompt"):
        return prompt
    for message in list_field(value, "messages"):  # where older versions kept it
        for version in list_field(message, "versions")[:1]:
            if isinstance(version, dict) and version.get("role") == "system":
                return _text(version)
    return ""


def _message(version: Mapping[str, Any], key: str, parent: str | None) -> ArchivedMessage | None:
    role = text_field(version, "role")
    if role not in ("user", "assistant"):
        return None
    texts: list[str] = []
    thoughts: list[str] = []
    if version.get("steps") is None:
        texts.append(_text(version))
    for step in list_field(version, "steps"):
        if text_field(as_object(step, "steps"), "type") == "contentBlock":
            style = object_field(step, "style")
            (thoughts if text_field(style, "type") == "thinking" else texts).append(_text(step))
    text = "\n\n".join(one for one in texts if one.strip())
    thinking = "\n\n".join(one for one in thoughts if one.strip())
    if not text and not thinking:
        return None
    return ArchivedMessage(key, parent, "user" if role == "user" else "assistant", text, thinking)


def _text(holder: Mapping[str, Any]) -> str:
    parts = [as_object(one, "content") for one in list_field(holder, "content")]
    return "".join(text_field(part, "text") for part in parts if part.get("type") == "text")
