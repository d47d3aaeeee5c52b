"""What happens when a conversation outgrows the context, and which of its messages the model then reads.

Pure functions of messages and token counts. Cuts are made at the beginning of a turn and in big steps: a cut
leaves half of the context free, and later turns keep it, so that between two cuts the prompt's beginning
stays as it is and what was computed of it can be used again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.conversation_records import Message

_MAX_ANSWER_ROOM = 1_024  # tokens


class ContextPolicy(StrEnum):
    STOP = "stop"  # the answer ends, or isn't begun, and says why
    DROP_OLDEST = "drop-oldest"  # the oldest turns are no longer read; the system prompt always is


@dataclass(frozen=True)
class Kept:
    """`messages` are read; `left_out` of the oldest (the system prompt is never among them) are not."""

    messages: tuple[Message, ...]
    left_out: int


def prompt_limit(context: int) -> int:
    """Tokens of a prompt that leaves an answer some room. `context` is that of prompt and answer together."""
    return context - min(_MAX_ANSWER_ROOM, context // 4)


def kept_messages(
    messages: Sequence[Message], counts: Sequence[int], limit: int, *, left_out_before: int = 0
) -> Kept:
    """All messages while they fit; then the cut of the turn before while that fits; else a new cut that fills
    half of `limit` at most. The last turn is kept whatever its size.

    counts: tokens of each message; left_out_before: how many the last answer's prompt left out.
    """
    assert len(counts) == len(messages)
    if sum(counts) <= limit:
        return Kept(tuple(messages), 0)
    head = _num_instructions(messages)
    cuts = possible_cuts(messages)
    sizes = {cut: sum(counts[:head]) + sum(counts[head + cut :]) for cut in cuts}
    if left_out_before in sizes and sizes[left_out_before] <= limit:
        return without_oldest(messages, left_out_before)
    fitting = (cut for cut in cuts if sizes[cut] <= limit // 2)
    return without_oldest(messages, next(fitting, cuts[-1] if cuts else 0))


def possible_cuts(messages: Sequence[Message]) -> list[int]:
    """How many of the oldest messages may be left out, fewest first: what is left begins with a question."""
    head = _num_instructions(messages)
    return [i - head for i in range(head + 1, len(messages)) if messages[i].role == "user"]


def without_oldest(messages: Sequence[Message], left_out: int) -> Kept:
    head = _num_instructions(messages)
    return Kept((*messages[:head], *messages[head + left_out :]), left_out)


def left_out_of(messages: Sequence[Message]) -> int:
    """How many of the oldest messages the last answer's prompt left out."""
    read = (one.stats for one in reversed(messages) if one.stats is not None and one.stats.prompt_tokens)
    return next((stats.left_out for stats in read), 0)


def first_read(messages: Sequence[Message], left_out: int) -> Message | None:
    """The message before which the left-out ones end; None when none is left out."""
    place = _num_instructions(messages) + left_out
    return messages[place] if left_out and place < len(messages) else None


def _num_instructions(messages: Sequence[Message]) -> int:
    """Of the system prompt at the beginning."""
    return next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
