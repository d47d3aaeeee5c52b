"""A device that fails, or has no memory for a step: nothing that was said depends on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from state_fakes import FakePool, cold_logits, new_home
from state_steps import Make

from engine.errors import DeviceFaultError, OutOfMemoryError
from engine.generation import ReuseReason
from engine.kv_geometry import PAGE
from engine.notices import Notice
from engine.states.lease import Lease, StatesMoved
from engine.states.state import Home
from engine.states.store import StateStore

IDS = [(7 * i + 3) % 11 for i in range(3 * PAGE)]
MOVED = Notice("moved", "The card failed.")


class Card:
    """Homes on a card and on the processor, and a store of states on the card."""

    def __init__(self, make: Make, **more: Any) -> None:
        self.home, self.cpu = new_home(64, "cuda"), new_home(64)
        self.faults: list[DeviceFaultError] = []
        self.store: StateStore = make(home=self.home, refuge=self.flee, **more)

    def flee(self, fault: DeviceFaultError) -> tuple[Home, Notice]:
        self.faults.append(fault)
        return self.cpu, MOVED

    def fail(self, calls: int = 1) -> None:
        """With the last of so many calls from now on."""
        self.pool.device.fails_after = calls

    @property
    def pool(self) -> FakePool:
        pool = self.home.ledger.pool
        assert isinstance(pool, FakePool)
        return pool

    def answered(self, conversation: str, ids: list[int]) -> None:
        lease = self.store.take(conversation, ids)
        lease.prefill(ids[lease.length :])
        self.store.give_back(lease)


def moving(step: Callable[[], torch.Tensor]) -> torch.Tensor:
    with pytest.raises(StatesMoved) as moved:
        step()
    assert moved.value.notice is MOVED
    return step()


@pytest.mark.parametrize("calls", [1, 2])  # before and after rows are written
def test_a_step_whose_device_fails_is_done_elsewhere_with_the_same_tokens(make: Make, calls: int) -> None:
    card = Card(make)
    lease = card.store.take("a", IDS[:100])
    lease.prefill(IDS[:100])
    lease.decode(IDS[100])
    card.fail(calls)
    logits = moving(lambda: lease.decode(IDS[101]))
    assert torch.equal(logits, cold_logits(IDS[:102]))
    assert lease.home is card.cpu
    assert card.store.backend is card.cpu.backend
    assert torch.equal(lease.decode(IDS[102]), cold_logits(IDS[:103]))
    assert lease.take_notices() == card.store.take_notices() == ()  # `StatesMoved` has told it
    assert card.pool.pages == {}
    card.store.give_back(lease)


def test_after_the_fault_and_before_the_step_the_lease_stands_for_the_same_tokens(make: Make) -> None:
    card = Card(make)
    lease = card.store.take("a", IDS[:70])
    lease.prefill(IDS[:70])
    card.fail()
    with pytest.raises(StatesMoved):
        lease.decode(1)
    assert (list(lease.ids), lease.length) == (IDS[:70], 70)
    lease.rewind(66)
    assert list(lease.ids) == IDS[:66]
    assert torch.equal(lease.decode(IDS[66]), cold_logits(IDS[:67]))
    card.store.give_back(lease)


def test_every_answer_under_way_goes_on(make: Make) -> None:
    card = Card(make)
    leases: list[Lease] = []
    for name, length in (("a", 65), ("b", 130), ("", 3)):
        leases.append(card.store.take(name, IDS[:length]))
        leases[-1].prefill(IDS[leases[-1].length : length])
    card.fail()
    first, *others = leases
    moving(lambda: first.decode(5))
    for lease in others:
        ids = [*lease.ids, 5]
        assert torch.equal(lease.decode(5), cold_logits(ids))
    for lease in leases:
        card.store.give_back(lease)
    assert len(card.faults) == 1


def test_what_lies_in_memory_or_on_disk_is_reused_and_the_rest_is_read_again(make: Make) -> None:
    card = Card(make, slots=2)
    for first in range(4):  # two are parked for the others
        card.answered(f"{first}", [first, *IDS[:99]])
    places = {row.conversation: row.place for row in card.store.table()}
    assert places == {"0": "ram", "1": "ram", "2": "pool", "3": "pool"}
    card.fail()
    lease = card.store.take("1", [1, *IDS[:99], 5])  # its way back to the card fails
    assert card.store.take_notices() == (MOVED,)
    assert lease.reused == 100
    assert torch.equal(lease.prefill([5]), cold_logits([1, *IDS[:99], 5]))
    card.store.give_back(lease)
    lease = card.store.take("2", [2, *IDS[:99], 5])
    assert (lease.reused, lease.reason) == (0, ReuseReason.EVICTED)
    assert lease.take_notices() == card.store.take_notices() == ()
    card.store.give_back(lease)


def test_a_prompt_that_has_to_be_read_again_says_so(make: Make) -> None:
    card = Card(make)
    card.answered("a", IDS[:100])
    lease = card.store.take("a", IDS[:120])
    assert lease.reused == 100
    card.fail()
    moving(lambda: lease.prefill(IDS[lease.length : 120]))
    assert (lease.reused, lease.reason) == (0, ReuseReason.EVICTED)
    card.store.give_back(lease)


def test_a_file_saves_reading_what_it_holds(make: Make) -> None:
    card = Card(make, ram=0, slots=1)
    card.answered("a", IDS[:100])
    card.answered("b", IDS[50:60])  # "a" is parked, and written for want of memory
    card.store.wait()
    lease = card.store.take("a", IDS[:150])
    lease.prefill(IDS[lease.length : 150])
    card.fail()
    moving(lambda: lease.decode(5))
    assert card.cpu.backend.prefilled == 51  # type: ignore[attr-defined]
    card.store.give_back(lease)


def test_without_another_device_the_fault_is_the_answers(make: Make) -> None:
    home = new_home(8, "cuda")
    store: StateStore = make(home=home)
    lease = store.take("a", IDS[:10])
    lease.prefill(IDS[:9])
    home.ledger.pool.device.fails_after = 1  # type: ignore[attr-defined]
    with pytest.raises(DeviceFaultError):
        lease.prefill(IDS[9:10])
    store.give_back(lease, sound=False)


def test_closing_after_a_fault_keeps_what_can_be_kept(make: Make) -> None:
    card = Card(make, slots=1)
    for first in range(2):
        card.answered(f"{first}", [first, *IDS[:99]])
    card.fail()
    card.store.close()
    card.store.wait()
    assert card.pool.pages == {}
    again = Card(make)
    assert {row.conversation: row.tokens for row in again.store.table()} == {"0": 100}


def test_a_step_that_the_card_has_no_memory_for_is_done_on_the_cpu_from_the_same_pages(make: Make) -> None:
    card, fallback = new_home(8, "cuda"), new_home(8)
    store: StateStore = make(home=card, new_fallback=lambda: fallback)
    lease = store.take("a", IDS[:101])
    lease.prefill(IDS[:100])
    card.backend.lacks_memory = True  # type: ignore[attr-defined]
    assert torch.equal(lease.decode(IDS[100]), cold_logits(IDS[:101]))
    assert fallback.backend.prefilled == 1  # type: ignore[attr-defined]
    [notice] = lease.take_notices()
    assert notice.code == "state-fallback"
    assert "The graphics card has no memory left" in notice.message
    lease.decode(5)
    assert lease.take_notices() == ()
    store.give_back(lease)
    card.backend.lacks_memory = False  # type: ignore[attr-defined]
    lease = store.take("a", [*IDS[:101], 5, 6])
    assert lease.home is card
    assert torch.equal(lease.prefill([6]), cold_logits([*IDS[:101], 5, 6]))
    assert lease.take_notices() == ()
    store.give_back(lease)


def test_without_memory_elsewhere_such_a_step_changes_nothing(make: Make) -> None:
    card = new_home(8, "cuda")
    store: StateStore = make(home=card, new_fallback=lambda: new_home(0))
    lease = store.take("a", IDS[:101])
    lease.prefill(IDS[:100])
    card.backend.lacks_memory = True  # type: ignore[attr-defined]
    with pytest.raises(OutOfMemoryError):
        lease.decode(5)
    assert list(lease.ids) == IDS[:100]
    card.backend.lacks_memory = False  # type: ignore[attr-defined]
    assert torch.equal(lease.decode(IDS[100]), cold_logits(IDS[:101]))
    store.give_back(lease)


@pytest.mark.parametrize("ended_by", ["another answer", "a deletion"])
def test_an_answer_whose_device_and_file_are_gone_runs_its_tokens_anew(make: Make, ended_by: str) -> None:
    card = Card(make, ram=0, slots=1)
    card.answered("a", IDS[:100])
    card.answered("b", IDS[50:60])  # "a" is parked, and written for want of memory
    card.store.wait()
    lease = card.store.take("a", IDS[:101])
    assert lease.reused == 100
    card.fail()
    with pytest.raises(StatesMoved):
        lease.decode(IDS[100])  # its file is left
    if ended_by == "another answer":
        card.store.give_back(card.store.take("a", IDS[:101]))
    else:
        card.store.forget("a")
    card.store.check()
    assert list(lease.ids) == IDS[:100]
    assert torch.equal(lease.decode(IDS[100]), cold_logits(IDS[:101]))
    card.store.give_back(lease)
