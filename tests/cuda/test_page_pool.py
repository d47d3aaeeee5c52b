"""Pages on the card: any order of taking and giving back, and no memory that is nobody's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from emulated_card import EmulatedCard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.cuda.chunks import ChunkStore
from engine.cuda.driver import Address, CardLostError
from engine.cuda.memory import CardMemory, Use, taken_bytes
from engine.cuda.page_pool import CudaPagePool, cache_bytes
from engine.errors import OutOfMemoryError
from engine.kv_geometry import KvFormat, KvGeometry

GEOMETRY = KvGeometry("int8", ((2, 16), (1, 8)))


class Setting:
    def __init__(self, card: EmulatedCard, budget: int | None = None) -> None:
        self.card = card
        self.memory = CardMemory(card, budget)
        self.chunks = ChunkStore(self.memory)

    def pool(self, capacity: int, geometry: KvGeometry = GEOMETRY) -> CudaPagePool:
        return CudaPagePool(geometry, capacity, self.card, self.chunks)

    @property
    def num_bytes(self) -> int:
        return self.memory.num_bytes.get(Use.CACHE, 0)


@pytest.fixture
def setting(card: EmulatedCard):
    setting = Setting(card)
    yield setting
    setting.memory.free_all()


def filled(value: int) -> torch.Tensor:
    return torch.full((GEOMETRY.page_bytes,), value, dtype=torch.uint8)


def test_a_new_page_is_zeros_also_where_another_was(setting: Setting) -> None:
    pool = setting.pool(1)
    for _ in range(2):
        page = pool.allocate()
        assert page is not None
        assert pool.allocate() is None, "it holds one"
        assert torch.equal(pool.read(page), filled(0))
        pool.write(page, filled(7))
        pool.free(page)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_pages_keep_their_bytes_whatever_happens_to_others(data: st.DataObject, card: EmulatedCard) -> None:
    setting = Setting(card)
    try:
        run_some_operations(data, [setting.pool(capacity) for capacity in (3, 1000)])
    finally:
        setting.memory.free_all()
    assert card.live == {}


def run_some_operations(data: st.DataObject, pools: list[CudaPagePool]) -> None:
    expected: dict[tuple[int, int], int] = {}
    for _ in range(data.draw(st.integers(1, 60))):
        which = data.draw(st.integers(0, 1))
        pool, own = pools[which], [page for index, page in expected if index == which]
        action = data.draw(st.sampled_from(["allocate", "free", "write", "copy"]))
        if action == "allocate":
            page = pool.allocate()
            assert (page is None) == (len(own) == pool.capacity)
            if page is not None:
                assert (which, page) not in expected
                expected[which, page] = 0
        elif own:
            page = data.draw(st.sampled_from(own))
            if action == "free":
                pool.free(page)
                del expected[which, page]
            elif action == "write":
                expected[which, page] = data.draw(st.integers(0, 255))
                pool.write(page, filled(expected[which, page]))
            else:
                source = data.draw(st.sampled_from(own))
                if source != page:
                    pool.copy(source, page)
                    expected[which, page] = expected[which, source]
    for (which, page), value in expected.items():
        assert torch.equal(pools[which].read(page), filled(value))


def test_what_one_pool_gives_back_the_next_takes(setting: Setting) -> None:
    pool = setting.pool(1000)
    pages = [pool.allocate() for _ in range(1000)]
    taken = setting.num_bytes
    for page in pages:
        assert page is not None
        pool.free(page)
    second = setting.pool(1000)
    for _ in range(1000):
        assert second.allocate() is not None
    assert setting.num_bytes == taken


def test_a_pool_that_is_dropped_leaves_its_memory_to_others(setting: Setting) -> None:
    for _ in range(20):
        pool = setting.pool(100)
        assert pool.allocate() is not None
    assert setting.num_bytes <= 2 * 100 * 2**14


def test_spare_memory_of_another_size_makes_room(make_card: Callable[..., EmulatedCard]) -> None:
    setting = Setting(make_card(), budget=16 * 2**20)
    wide = KvGeometry("native", ((16, 128),) * 4)
    pool = setting.pool(2, wide)
    pages = [pool.allocate(), pool.allocate()]
    for page in pages:
        assert page is not None
        pool.free(page)
    other = setting.pool(900)
    assert other.allocate() is not None
    setting.memory.free_all()


def test_a_full_card_gives_no_page_and_takes_none(make_card: Callable[..., EmulatedCard]) -> None:
    setting = Setting(make_card(total_bytes=20 * 2**20))
    pool = setting.pool(10_000)
    pages = []
    while (page := pool.allocate()) is not None:
        pages.append(page)
    assert pool.num_pages == len(pages) > 1000
    pool.free(pages[0])
    assert pool.allocate() == pages[0]
    assert pool.allocate() is None
    setting.memory.free_all()


def test_a_lost_card_is_told(make_card: Callable[..., EmulatedCard]) -> None:
    setting = Setting(make_card())
    pool = setting.pool(4)
    page = pool.allocate()
    assert page is not None
    setting.card.lose()
    with pytest.raises(CardLostError):
        pool.read(page)


def test_several_pages_are_had_or_none(card: EmulatedCard) -> None:
    setting = Setting(card)
    pool = setting.pool(5)
    assert len(set(pool.allocate_several(3, "A cache"))) == 3
    with pytest.raises(OutOfMemoryError, match=r"^A cache doesn't fit into the card's memory"):
        pool.allocate_several(3, "A cache")
    assert pool.num_pages == 3
    setting.memory.free_all()


class Counted:
    """A driver that has memory without end, and knows what was asked of it."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def allocate(self, num_bytes: int) -> Address:
        self.sizes.append(num_bytes)
        return Address(1 + sum(self.sizes))

    def fill(self, address: Address, value: int, num_bytes: int) -> None:
        pass


@given(
    layers=st.integers(1, 40),
    heads=st.integers(1, 16),
    num_pages=st.integers(1, 60),
    spare=st.integers(0, 60),
    form=st.sampled_from(["int8", "native"]),
)
def test_no_pool_takes_more_of_the_card_than_was_told(
    layers: int, heads: int, num_pages: int, spare: int, form: KvFormat
) -> None:
    """The card gives memory in units of 2 MB: of a page with 8.1 MB it takes 10."""
    geometry = KvGeometry(form, ((heads, 64),) * layers)
    driver = Counted()
    memory = CardMemory(driver)  # type: ignore[arg-type]
    pool = CudaPagePool(geometry, num_pages + spare, driver, ChunkStore(memory))  # type: ignore[arg-type]
    for _ in range(num_pages):
        assert pool.allocate() is not None
    taken = sum(map(taken_bytes, driver.sizes))
    assert taken == cache_bytes(geometry, num_pages, capacity=num_pages + spare)
    assert taken <= cache_bytes(geometry, num_pages)
    assert taken >= num_pages * geometry.page_bytes


def test_a_pool_without_pages_takes_nothing() -> None:
    assert cache_bytes(GEOMETRY, 0) == 0
