"""Which layers are on the card: plain bookkeeping, no card."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cuda.driver import Address
from engine.cuda.memory import taken_bytes
from engine.cuda.placement import Rest, fitting_window
from engine.cuda.residency import (
    NOT_CACHED,
    Residency,
    buffers_for,
    wanted_layers,
    weight_key,
    widest_matrices,
    widest_window,
    window_bytes,
)
from engine.errors import OutOfMemoryError

MODELS = st.lists(
    st.lists(st.sampled_from([256, 512, 4096]), min_size=1, max_size=4).map(tuple), min_size=1, max_size=7
)
WINDOWS = st.integers(1, 9)


class Allocator:
    """Where buffers are, and how many bytes that comes to."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self.calls = 0

    def __call__(self, num_bytes: int) -> Address:
        self.num_bytes += num_bytes
        self.calls += 1
        return Address(self.calls << 20)


def run_layer(residency: Residency, layer: int) -> list[int]:
    """As a step does: what wasn't there before, in the order in which it is brought."""
    residency.evict_behind(layer)
    brought = [each for each in residency.wanted(layer) if each not in residency.layers]
    for each in brought:
        residency.place(each)
    return brought


def test_no_matrix_has_the_key_of_nothing() -> None:
    keys = {weight_key(layer, projection) for layer in range(9) for projection in range(9)}
    assert len(keys) == 81
    assert NOT_CACHED not in keys
    assert weight_key(3, 1) == (3 << 32) | 2


def test_the_first_layers_are_next_after_the_last_one() -> None:
    assert wanted_layers(5, 3, 7) == (5, 6, 0)
    assert wanted_layers(2, 9, 3) == (2, 0, 1)


@given(MODELS, WINDOWS, st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_a_layer_is_there_when_it_runs_and_only_what_is_wanted_is(
    sizes: list[tuple[int, ...]], window: int, passes: list[int]
) -> None:
    """Passes may break off anywhere; each begins with the first layer."""
    allocator = Allocator()
    residency = Residency(sizes, window, allocator)
    calls = allocator.calls
    for length in passes:
        for layer in range(min(length, len(sizes))):
            run_layer(residency, layer)
            assert residency.layers == set(residency.wanted(layer))
            assert len(residency.layers) == min(window, len(sizes))
            held = [buffer for each in residency.layers for buffer in residency.buffers(each)]
            assert len({buffer.address for buffer in held}) == len(held)
            assert [buffer.num_bytes for buffer in residency.buffers(layer)] == list(sizes[layer])
            assert [buffer.key for buffer in residency.buffers(layer)] == [
                weight_key(layer, projection) for projection in range(len(sizes[layer]))
            ]
    assert allocator.calls == calls
    assert allocator.num_bytes == window_bytes(sizes, window)


@given(MODELS, WINDOWS)
def test_each_layer_is_brought_once_a_pass_or_never_where_all_are_there(
    sizes: list[tuple[int, ...]], window: int
) -> None:
    residency = Residency(sizes, window, Allocator())
    count = len(sizes)
    for layer in range(count):
        run_layer(residency, layer)
    for _ in range(2):
        brought = Counter(each for layer in range(count) for each in run_layer(residency, layer))
        assert brought == ({} if window >= count else dict.fromkeys(range(count), 1))


@given(MODELS, WINDOWS)
def test_only_layers_that_were_passed_are_evicted(sizes: list[tuple[int, ...]], window: int) -> None:
    residency = Residency(sizes, window, Allocator())
    count = len(sizes)
    for step in range(3 * count):
        layer = step % count
        evicted = residency.evict_behind(layer)
        assert evicted == ([] if step == 0 or window >= count else [(layer - 1) % count])
        for each in residency.wanted(layer):
            if each not in residency.layers:
                residency.place(each)
    assert residency.num_placed - residency.num_evicted == len(residency.layers)


def test_what_was_evicted_is_called_nothing() -> None:
    residency = Residency([(256, 512), (256, 512)], 1, Allocator())
    buffers = residency.place(0)
    residency.evict_behind(1)
    assert [buffer.key for buffer in buffers] == [NOT_CACHED, NOT_CACHED]
    assert set(residency.place(1)) == set(buffers)


@given(MODELS, WINDOWS)
def test_buffers_hold_any_layers_in_a_row_and_no_more(sizes: list[tuple[int, ...]], window: int) -> None:
    needed = buffers_for(sizes, window)
    rows = [
        Counter(size for each in wanted_layers(layer, window, len(sizes)) for size in sizes[each])
        for layer in range(len(sizes))
    ]
    assert all(row <= needed for row in rows)
    assert all(any(row[size] == count for row in rows) for size, count in needed.items())


@given(MODELS, st.integers(0, 40_000))
def test_the_widest_window_fits_and_the_next_one_does_not(sizes: list[tuple[int, ...]], room: int) -> None:
    widest = widest_window(sizes, room)
    assert widest == 0 or window_bytes(sizes, widest) <= room
    assert widest == len(sizes) or window_bytes(sizes, widest + 1) > room


MB = 2**20
LAYERS = [(6 * MB, 4 * MB)] * 9 + [(4 * MB, 6 * MB)]
RAW = [(4 * MB, 4 * MB)] * 10
PASSAGE = 4 * MB
REST = Rest(other=3 * MB, short_cache=2 * MB, cache=25 * MB)


@pytest.mark.parametrize(
    ("available", "expected"),
    [
        (107, None),  # all, beside what they come through
        (
            106,
            8,
        ),  # others wait as they come, beside a layer as it stays, and leave a long conversation its room
        (104, 8),
        (103, 7),
        (56, 2),
        (55, 4),  # where there is none for a long one beside two layers, there is for a short one
        (25, 1),
    ],
)
def test_the_window_is_as_wide_as_there_is_room(available: int, expected: int | None) -> None:
    assert fitting_window(LAYERS, RAW, available * MB, REST, passage=PASSAGE) == expected


@pytest.mark.parametrize(("passage", "least"), [(0, 105), (2 * MB, 105), (2 * MB + 1, 107), (40 * MB, 143)])
def test_a_short_conversation_takes_the_place_of_what_layers_came_through(passage: int, least: int) -> None:
    assert fitting_window(LAYERS, RAW, least * MB, REST, passage=passage) is None
    assert fitting_window(LAYERS, RAW, least * MB - 1, REST, passage=passage) is not None


def test_a_window_is_narrower_than_the_model() -> None:
    """Else it would be said that a token reads weights again."""
    assert fitting_window(LAYERS, RAW, 142 * MB, REST, passage=40 * MB) == 9


def test_the_layer_that_runs_takes_the_widest_of_each_projection() -> None:
    assert widest_matrices([(1, 5), (4, 2, 3), (2,)]) == [4, 5, 3]


@pytest.mark.parametrize("available", [-300, 0, 24])
def test_no_room_for_one_layer_is_told(available: int) -> None:
    with pytest.raises(OutOfMemoryError, match="even one layer") as told:
        fitting_window(LAYERS, RAW, available * MB, REST, passage=PASSAGE)
    assert "-" not in told.value.message
    assert told.value.hint


@pytest.mark.parametrize(
    ("num_bytes", "taken"), [(1000, 1000), (MB, 2 * MB), (2 * MB, 2 * MB), (2 * MB + 1, 4 * MB)]
)
def test_large_pieces_take_whole_units(num_bytes: int, taken: int) -> None:
    assert taken_bytes(num_bytes) == taken
