"""Bytes on their way, in the driver over a stand-in for PyCUDA."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from fake_pycuda import FakeCard, LogicError, MemoryError
from pycuda_steps import card_for_pycuda, opened, random_bytes

from engine.cuda.pycuda_driver import LANDING_BYTES, STAGING_BYTES
from engine.errors import OutOfMemoryError


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCard]:
    yield from card_for_pycuda(monkeypatch)


@pytest.mark.parametrize("count", [1, 700, LANDING_BYTES, LANDING_BYTES + 1, STAGING_BYTES + 12_345])
def test_bytes_come_back_as_they_went_and_their_source_may_be_changed_at_once(
    card: FakeCard, count: int
) -> None:
    driver = opened(card)
    address = driver.allocate(count)
    sent = random_bytes(count)
    source = sent.copy()
    driver.upload(address, source)
    source[:] = 0
    back = np.zeros(count, np.uint8)
    driver.download(back, address)
    assert np.array_equal(back, sent)
    driver.close()


def test_many_small_uploads_keep_their_order_and_use_few_events(card: FakeCard) -> None:
    driver = opened(card)
    address = driver.allocate(100_000)
    for i in range(400):
        driver.upload(address, np.full(100_000, i % 251, np.uint8))
    back = np.zeros(100_000, np.uint8)
    driver.download(back, address)
    assert set(back) == {399 % 251}
    assert sum(name.startswith("event") for name in card.alive) <= STAGING_BYTES // 100_000 + 1
    driver.close()


def test_an_upload_that_nobody_could_wait_for_is_not_begun(card: FakeCard) -> None:
    """Its place in pinned memory is the next one's."""
    driver = opened(card)
    addresses = [driver.allocate(100) for _ in range(2)]
    card.failures["cuEventCreate"] = card.cuda.MemoryError("cuEventCreate failed: out of memory")
    with pytest.raises(OutOfMemoryError):
        driver.upload(addresses[0], np.full(100, 7, np.uint8))
    driver.upload(addresses[1], np.full(100, 9, np.uint8))
    found = [np.zeros(100, np.uint8) for _ in addresses]
    for each, address in zip(found, addresses, strict=True):
        driver.download(each, address)
    assert not (found[0] == 9).any()
    assert (found[1] == 9).all()
    driver.close()


@pytest.mark.parametrize("count", [1, 700, STAGING_BYTES + 12_345])
def test_an_upload_ahead_is_there_for_work_that_waits_for_it(card: FakeCard, count: int) -> None:
    driver = opened(card)
    address, copy, arrived = driver.allocate(count), driver.allocate(count), driver.new_mark()
    sent = random_bytes(count)
    source = sent.copy()
    driver.upload_ahead(address, source)
    source[:] = 0
    driver.mark_uploads(arrived)
    driver.work_waits(arrived)
    driver.copy(copy, address, count)
    back = np.zeros(count, np.uint8)
    driver.download(back, copy)
    assert np.array_equal(back, sent)
    driver.close()


def test_an_upload_ahead_waits_for_the_work_that_still_reads_its_place(card: FakeCard) -> None:
    driver = opened(card)
    address, copy = driver.allocate(100), driver.allocate(100)
    driver.new_mark()
    passed, arrived = driver.new_mark(), driver.new_mark()
    for value in (1, 2, 3):  # marks are set again and again
        driver.fill(address, value, 100)
        driver.copy(copy, address, 100)
        driver.mark_work(passed)
        driver.uploads_wait(passed)
        driver.upload_ahead(address, np.full(100, 9, np.uint8))
        driver.mark_uploads(arrived)
        held = driver._held
        held.ahead_stream.synchronize()  # as if the card did all of it as early as it may
        back = np.zeros(200, np.uint8)
        driver.download(back[:100], copy)
        driver.download(back[100:], address)
        assert (set(back[:100]), set(back[100:])) == ({value}, {9})
        driver.work_waits(arrived)
    driver.close()


def test_a_mark_that_was_never_set_is_waited_for_by_nobody(card: FakeCard) -> None:
    driver = opened(card)
    mark = driver.new_mark()
    driver.work_waits(mark)
    driver.uploads_wait(mark)
    driver.synchronize()
    driver.close()


def test_memory_is_freed_behind_uploads_ahead_too(card: FakeCard) -> None:
    driver = opened(card)
    address = driver.allocate(100)
    driver.new_mark()
    driver.upload_ahead(address, random_bytes(100))
    driver.free(address)
    assert card.memory == {}
    driver.synchronize()
    driver.close()
    assert (card.retained, card.alive) == (0, [])


def test_what_the_card_leaves_for_the_computer_is_there_after_a_wait(card: FakeCard) -> None:
    driver = opened(card)
    letterbox, mark = driver.open_letterbox(100), driver.new_mark(ahead=False)
    assert not letterbox.contents.any()
    for value in (1, 2):  # the same mark again
        driver.fill(letterbox.address, value, 100)
        driver.mark_work(mark)
        driver.fill(letterbox.address, 9, 100)
        driver.wait(mark)
        assert set(letterbox.contents) == {value}
        driver.synchronize()
    driver.close()
    assert (card.retained, card.alive) == (0, [])


def test_a_mark_for_work_alone_takes_no_second_stream(card: FakeCard) -> None:
    driver = opened(card)
    driver.new_mark(ahead=False)
    assert driver._held.ahead_stream is None
    driver.close()


def test_no_memory_for_a_letterbox_is_told(card: FakeCard) -> None:
    driver = opened(card)
    card.failures["cuMemHostAlloc"] = MemoryError("x failed: out of memory")
    with pytest.raises(OutOfMemoryError, match="writes for the computer"):
        driver.open_letterbox(16)
    assert not driver.open_letterbox(16).contents.any()
    driver.close()
    assert (card.retained, card.alive) == (0, [])


@pytest.mark.parametrize("function", ["cuStreamCreate", "cuMemHostAlloc"])
def test_no_memory_for_uploads_ahead_is_told_and_can_be_tried_again(card: FakeCard, function: str) -> None:
    driver = opened(card)
    card.failures[function] = MemoryError("x failed: out of memory")
    with pytest.raises(OutOfMemoryError, match="a second stream"):
        driver.new_mark()
    driver.mark_work(driver.new_mark())
    driver.close()
    assert (card.retained, card.alive) == (0, [])


def test_copies_and_fills_happen_in_order(card: FakeCard) -> None:
    driver = opened(card)
    first, second = driver.allocate(1000), driver.allocate(1000)
    driver.fill(first, 7, 1000)
    driver.copy(second, first, 600)
    driver.fill(first, 9, 1000)
    back = np.zeros(600, np.uint8)
    driver.download(back, second)
    assert set(back) == {7}
    driver.close()


def test_nothing_is_asked_of_the_card_for_no_bytes(card: FakeCard) -> None:
    driver = opened(card)
    address = driver.allocate(0)
    card.failures = {
        name: LogicError(name) for name in ("cuMemcpyDtoHAsync", "cuMemsetD8Async", "cuMemcpyDtoDAsync")
    }
    empty = np.zeros(0, np.uint8)
    driver.upload(address, empty)
    driver.download(empty, address)
    driver.fill(address, 0, 0)
    driver.copy(address, address, 0)
    assert len(card.failures) == 3
    driver.close()
