"""Which of all states has the longest prefix of some ids, and why it isn't longer.

Ids are compared exactly, and nothing else decides what is reused.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from engine.generation import ReuseReason
from engine.states.state import State

_PLACES = ("pool", "ram", "disk")  # from near to far


def common_prefix(left: array[int], right: array[int]) -> int:
    """How many ids the two have in common from the start.

    By halves: each comparison is one of memory, and together they look at every id about once.
    """
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def best_prefix(own: State | None, others: Iterable[State], prompt: array[int]) -> tuple[State | None, int]:
    """The state that has most of the prompt from its start, and how many tokens; None: no state has any.

    The last token is never counted: its logits are needed, so it has to run. Where several have the same, the
    conversation's own comes first, then what lies nearest.
    """
    wanted = prompt[:-1]
    best, best_length = own, common_prefix(own.ids, wanted) if own is not None else 0
    for state in others:
        if state.length < best_length or (state.length and state.ids[0] != (prompt[0] if prompt else -1)):
            continue
        length = common_prefix(state.ids, wanted)
        if length > best_length or (length == best_length and _is_nearer(state, best, own)):
            best, best_length = state, length
    return (best, best_length) if best_length else (None, 0)


def parting(cached: array[int], prompt: array[int]) -> int | None:
    """The first token at which the prompt differs from what is cached; None if one goes on where the other
    ends.
    """
    length = common_prefix(cached, prompt)
    return length if length < min(len(cached), len(prompt)) else None


def reason_for(
    served: array[int] | None, prompt: array[int], *, own: array[int] | None, lost: ReuseReason | None
) -> tuple[ReuseReason | None, int | None]:
    """Why not more was reused, and the token at which the prompt left what was cached.

    served: what is cached in the state that serves the prompt, None for none. own: what is cached of the
    conversation itself; another state may have more of the prompt. lost: why nothing is, where that is known.
    """
    if own is None and lost is not None:
        return lost, None
    diverged_at = None if served is None else parting(served, prompt)
    if served is not None and diverged_at is None:
        return None, None  # a fork, or the next turn
    if own is None:
        return ReuseReason.NEW, None
    if parting(own, prompt) is None:
        return None, None  # the next turn, of which another conversation has something as well
    return ReuseReason.HISTORY_REWRITTEN, diverged_at


def _is_nearer(state: State, best: State | None, own: State | None) -> bool:
    if best is None or best is own:
        return False
    return _PLACES.index(state.place) < _PLACES.index(best.place)
