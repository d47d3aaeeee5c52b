"""Reference counts: nobody writes into a page that somebody else holds, and a full pool changes nothing."""

from __future__ import annotations

import pytest
import torch
from state_fakes import GEOMETRY, FakePool

from engine.backend import Sequence
from engine.errors import OutOfMemoryError
from engine.kv_geometry import PAGE, KvGeometry
from engine.states.pages import PageLedger, clear_rows


@pytest.fixture
def ledger() -> PageLedger:
    return PageLedger(FakePool(5))


def filled(ledger: PageLedger, length: int) -> Sequence:
    sequence = Sequence()
    assert ledger.make_writable(sequence, length)
    sequence.length = length
    return sequence


@pytest.mark.parametrize("length", [0, 1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE])
@pytest.mark.parametrize("more", [1, PAGE - 1, PAGE, PAGE + 1])
def test_what_a_step_writes_is_its_own(length: int, more: int, ledger: PageLedger) -> None:
    sequence = filled(ledger, length)
    fork = ledger.fork(sequence, length)
    before = list(sequence.pages)
    assert ledger.make_writable(fork, more)
    assert sequence.pages == before
    written = fork.pages[length // PAGE : -(-(length + more) // PAGE)]
    assert written
    assert not set(written) & set(sequence.pages)
    ledger.check([sequence, fork])
    ledger.release(sequence)
    ledger.check([fork])
    ledger.release(fork)
    assert ledger.num_pages == 0


def test_a_full_pool_changes_nothing(ledger: PageLedger) -> None:
    sequence = filled(ledger, 3 * PAGE + 1)
    fork = ledger.fork(sequence, 3 * PAGE + 1)
    pages = list(fork.pages)
    assert not ledger.make_writable(fork, PAGE)  # one copy and one new page: only one is left
    assert (fork.pages, fork.length, ledger.num_pages) == (pages, 3 * PAGE + 1, 4)
    assert ledger.load([torch.zeros(GEOMETRY.page_bytes, dtype=torch.uint8)] * 2, PAGE + 1) is None
    assert ledger.make_writable(fork, 1)
    ledger.check([sequence, fork])


@pytest.mark.parametrize("length", [0, 1, PAGE, 2 * PAGE + 1, 3 * PAGE])
def test_what_is_taken_out_is_what_would_be_read_and_leaves_page_by_page(
    length: int, ledger: PageLedger
) -> None:
    sequence = filled(ledger, length)
    shared = ledger.fork(sequence, min(length, PAGE))
    pool = ledger.pool
    assert isinstance(pool, FakePool)
    for page in pool.pages.values():
        page.random_(generator=torch.Generator().manual_seed(length))
    expected = ledger.read(sequence)
    held = []
    read = pool.read
    pool.read = lambda page: (held.append(ledger.num_pages), read(page))[1]  # type: ignore[method-assign]
    found = ledger.take_out(sequence)
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))
    assert held == list(range(len(expected), 0, -1)), "one page more than was there, at any time"
    ledger.check([shared])


def test_where_a_copy_has_no_memory_the_rest_is_still_there(ledger: PageLedger) -> None:
    sequence = filled(ledger, 3 * PAGE + 1)
    pool = ledger.pool
    assert isinstance(pool, FakePool)
    pool.room_for_copies = 2
    with pytest.raises(OutOfMemoryError):
        ledger.take_out(sequence)
    assert sequence.length == 2 * PAGE
    ledger.check([sequence])


def test_the_check_finds_what_it_should(ledger: PageLedger) -> None:
    sequence = filled(ledger, 100)
    with pytest.raises(AssertionError, match="held by nobody"):
        ledger.check([])
    with pytest.raises(AssertionError, match="counted wrongly"):
        ledger.check([sequence, Sequence(sequence.pages[:1], PAGE)])


@pytest.mark.parametrize(
    "geometry", [KvGeometry("int8", ((2, 8), (1, 3))), KvGeometry("native", ((2, 8), (1, 3)))]
)
def test_cleared_rows_are_those_behind_and_no_others(geometry: KvGeometry) -> None:
    page = torch.full((geometry.page_bytes,), 255, dtype=torch.uint8)
    clear_rows(page, geometry, 10)
    assert int((page != 0).sum()) == 10 * geometry.token_bytes
    whole = torch.full((geometry.page_bytes,), 255, dtype=torch.uint8)
    clear_rows(whole, geometry, 0)
    assert not whole.any()
