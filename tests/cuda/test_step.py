"""What the card knows of a step: where its parts lie."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from engine.cuda.attention import splits_for
from engine.cuda.decode_graphs import DecodeGraphs
from engine.cuda.driver import Address
from engine.cuda.step import StepBuffer
from engine.cuda.workspace import SPLIT
from engine.kv_geometry import PAGE, pages_for


class NotedMemory:
    """Addresses far from each other, and how much was asked for at each. Nothing is there."""

    def __init__(self) -> None:
        self.driver = self
        self.held: dict[int, int] = {}

    def allocate(self, num_bytes: int, _: object) -> Address:
        address = Address(2**40 * (1 + len(self.held)))
        self.held[address] = num_bytes
        return address

    def fill(self, target: Address, value: int, num_bytes: int) -> None:
        assert num_bytes <= self.held[target]


@given(st.integers(1, 200_000), st.integers(1, 2048))
def test_all_splits_of_a_recording_have_their_places_in_the_page_table(context: int, rows: int) -> None:
    """Attention reads them before it knows how many splits there are; the emulated card tells of no reading
    beside what is held.
    """
    memory = NotedMemory()
    step = StepBuffer(cast("Any", memory), rows=rows, width=1, context=context)
    _, (block, num_bytes) = memory.held.items()
    table = step.step_of(1) + 8  # behind the position
    room = DecodeGraphs.room_for(splits_for(context)) * SPLIT // PAGE
    assert room >= pages_for(context)
    assert block <= step.slot_of(rows) < table
    assert table + 8 * room <= block + num_bytes
