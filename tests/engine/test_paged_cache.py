"""A sequence with pages of its own, over a pool that counts."""

from __future__ import annotations

import pytest
import torch

from engine.errors import OutOfMemoryError
from engine.kv_geometry import KvGeometry
from engine.paged_cache import PagedCache


class CountingPool:
    geometry = KvGeometry("int8", ((2, 16),))

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held: set[int] = set()

    def allocate(self) -> int | None:
        page = next((each for each in range(self.capacity) if each not in self.held), None)
        if page is not None:
            self.held.add(page)
        return page

    def allocate_several(self, count: int, what: str) -> list[int]:
        if count > self.capacity - len(self.held):
            raise OutOfMemoryError(f"{what} is too much.")
        pages = [self.allocate() for _ in range(count)]
        return [page for page in pages if page is not None]

    def free(self, page: int) -> None:
        self.held.remove(page)

    def copy(self, source: int, target: int) -> None:
        raise AssertionError("a cache copies nothing")

    def read(self, page: int) -> torch.Tensor:
        raise AssertionError("a cache reads nothing")

    def write(self, page: int, data: torch.Tensor) -> None:
        raise AssertionError("a cache writes nothing")


def test_it_grows_by_pages_and_forgets_without_freeing() -> None:
    cache = PagedCache(pool := CountingPool(4))
    assert not pool.held, "nothing is taken before it is needed"
    for length, pages in [(1, 1), (64, 1), (65, 2), (3, 2), (200, 4)]:
        cache.reserve(length)
        assert len(cache.sequence.pages) == len(pool.held) == pages
        cache.sequence.length = length
    cache.truncate(10)
    assert cache.length == 10
    assert len(pool.held) == 4


def test_a_refusal_says_for_how_many_tokens_and_changes_nothing() -> None:
    cache = PagedCache(pool := CountingPool(4))
    cache.reserve(5)
    before = list(cache.sequence.pages)
    with pytest.raises(OutOfMemoryError, match=r"^A cache for 1,000,000 tokens is too much"):
        cache.reserve(10**6)
    assert cache.sequence.pages == before
    assert len(pool.held) == 1


def test_closing_gives_everything_back() -> None:
    cache = PagedCache(pool := CountingPool(4))
    cache.reserve(100)
    cache.close()
    assert not pool.held
