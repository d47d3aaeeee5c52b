from __future__ import annotations

import pytest
import torch

from engine.cpu import memory
from engine.cpu.attention import PAGE
from engine.cpu.kv_cache import KvCache
from engine.errors import OutOfMemoryError
from engine.models.spec import AttentionSpec, RopeSpec

LAYERS = [
    AttentionSpec(4, 2, 8, scale=1.0, rope=RopeSpec(1e4, 8)),
    AttentionSpec(3, 1, 6, scale=1.0, rope=RopeSpec(1e4, 6)),
]


def append(cache: KvCache, count: int) -> list[torch.Tensor]:
    """Adds `count` random rows to every layer; returns them."""
    cache.reserve(cache.length + count)
    added = [torch.randn(count, 2, spec.num_kv_heads, spec.head_dim) for spec in LAYERS]
    for index, kv in enumerate(added):
        cache.write(index, kv)
    cache.commit(count)
    return added


def contents(cache: KvCache) -> list[torch.Tensor]:
    """Per layer (length, 2, G, D)."""
    return [torch.stack(cache.rows(index, 0)).permute(2, 0, 1, 3) for index in range(len(LAYERS))]


def test_rows_come_back_as_written_through_growth_and_truncation() -> None:
    cache = KvCache(LAYERS, max_length=1000)
    kept: list[list[torch.Tensor]] = [[] for _ in LAYERS]
    for count, keep in [(1, 1), (62, 63), (1, 64), (1, 65), (200, 100), (1, 101), (500, 601), (0, 0), (3, 3)]:
        added = (
            append(cache, count) if count else [torch.empty(0, 2, s.num_kv_heads, s.head_dim) for s in LAYERS]
        )
        cache.truncate(keep)
        for index, kv in enumerate(added):
            kept[index] = [torch.cat([*kept[index], kv])[:keep]]
            assert torch.equal(contents(cache)[index], kept[index][0])
        assert cache.length == keep


def test_capacity_doubles_in_whole_pages_up_to_the_longest() -> None:
    cache = KvCache(LAYERS, max_length=5 * PAGE - 3)
    page_bytes = PAGE * sum(2 * 4 * spec.kv_dim for spec in LAYERS)
    sizes = []
    for _ in range(5 * PAGE - 3):
        append(cache, 1)
        sizes.append(cache.num_bytes // page_bytes)
    assert sorted(set(sizes)) == [1, 2, 4, 5]
    assert cache.num_bytes == 5 * page_bytes


def test_what_was_written_but_not_committed_does_not_count() -> None:
    cache = KvCache(LAYERS, max_length=100)
    append(cache, 3)
    cache.reserve(5)
    cache.write(0, torch.randn(2, 2, 2, 8))
    assert cache.length == 3
    assert contents(cache)[0].shape[0] == 3


def test_growth_that_does_not_fit_is_refused_with_both_numbers_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = KvCache(LAYERS, max_length=10**7)
    append(cache, 5)
    before = contents(cache)
    monkeypatch.setattr(memory, "available_bytes", lambda: memory.RESERVE_BYTES + 3 * 2**20)
    with pytest.raises(OutOfMemoryError, match=r"\d+ MiB.* 3 MiB"):
        cache.reserve(10**6)
    assert cache.length == 5
    assert all(torch.equal(old, new) for old, new in zip(before, contents(cache), strict=True))
    append(cache, 1)
