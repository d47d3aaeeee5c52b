"""Answers keep the ids by which they were drawn, and nothing else about a prompt changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.states.known_ids import as_known

# Ids 0 to 2 are control tokens, the others stand for these bytes.
TEXTS = [
    b"<s>",
    b"</s>",
    b"<x>",
    b"a",
    b"b",
    b"ab",
    b"ba",
    b"aab",
    b"\xc3",
    b"\xa9",
    b"\xc3\xa9",
    b"",
    b"<s>",
]
CONTROL = {0, 1, 2}
IDS = st.lists(st.integers(0, len(TEXTS) - 1), max_size=12)


def known(prompt: list[int], *states: list[int], most: int = 100) -> list[int]:
    return as_known(prompt, states, token_bytes=TEXTS.__getitem__, control_ids=CONTROL, most=most)


def meaning(ids: list[int]) -> list[int | bytes]:
    """Control tokens, and the bytes between them."""
    found: list[int | bytes] = [b""]
    for token in ids:
        if token in CONTROL:
            found += [token, b""]
        else:
            assert isinstance(found[-1], bytes)
            found[-1] += TEXTS[token]
    return found


def shared(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_an_answer_that_was_spelled_otherwise_is_kept_as_it_was_drawn() -> None:
    assert known([0, 5, 6, 1, 3], [0, 3, 4, 4, 3]) == [0, 3, 4, 4, 3, 1, 3]


def test_a_state_that_ends_within_a_token_of_the_prompt_serves_up_to_there() -> None:
    assert known([0, 7, 1], [0, 3, 3]) == [0, 7, 1]
    assert known([0, 3, 7, 1], [0, 3, 3, 3]) == [0, 3, 7, 1]
    assert known([0, 5, 7, 1], [0, 3, 4, 3]) == [0, 3, 4, 7, 1]


def test_half_characters_are_no_obstacle() -> None:
    assert known([0, 10, 3, 1], [0, 8, 9, 3]) == [0, 8, 9, 3, 1]


def test_text_that_looks_like_a_control_token_is_none() -> None:
    assert known([0, 12, 3], [0, 0, 3]) == [0, 12, 3]
    assert known([0, 0, 3], [0, 12, 3]) == [0, 0, 3]


def test_tokens_without_text_are_not_brought_in() -> None:
    assert known([0, 3, 4], [0, 11, 3, 4]) == [0, 3, 4]
    assert known([0, 5, 1], [0, 3, 11, 4, 1]) == [0, 5, 1]


def test_of_several_states_the_one_that_serves_longest_is_taken() -> None:
    assert known([0, 5, 5, 1], [0, 5, 3], [0, 3, 4, 3, 4], [0, 1]) == [0, 3, 4, 3, 4, 1]


def test_a_spelling_for_which_there_is_no_room_is_left() -> None:
    assert known([0, 5, 1], [0, 3, 4], most=3) == [0, 5, 1]
    assert known([0, 5, 1], [0, 3, 4], most=4) == [0, 3, 4, 1]
    assert known([0, 5, 5, 1], [0, 3, 4, 5], [0, 3, 4, 3, 4], most=5) == [0, 3, 4, 5, 1]


def test_a_shorter_spelling_is_taken_however_little_room_there_is() -> None:
    assert known([0, 3, 4, 1], [0, 5], most=2) == [0, 5, 1]


def test_without_states_the_prompt_is_as_it_was_encoded() -> None:
    assert known([0, 5, 1]) == [0, 5, 1]
    assert known([0, 5, 1], []) == [0, 5, 1]
    assert known([], [0]) == []


@given(prompt=IDS, states=st.lists(IDS, max_size=3))
def test_the_prompt_says_the_same_and_shares_no_less(prompt: list[int], states: list[list[int]]) -> None:
    found = known(prompt, *states)
    assert meaning(found) == meaning(prompt)
    assert all(shared(found, state) >= shared(prompt, state) for state in states) or found != prompt
    assert max((shared(found, state) for state in states), default=0) >= max(
        (shared(prompt, state) for state in states), default=0
    )


@given(pieces=st.lists(st.sampled_from([[5], [3, 4], [6], [4, 3], [0], [1], [10], [8, 9]]), max_size=10))
def test_another_spelling_of_the_whole_prompt_is_taken_whole(pieces: list[list[int]]) -> None:
    other = {(5,): [3, 4], (3, 4): [5], (6,): [4, 3], (4, 3): [6], (10,): [8, 9], (8, 9): [10]}
    prompt = [token for piece in pieces for token in piece]
    state = [token for piece in pieces for token in other.get(tuple(piece), piece)]
    assert known(prompt, state) == state
