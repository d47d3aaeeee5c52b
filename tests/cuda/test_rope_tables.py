"""Rotation's numbers on the card: how they grow, and what that takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from emulated_card import EmulatedCard

from engine.cpu.rope import RopeTable
from engine.cuda.driver import Address, as_bytes
from engine.cuda.memory import CardMemory, Use, taken_bytes
from engine.cuda.rope_tables import RopeTables
from engine.models.spec import RopeSpec

ROPES = {RopeSpec(theta=10_000.0, dim=8), RopeSpec(theta=500_000.0, dim=12)}
LENGTHS = {
    "one by one": lambda context: range(1, context + 1),
    "by leaps": lambda context: (4097, 5000, 9000, context // 2 + 1, context - 1, context),
    "at once": lambda context: (context,),
}


class Watched(CardMemory):
    """Knows the most that it took of the card at a time, in whole units of that."""

    most = 0

    def allocate(self, num_bytes: int, use: Use) -> Address:
        address = super().allocate(num_bytes, use)
        self.most = max(self.most, self.taken)
        return address

    @property
    def taken(self) -> int:
        return sum(taken_bytes(num_bytes) for _, num_bytes in self._held.values())


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("context", [100, 4096, 4097, 8192, 20_001, 70_000])
def test_no_more_memory_is_taken_than_was_told_before(
    context: int, lengths: Callable[[int], range], card: EmulatedCard
) -> None:
    memory = Watched(card)
    tables = RopeTables(memory, ROPES, context=context)
    told = memory.taken + tables.bytes_to_come
    for length in lengths(context):
        tables.reserve(min(length, context))
    assert memory.most <= told
    assert tables.bytes_to_come == 0
    tables.free()


def test_numbers_are_the_processor_s_after_each_growth(card: EmulatedCard) -> None:
    memory = CardMemory(card)
    tables = RopeTables(memory, ROPES, context=40_000)
    assert not tables.reserve(4096)
    for length in (4097, 8195, 16_391):
        assert tables.reserve(length)
        for rope in ROPES:
            cosines, sines = RopeTable(rope).rows(length - 1, 1)
            for address, wanted in zip(tables.of(rope), (cosines[0, 0, 0], sines[0, 0, 1]), strict=True):
                found = torch.empty(rope.dim // 2)
                data = as_bytes(found)
                card.download(data, Address(address + (length - 1) * data.nbytes))
                assert torch.equal(found, wanted)
    tables.free()
