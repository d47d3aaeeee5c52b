"""A prompt in the ids that are cached already, where another spelling says the same.

An answer that was drawn token by token is often not spelled as an encoder would spell its text: "un|do"
where that has "undo". When the next turn's prompt is encoded from text, it leaves what is cached at the first
such place, and everything behind it would be read again. So where the ids of a state stand for the very bytes
of the prompt, with the same control tokens at the same places, the state's ids are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import takewhile


def as_known(
    prompt: Sequence[int],
    states: Iterable[Sequence[int]],
    *,
    token_bytes: Callable[[int], bytes],
    control_ids: Collection[int],
    most: int,
) -> list[int]:
    """`prompt`, or ids that stand for the same bytes and begin as one of the `states` does for longer.

    control_ids: tokens that are more than their text; they are only ever equal to themselves. most: tokens
    for which there is room; a spelling that takes more is of use only if it is no longer than `prompt`.
    """
    best, longest = list(prompt), 0
    for known in states:
        found, shared = _spelled_as(prompt, known, token_bytes, control_ids)
        if shared > longest and len(found) <= max(most, len(prompt)):
            best, longest = found, shared
    return best


def _spelled_as(
    prompt: Sequence[int],
    known: Sequence[int],
    token_bytes: Callable[[int], bytes],
    control_ids: Collection[int],
) -> tuple[list[int], int]:
    """The prompt with the longest beginning that can be had from `known`, and how many ids that is."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, known, strict=False)))
    taken, left = same, same  # so many ids of `known` stand for so many of the prompt
    ahead = b""  # bytes that the one further on has more than the other
    known_is_ahead = False
    i, j = taken, left
    while True:
        if not ahead and i < len(known) and j < len(prompt) and known[i] == prompt[j]:
            i, j = i + 1, j + 1
            taken, left = i, j
            continue
        behind, at = (prompt, j) if known_is_ahead else (known, i)
        if at >= len(behind) or behind[at] in control_ids:
            break
        text = token_bytes(behind[at])
        if not text:
            break
        if known_is_ahead:
            j += 1
        else:
            i += 1
        if text[: len(ahead)] != ahead[: len(text)]:
            break
        if len(text) >= len(ahead):
            ahead, known_is_ahead = text[len(ahead) :], not known_is_ahead
        else:
            ahead = ahead[len(text) :]
        if not ahead:
            taken, left, known_is_ahead = i, j, False
    return [*known[:taken], *prompt[left:]], taken
