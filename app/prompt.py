"""Which of a conversation's messages the model gets to read, and the prompt that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from app.attachments import content_with
from app.context_policy import (
    ContextPolicy,
    kept_messages,
    left_out_of,
    possible_cuts,
    prompt_limit,
    without_oldest,
)
from app.conversation_records import Message, MessageStatus

if TYPE_CHECKING:
    from engine.model_summary import ModelSummary
    from engine.templates.chat_template import ChatMessage, ChatPrompt


class PromptEngine(Protocol):
    """What rendering needs of engine/engine.py."""

    summary: ModelSummary

    def chat_prompt(self, messages: Sequence[ChatMessage]) -> ChatPrompt: ...
    def encode(self, text: str) -> list[int]: ...


@dataclass(frozen=True)
class FittedPrompt:
    """`left_out` of the oldest messages are not in it; `cut_anew`: more or fewer than in the turn before."""

    prompt: ChatPrompt
    left_out: int = 0
    cut_anew: bool = False


def with_instructions(messages: Sequence[Message], instructions: str) -> tuple[Message, ...]:
    """The messages behind what the model is told before all of them; "" is nothing."""
    if not instructions.strip():
        return tuple(messages)
    told = Message(
        id="",
        conversation_id=messages[0].conversation_id if messages else "",
        role="system",
        text=instructions,
        thinking="",
        status=MessageStatus.COMPLETE,
        created_at=messages[0].created_at if messages else datetime.now(UTC),
    )
    return (told, *messages)


def chat_messages(messages: Sequence[Message]) -> list[ChatMessage]:
    """The turns for the chat template, oldest first.

    An answer with no text (stopped or failed before its first word, or while it still thought) is left out:
    an empty assistant turn teaches the model to be silent. The user turns around it may then stand side by
    side, which the chat template deals with.
    """
    # On the engine's thread: it brings the template engine with it.
    from engine.templates.chat_template import ChatMessage

    return [
        ChatMessage(role=message.role, content=_content(message), thinking=message.thinking)
        for message in messages
        if message.role != "assistant" or message.text.strip()
    ]


def fitted_prompt(engine: PromptEngine, messages: Sequence[Message], policy: ContextPolicy) -> FittedPrompt:
    """The prompt of all messages, or with DROP_OLDEST of as many as leave an answer some room.

    When even the last turn alone is too long, its prompt is returned as it is: the engine then says so.
    """
    prompt = engine.chat_prompt(chat_messages(messages))
    limit = prompt_limit(engine.summary.context_length)
    before = left_out_of(messages)
    if policy is ContextPolicy.STOP or len(prompt.ids) <= limit:
        return FittedPrompt(prompt, cut_anew=before > 0)
    counts = _message_tokens(engine, messages, total=len(prompt.ids))
    kept = kept_messages(messages, counts, limit, left_out_before=before)
    prompt = engine.chat_prompt(chat_messages(kept.messages))
    # Counts of single messages are estimates: what the template adds to each isn't known.
    for more in (cut for cut in possible_cuts(messages) if cut > kept.left_out):
        if len(prompt.ids) <= limit:
            break
        kept = without_oldest(messages, more)
        prompt = engine.chat_prompt(chat_messages(kept.messages))
    return FittedPrompt(prompt, kept.left_out, cut_anew=kept.left_out != before)


def opening_prompt(engine: PromptEngine, messages: Sequence[Message], policy: ContextPolicy) -> ChatPrompt:
    """A prompt that begins as the next one will, whatever is asked in it: templates may write an answer
    otherwise once a question follows, without its thinking for one, and behind a question no answer begins.
    """
    question = replace(messages[-1], role="user", text="?", thinking="", stats=None, attachments=())
    return fitted_prompt(engine, [*messages, question], policy).prompt


def _message_tokens(engine: PromptEngine, messages: Sequence[Message], *, total: int) -> list[int]:
    """Tokens of each message, so that they sum up to at least `total`, that of the whole prompt."""
    texts = [0 if _is_unread(message) else len(engine.encode(_content(message))) for message in messages]
    # What the template puts around each, rounded up.
    frame = max(0, -(-(total - sum(texts)) // len(messages)))
    return [count + frame for count in texts]


def _content(message: Message) -> str:
    return content_with(message.text, message.attachments)


def _is_unread(message: Message) -> bool:
    return message.role == "assistant" and not message.text.strip()
