"""ChatGPT's conversations.json: each conversation is a tree of nodes, some of which hold what was said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.archive import ArchivedConversation, ArchivedMessage
from app.import_json import WrongFieldError, as_object, list_field, object_field, text_field, time_field

_NOTHING_SAID = frozenset({"user_editable_context", "model_editable_context", "reasoning_recap"})


def is_chatgpt(value: Mapping[str, Any]) -> bool:
    return isinstance(value.get("mapping"), dict)


def conversation_from_chatgpt(value: Mapping[str, Any]) -> ArchivedConversation:
    """Raises WrongFieldError. What was said to and by tools is left out, and so are pictures and sound."""
    nodes = {key: as_object(node, "mapping") for key, node in object_field(value, "mapping").items()}
    messages: list[ArchivedMessage] = []
    stands_for: dict[str | None, str | None] = {None: None}  # by node: the message there, or else above it
    is_alone: dict[str, bool] = {}  # by node: from that message down to it, nothing else follows
    places: dict[str, int] = {}  # of messages, by key
    for key in _from_the_top(nodes):
        parent = _parent_of(nodes, key)
        above = stands_for[parent]
        alone = parent is not None and len(list_field(nodes[parent], "children")) <= 1
        is_alone[key] = alone and (parent == above or is_alone[parent])
        message = _message(nodes[key], key, above)
        if message is None:
            stands_for[key] = above
        elif above is not None and is_alone[key] and _goes_on(messages[places[above]], message):
            messages[places[above]] = _joined(messages[places[above]], message)
            stands_for[key] = above
        else:
            stands_for[key] = key
            places[key] = len(messages)
            messages.append(message)
    shown = value.get("current_node")
    return ArchivedConversation(
        title=text_field(value, "title"),
        messages=tuple(messages),
        shown=stands_for.get(shown) if isinstance(shown, str) else None,
        created_at=time_field(value, "create_time"),
        updated_at=time_field(value, "update_time"),
    )


def _parent_of(nodes: Mapping[str, Mapping[str, Any]], key: str) -> str | None:
    """None: nothing is above it, in this file at least."""
    parent = nodes[key].get("parent")
    if parent is not None and not isinstance(parent, str):
        raise WrongFieldError("“parent” is not a text")
    return parent if parent in nodes else None


def _from_the_top(nodes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """All nodes, parents before children, children in their order. A circle is refused."""
    children: dict[str | None, list[str]] = {}
    for key in nodes:
        children.setdefault(_parent_of(nodes, key), []).append(key)
    for parent, found in children.items():
        if parent is not None:
            places = enumerate(list_field(nodes[parent], "children"))
            order = {one: place for place, one in places if isinstance(one, str)}
            found.sort(key=lambda one, order=order: order.get(one, len(order)))
    result: list[str] = []
    left = list(reversed(children.get(None, [])))
    while left:
        key = left.pop()
        result.append(key)
        left.extend(reversed(children.get(key, [])))
    if len(result) < len(nodes):
        raise WrongFieldError("messages follow one another in a circle")
    return result


def _message(node: Mapping[str, Any], key: str, parent: str | None) -> ArchivedMessage | None:
    """None: nothing was said there that a person sees."""
    if node.get("message") is None:
        return None
    message = object_field(node, "message")
    role = text_field(object_field(message, "author"), "role")
    metadata = object_field(message, "metadata")
    if role not in ("user", "assistant") or metadata.get("is_visually_hidden_from_conversation") is True:
        return None
    if message.get("recipient") not in (None, "all"):
        return None  # a call of a tool
    content = object_field(message, "content")
    kind = text_field(content, "content_type")
    if kind in _NOTHING_SAID:
        return None
    thinking = _thoughts(content) if kind == "thoughts" else ""
    text = "" if thinking else _text(content, kind)
    if not text.strip() and not thinking.strip():
        return None
    return ArchivedMessage(
        key=key,
        parent=parent,
        role="user" if role == "user" else "assistant",
        text=text,
        thinking=thinking,
        created_at=time_field(message, "create_time"),
    )


def _text(content: Mapping[str, Any], kind: str) -> str:
    if kind == "code":
        return f"```\n{text_field(content, 'text')}\n```"
    parts = [part if isinstance(part, str) else _spoken(part) for part in list_field(content, "parts")]
    return "\n\n".join(part for part in parts if part.strip()) or text_field(content, "text")


def _spoken(part: Any) -> str:
    """The words of a part that is not text: of sound, what was heard."""
    is_transcript = isinstance(part, dict) and part.get("content_type") == "audio_transcription"
    return text_field(part, "text") if is_transcript else ""


def _thoughts(content: Mapping[str, Any]) -> str:
    thoughts = [as_object(one, "thoughts") for one in list_field(content, "thoughts")]
    return "\n\n".join(text for one in thoughts if (text := text_field(one, "content")).strip())


def _goes_on(above: ArchivedMessage, message: ArchivedMessage) -> bool:
    """An answer with tools comes in several nodes."""
    return above.role == message.role == "assistant"


def _joined(above: ArchivedMessage, message: ArchivedMessage) -> ArchivedMessage:
    return replace(
        above,
        text="\n\n".join(part for part in (above.text, message.text) if part),
        thinking="\n\n".join(part for part in (above.thinking, message.thinking) if part),
    )
