from __future__ import annotations

import mmap

import psutil
import pytest
import torch

from engine.cpu import memory, page_pool
from engine.cpu.page_pool import CpuPagePool
from engine.errors import OutOfMemoryError
from engine.kv_geometry import KvGeometry

GEOMETRY = KvGeometry("int8", ((2, 24), (1, 7)))


def test_pages_are_zeros_also_where_one_was_used_before() -> None:
    pool = CpuPagePool(GEOMETRY, 2)
    first = pool.allocate()
    assert first is not None
    pool.write(first, torch.full((GEOMETRY.page_bytes,), 255, dtype=torch.uint8))
    pool.free(first)
    again = pool.allocate()
    assert again is not None
    assert not pool.read(again).any()


def test_there_are_never_more_than_the_capacity() -> None:
    pool = CpuPagePool(GEOMETRY, 3)
    pages = [pool.allocate() for _ in range(4)]
    assert sorted(page for page in pages if page is not None) == [0, 1, 2]
    assert pages[3] is None
    pool.free(1)
    assert pool.allocate() == 1
    assert pool.allocate() is None


def test_a_page_is_refused_where_memory_is_short_and_had_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = CpuPagePool(GEOMETRY, 2)
    with monkeypatch.context() as patch:
        patch.setattr(memory, "available_bytes", lambda: memory.RESERVE_BYTES + GEOMETRY.page_bytes - 1)
        assert pool.allocate() is None
        patch.setattr(memory, "available_bytes", lambda: memory.RESERVE_BYTES + GEOMETRY.page_bytes)
        assert pool.allocate() == 0

    def refuse(*_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(page_pool.mmap, "mmap", refuse)
        assert pool.allocate() is None
    assert pool.num_pages == 1
    assert pool.allocate() == 1


def test_what_is_read_is_written_back_and_is_a_copy() -> None:
    pool = CpuPagePool(GEOMETRY, 3)
    pages = [pool.allocate() for _ in range(3)]
    data = torch.randint(0, 256, (GEOMETRY.page_bytes,), dtype=torch.uint8)
    pool.write(0, data)
    read = pool.read(0)
    assert torch.equal(read, data)
    read.zero_()
    pool.copy(0, 2)
    pool.bytes_of(0)[:5] = 0
    assert torch.equal(pool.read(2), data)
    assert not pool.read(1).any()
    assert pages == [0, 1, 2]


@pytest.mark.parametrize("data", [torch.zeros(3, dtype=torch.uint8), torch.zeros(GEOMETRY.page_bytes)])
def test_only_a_whole_page_of_bytes_is_written(data: torch.Tensor) -> None:
    pool = CpuPagePool(GEOMETRY, 1)
    pool.allocate()
    with pytest.raises(AssertionError):
        pool.write(0, data)


def test_a_page_is_not_freed_twice_and_not_used_afterwards() -> None:
    pool = CpuPagePool(GEOMETRY, 1)
    pool.allocate()
    pool.free(0)
    for use in (pool.free, pool.read):
        with pytest.raises(AssertionError):
            use(0)


def test_freed_pages_go_back_to_the_system() -> None:
    geometry = KvGeometry("int8", ((8, 128),) * 16)  # 2 MiB and a bit
    pool = CpuPagePool(geometry, 32)
    process = psutil.Process()
    before = process.memory_info().rss
    pages = [pool.allocate() for _ in range(32)]
    taken = process.memory_info().rss - before
    assert taken > 28 * geometry.page_bytes
    for page in pages:
        assert page is not None
        pool.free(page)
    assert process.memory_info().rss - before < taken - 28 * geometry.page_bytes


def test_pages_are_aligned_so_that_scales_can_be_read() -> None:
    pool = CpuPagePool(GEOMETRY, 4)
    pages = [pool.allocate() for _ in range(4)]
    addresses = pool.addresses([page for page in pages if page is not None])
    assert len(set(addresses)) == 4
    assert all(address % mmap.PAGESIZE == 0 for address in addresses)


def test_several_pages_are_had_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the memory that was there at first goes away meanwhile."""
    pool = CpuPagePool(GEOMETRY, 20)
    assert len(set(pool.allocate_several(5, "A cache"))) == 5
    monkeypatch.setattr(page_pool, "has_room_for", lambda _: pool.num_pages < 10)
    with pytest.raises(OutOfMemoryError, match=r"^A cache needs \d+ MiB"):
        pool.allocate_several(6, "A cache")
    assert pool.num_pages == 5


def test_many_pages_are_refused_before_the_first_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = CpuPagePool(GEOMETRY, 10**6)
    monkeypatch.setattr(memory, "available_bytes", lambda: memory.RESERVE_BYTES + 3 * 2**20)
    monkeypatch.setattr(pool, "allocate", lambda: pytest.fail("it is known that this can't be had"))
    with pytest.raises(OutOfMemoryError, match=r"^A cache needs \d+ MiB.* 3 MiB"):
        pool.allocate_several(10**5, "A cache")
