"""Caches that remember the very ids they were fed show what is reused for whom."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import Cancelled
from engine.states.store import State, StateStore


class RecordingCache:
    """Holds the ids themselves instead of keys and values."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    @property
    def length(self) -> int:
        return len(self.ids)

    def truncate(self, length: int) -> None:
        assert 0 <= length <= self.length
        del self.ids[length:]


class RecordingBackend:
    """Its "logits" are everything that the cache holds: an answer shows whose tokens it was computed from."""

    def __init__(self, cancel_after: int | None = None) -> None:
        self._cancel_after = cancel_after

    def forward(
        self, ids: Sequence[int], cache: Any, *, cancel: threading.Event | None = None
    ) -> tuple[int, ...]:
        if self._cancel_after is not None:
            cache.ids += ids[: self._cancel_after]
            raise Cancelled
        cache.ids += ids
        return tuple(cache.ids)


def answer(
    store: StateStore,
    conversation: str,
    prompt: Sequence[int],
    new_cache: Callable[[], RecordingCache] = RecordingCache,
) -> tuple[tuple[int, ...], int]:
    """What the engine does with a state: (everything that the answer was computed from, tokens reused)."""
    state, _ = store.take(conversation, new_cache)
    reused = state.shared_prefix(prompt)
    state.truncate(reused)
    logits: Any = state.run(RecordingBackend(), prompt[reused:])  # type: ignore[arg-type]
    store.give_back(state)
    return logits, reused


conversations = st.sampled_from(["a", "b", "c", "d", ""])
prompts = st.lists(st.integers(0, 2), min_size=1, max_size=12)  # few ids, so that prefixes are shared often


@given(turns=st.lists(st.tuples(conversations, prompts, st.booleans()), max_size=40), slots=st.integers(1, 3))
@settings(deadline=None)
def test_every_answer_is_computed_from_its_own_prompt_and_nothing_else(
    turns: list[tuple[str, list[int], bool]], slots: int
) -> None:
    store = StateStore(slots)
    last: dict[str, list[int]] = {}
    for conversation, prompt, forget in turns:
        if forget:
            store.forget(conversation)
            last.pop(conversation, None)
        seen, reused = answer(store, conversation, prompt)
        assert seen == tuple(prompt)
        own = last.get(conversation, []) if conversation else []
        assert prompt[:reused] == own[:reused], "only tokens of the conversation's own are reused"
        assert reused < len(prompt), "one token is always left to run"
        last[conversation] = prompt


@pytest.mark.parametrize(
    ("cached", "prompt", "reused"),
    [
        ([], [1], 0),
        ([1, 2, 3], [1, 2, 3], 2),  # everything is cached, and still the last one runs
        ([1, 2, 3], [1, 2, 3, 4], 3),
        ([1, 2, 3], [1, 2, 9, 4], 2),
        ([1, 2, 3], [1, 2], 1),
        ([1, 2, 3], [9], 0),
    ],
)
def test_longest_common_prefix_is_reused(cached: list[int], prompt: list[int], reused: int) -> None:
    store = StateStore(1)
    if cached:
        answer(store, "a", cached)
    assert answer(store, "a", prompt) == (tuple(prompt), reused)


def test_least_recently_used_makes_room_and_its_next_answer_says_so_once() -> None:
    store = StateStore(2)
    for conversation in ("a", "b", "a", "c"):  # "b" was used longest ago
        answer(store, conversation, [1, 2, 3])
    assert answer(store, "a", [1, 2, 3, 4])[1] == 3
    state, notice = store.take("b", RecordingCache)
    assert state.length == 0
    assert notice is not None
    assert notice.code == "state-dropped"
    assert "3 tokens" in notice.message
    store.give_back(state)
    assert store.take("b", RecordingCache)[1] is None


def test_a_new_conversation_is_no_dropped_one() -> None:
    store = StateStore(1)
    answer(store, "a", [1])
    assert store.take("b", RecordingCache)[1] is None


def test_no_more_caches_live_than_there_are_slots() -> None:
    made: list[RecordingCache] = []

    def new_cache() -> RecordingCache:
        made.append(RecordingCache())
        return made[-1]

    store = StateStore(3)
    for number in range(10):
        answer(store, f"conversation {number}", [number], new_cache)
    kept = [answer(store, f"conversation {number}", [number, 0], new_cache)[1] for number in (7, 8, 9)]
    assert kept == [1, 1, 1]
    assert len(made) == 10


def test_a_state_in_use_is_nobody_elses() -> None:
    store = StateStore(4)
    answer(store, "a", [1, 2, 3])
    first, _ = store.take("a", RecordingCache)
    second, _ = store.take("a", RecordingCache)
    assert (first.length, second.length) == (3, 0)
    store.give_back(second)
    store.give_back(first)  # too late: the conversation has another state by now
    assert store.take("a", RecordingCache)[0] is second


def test_forgetting_a_conversation_in_use_keeps_nothing_of_it() -> None:
    store = StateStore(4)
    state, _ = store.take("a", RecordingCache)
    state.run(RecordingBackend(), [1, 2])  # type: ignore[arg-type]
    store.forget("a")
    store.give_back(state)
    assert store.take("a", RecordingCache)[0].length == 0


def test_no_conversation_keeps_nothing() -> None:
    store = StateStore(4)
    answer(store, "", [1, 2, 3])
    assert answer(store, "", [1, 2, 3, 4])[1] == 0


@pytest.mark.parametrize("done", [0, 3])
def test_ids_are_what_is_cached_however_a_step_ends(done: int) -> None:
    state = State("a", RecordingCache())
    state.run(RecordingBackend(), [1, 2])  # type: ignore[arg-type]
    with pytest.raises(Cancelled):
        state.run(RecordingBackend(cancel_after=done), [3, 4, 5, 6, 7])  # type: ignore[arg-type]
    assert list(state.ids) == [1, 2, 3, 4, 5][: 2 + done]
