"""What the card knows of a step: where its parts lie."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from engine.cuda.attention import splits_for
from engine.cuda.chunks import ChunkStore
from engine.cuda.decode_graphs import DecodeGraphs
from engine.cuda.driver import Address
from engine.cuda.page_pool import CudaPagePool
from engine.cuda.step import PageTable, StepBuffer
from engine.cuda.workspace import SPLIT
from engine.kv_geometry import PAGE, KvGeometry, pages_for

GEOMETRY = KvGeometry("int8", ((16, 64),) * 24)  # two pages a chunk
MOST_PAGES = 6


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
        start = target // 2**40 * 2**40
        assert target + num_bytes <= start + self.held[start]


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


@given(st.data())
def test_the_card_knows_where_pages_are_whatever_was_given_back_and_taken(data: st.DataObject) -> None:
    """Conversations of two pools take turns, pages come and go, and pools are dropped, while all of it comes
    from the same chunks.
    """
    memory, table, card = NotedMemory(), PageTable(MOST_PAGES), [Address(0)] * MOST_PAGES
    chunks = ChunkStore(cast("Any", memory))

    def new_pool() -> CudaPagePool:
        return CudaPagePool(GEOMETRY, 9, cast("Any", memory), chunks)

    pools = [new_pool(), new_pool()]
    conversations: list[tuple[int, list[int]]] = [(0, []), (1, []), (0, [])]
    for _ in range(data.draw(st.integers(1, 40))):
        number = data.draw(st.integers(0, 2))
        owner, pages = conversations[number]
        pool = pools[owner]
        match data.draw(st.sampled_from(["grow", "shrink", "drop", "step", "step"])):
            case "grow" if len(pages) < MOST_PAGES and (page := pool.allocate()) is not None:
                pages.append(page)
            case "shrink" if pages:
                pool.free(pages.pop(data.draw(st.integers(0, len(pages) - 1))))
            case "drop":
                del pool
                pools[owner] = new_pool()
                conversations = [(own, [] if own == owner else held) for own, held in conversations]
            case "step":
                start, missing = table.missing(pages, pool)
                card[start : start + len(missing)] = missing
                table.told(pages, pool)
                assert card[: len(pages)] == pool.addresses(pages)
    held = [address for owner, pages in conversations for address in pools[owner].addresses(pages)]
    assert len(set(held)) == len(held)


def test_a_page_whose_number_stands_for_another_place_is_told_anew() -> None:
    """Its chunk went to another pool in between, and nobody asked for a step there."""
    memory, table = NotedMemory(), PageTable(MOST_PAGES)
    chunks = ChunkStore(cast("Any", memory))
    pool, other = (CudaPagePool(GEOMETRY, 9, cast("Any", memory), chunks) for _ in range(2))
    page = pool.allocate_one()
    before = table.missing([page], pool)
    table.told([page], pool)
    assert table.missing([page], pool) == (0, [])
    pool.free(page)
    other.allocate_one()
    assert pool.allocate_one() == page
    assert table.missing([page], pool) == (0, [pool.address(page)])
    assert before != (0, [pool.address(page)])
