"""Uploads ahead on the emulated card: each wait that is missing has a wrong result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from emulated_card import EmulatedCard

from engine.cuda.driver import Address

MakeCard = Callable[..., EmulatedCard]
BYTES = 300


def filled(value: int) -> np.ndarray:
    return np.full(BYTES, value, np.uint8)


def found(card: EmulatedCard, address: Address) -> set[int]:
    host = np.zeros(BYTES, np.uint8)
    card.download(host, address)
    return set(host.tolist())


def read_what_comes_ahead(card: EmulatedCard, *, waits: bool) -> set[int]:
    """What work reads of a place that held 0, and to which 1 and then 2 is uploaded."""
    place, result = card.allocate(BYTES), card.allocate(BYTES)
    card.fill(place, 0, BYTES)
    arrived, passed = card.new_mark(), card.new_mark()
    for value in (1, 2):
        card.mark_work(passed)
        card.uploads_wait(passed)
        source = filled(value)
        card.upload_ahead(place, source)
        source[:] = 9
        card.mark_uploads(arrived)
        if waits:
            card.work_waits(arrived)
        card.copy(result, place, BYTES)
    values = found(card, result)
    for address in (place, result):
        card.free(address)
    return values


def overwrite_what_was_read(card: EmulatedCard, *, waits: bool) -> set[int]:
    """What work reads of a place to which something is uploaded as soon as it has."""
    place, result = card.allocate(BYTES), card.allocate(BYTES)
    passed = card.new_mark()
    card.upload(place, filled(1))
    card.synchronize()
    card.copy(result, place, BYTES)
    card.mark_work(passed)
    if waits:
        card.uploads_wait(passed)
    card.upload_ahead(place, filled(2))
    values = found(card, result)
    for address in (place, result):
        card.free(address)
    return values


@pytest.mark.parametrize("lagging", ["uploads", "work"])
def test_work_that_waits_reads_what_came_ahead(lagging: Any, make_card: MakeCard) -> None:
    assert read_what_comes_ahead(make_card(lagging=lagging), waits=True) == {2}


def test_work_that_does_not_wait_reads_what_was_there_before(make_card: MakeCard) -> None:
    assert read_what_comes_ahead(make_card(lagging="uploads"), waits=False) == {0}


@pytest.mark.parametrize("lagging", ["uploads", "work"])
def test_an_upload_that_waits_leaves_work_what_it_reads(lagging: Any, make_card: MakeCard) -> None:
    assert overwrite_what_was_read(make_card(lagging=lagging), waits=True) == {1}


def test_an_upload_that_does_not_wait_overwrites_what_work_reads(make_card: MakeCard) -> None:
    assert overwrite_what_was_read(make_card(lagging="work"), waits=False) == {2}


@pytest.mark.parametrize("lagging", ["uploads", "work"])
def test_all_is_done_at_the_end_and_before_memory_is_freed(lagging: Any, make_card: MakeCard) -> None:
    card = make_card(lagging=lagging)
    place = card.allocate(BYTES)
    card.upload_ahead(place, filled(7))
    card.synchronize()
    assert found(card, place) == {7}
    card.upload_ahead(place, filled(8))
    card.fill(place, 3, BYTES)
    card.free(place)
    card.check()
    assert (card.counts.uploads, card.counts.uploads_ahead, card.counts.ahead_bytes) == (0, 2, 2 * BYTES)


@pytest.mark.parametrize("lagging", ["uploads", "work"])
def test_a_mark_that_was_never_set_holds_nobody_up(lagging: Any, make_card: MakeCard) -> None:
    card = make_card(lagging=lagging)
    place, mark = card.allocate(BYTES), card.new_mark()
    card.work_waits(mark)
    card.uploads_wait(mark)
    card.upload_ahead(place, filled(7))
    card.synchronize()
    assert found(card, place) == {7}
    card.free(place)
