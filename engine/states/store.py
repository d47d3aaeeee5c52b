"""Conversations as states: which tokens each has read, and the cache that stands for them.

The tokens are the truth. A state's `ids` and its cache always have the same length, and a cache is reused
only for tokens that are equal to its own from the start, in the conversation that it belongs to. What one
conversation has read never serves another.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from engine.backend import Backend, Cache
from engine.notices import Notice

if TYPE_CHECKING:
    import torch


class State:
    """One conversation's tokens and cache. `ids` are the tokens that the cache is valid for, always."""

    def __init__(self, conversation: str, cache: Cache) -> None:
        self.conversation = conversation
        self._cache = cache
        self._ids: list[int] = []

    @property
    def ids(self) -> Sequence[int]:
        return self._ids

    @property
    def length(self) -> int:
        return len(self._ids)

    def shared_prefix(self, prompt: Sequence[int]) -> int:
        """How many of the prompt's tokens are cached; the last is never counted, its logits are needed."""
        pairs = zip(self._ids, prompt[:-1], strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def truncate(self, length: int) -> None:
        """Forget the tokens from `length` on."""
        self._cache.truncate(length)
        del self._ids[length:]

    def run(
        self, backend: Backend, ids: Sequence[int], cancel: threading.Event | None = None
    ) -> torch.Tensor:
        """Append `ids`; logits (V,) after the last. However it ends, `ids` are what is cached."""
        before = self._cache.length
        assert before == len(self._ids)
        try:
            return backend.forward(ids, self._cache, cancel=cancel)
        finally:
            self._ids.extend(ids[: self._cache.length - before])


class StateStore:
    """Keeps the states of the `slots` conversations that were used last.

    A state is out of the store while an answer is computed with it, so nobody else can touch it, and comes
    back when the answer has ended. A second answer in the same conversation meanwhile starts with an empty
    state.
    """

    def __init__(self, slots: int) -> None:
        assert slots >= 1
        self._slots = slots
        self._idle: OrderedDict[str, State] = OrderedDict()  # least recently used first
        self._in_use: dict[str, State] = {}
        self._dropped: dict[str, int] = {}  # conversation -> tokens that were cached when it had to make room

    def take(self, conversation: str, new_cache: Callable[[], Cache]) -> tuple[State, Notice | None]:
        """The conversation's state, or an empty one. The notice says that its cache had been dropped.

        "" stands for no conversation: an empty state that is not kept.
        """
        if not conversation:
            return State("", new_cache()), None
        dropped = self._dropped.pop(conversation, 0)
        state = self._idle.pop(conversation, None) or State(conversation, new_cache())
        self._in_use[conversation] = state
        self._make_room()
        return state, _dropped_notice(dropped, self._slots) if dropped else None

    def give_back(self, state: State) -> None:
        """Keep the state for its conversation's next answer.

        A state is let go instead when its conversation was forgotten or taken again meanwhile.
        """
        if self._in_use.get(state.conversation) is not state:
            return
        del self._in_use[state.conversation]
        self._idle[state.conversation] = state
        self._make_room()

    def forget(self, conversation: str) -> None:
        """Free what is kept of a conversation, and keep nothing of an answer that is being computed in it."""
        for kept in (self._idle, self._in_use, self._dropped):
            kept.pop(conversation, None)

    def clear(self) -> None:
        for kept in (self._idle, self._in_use, self._dropped):
            kept.clear()

    def _make_room(self) -> None:
        """Drop the states that were idle longest; those in use stay, be they more than there are slots."""
        while self._idle and len(self._idle) + len(self._in_use) > self._slots:
            name, oldest = self._idle.popitem(last=False)
            self._dropped[name] = oldest.length


def _dropped_notice(tokens: int, slots: int) -> Notice:
    kept = "conversation was" if slots == 1 else f"{slots} conversations were"
    return Notice(
        "state-dropped",
        f"The {tokens} tokens cached of this conversation had been dropped to make room, because the last "
        f"{kept} kept; it was read again from its beginning.",
        "Raise the number of slots to keep more conversations at hand.",
    )
