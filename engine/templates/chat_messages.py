"""The messages of a chat, and how they are rewritten for a template that can't take them as they are.

Templates differ in what they allow: some know no system role, some insist that user and assistant take turns.
A chat that a person really has, with stopped answers and system texts, must go on all the same. Each rewrite
is a function of the messages alone, so the same chat is always rewritten in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from engine.notices import Notice


@dataclass(frozen=True)
class ChatMessage:
    """`role` is "system", "user", "assistant" or "tool". `thinking` is what an assistant thought before
    `content`.
    """

    role: str
    content: str
    thinking: str = ""

    @property
    def is_blank(self) -> bool:
        return not self.content.strip() and not self.thinking.strip()


Messages = tuple[ChatMessage, ...]


@dataclass(frozen=True)
class Rewrite:
    """`apply` returns the messages unchanged where there is nothing to do. The notice is what the person is
    told.
    """

    apply: Callable[[Messages], Messages]
    notice: Notice


def _join(first: str, second: str) -> str:
    return "\n\n".join(text for text in (first, second) if text.strip())


def drop_blank_answers(messages: Messages) -> Messages:
    """Answers that were stopped before their first word."""
    return tuple(message for message in messages if message.role != "assistant" or not message.is_blank)


def fold_system(messages: Messages) -> Messages:
    """The system text goes before the user turn that follows it, or becomes a user turn where none does."""
    folded: list[ChatMessage] = []
    pending = ""
    for message in messages:
        if message.role == "system":
            pending = _join(pending, message.content)
            continue
        if pending.strip():
            if message.role == "user":
                message = replace(message, content=_join(pending, message.content))
            else:
                folded.append(ChatMessage("user", pending))
        pending = ""
        folded.append(message)
    if pending.strip():
        folded.append(ChatMessage("user", pending))
    return tuple(folded)


def _answers_first(messages: Messages) -> int | None:
    """Where the chat begins with an answer that nobody asked for."""
    index = next((i for i, message in enumerate(messages) if message.role != "system"), None)
    return index if index is not None and messages[index].role == "assistant" else None


def add_first_user_turn(messages: Messages) -> Messages:
    """An empty user turn before a chat that begins with an answer: a greeting, say."""
    index = _answers_first(messages)
    if index is None:
        return messages
    return (*messages[:index], ChatMessage("user", ""), *messages[index:])


def drop_first_answers(messages: Messages) -> Messages:
    while (index := _answers_first(messages)) is not None:
        messages = (*messages[:index], *messages[index + 1 :])
    return messages


def join_turns(messages: Messages) -> Messages:
    """Turns of one role that follow each other become one, with a blank line between them."""
    joined: list[ChatMessage] = []
    for message in messages:
        if joined and joined[-1].role == message.role and message.role != "tool":
            before = joined.pop()
            message = ChatMessage(
                message.role,
                _join(before.content, message.content),
                _join(before.thinking, message.thinking),
            )
        joined.append(message)
    return tuple(joined)


# In the order in which they are applied, and the cheapest first among equally many.
REWRITES = (
    Rewrite(
        drop_blank_answers,
        Notice(
            "template-empty-answer-dropped",
            "The chat template takes no empty answers, so stopped answers without text were left out.",
        ),
    ),
    Rewrite(
        fold_system,
        Notice(
            "template-system-folded",
            "The chat template has no system role, so the system text was put before the user's.",
        ),
    ),
    Rewrite(
        add_first_user_turn,
        Notice(
            "template-user-turn-added",
            "The chat template wants the user to begin, so an empty user turn was put first.",
        ),
    ),
    Rewrite(
        drop_first_answers,
        Notice(
            "template-first-answer-dropped",
            "The chat template wants the user to begin, so the answers before that were left out.",
        ),
    ),
    Rewrite(
        join_turns,
        Notice(
            "template-turns-joined",
            "The chat template wants user and assistant to take turns, so turns in a row were joined.",
        ),
    ),
)


def rewrites_of(messages: Messages) -> Iterator[tuple[Messages, tuple[Notice, ...]]]:
    """The messages as they are, then every way to rewrite them, the fewest rewrites first.

    A way in which one of the rewrites changes nothing is left out: it came before, with one rewrite less.
    """
    for count in range(len(REWRITES) + 1):
        for chosen in combinations(REWRITES, count):
            result = messages
            for rewrite in chosen:
                changed = rewrite.apply(result)
                if changed == result:
                    break
                result = changed
            else:
                yield result, tuple(rewrite.notice for rewrite in chosen)
