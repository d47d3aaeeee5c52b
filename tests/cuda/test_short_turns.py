"""A few tokens behind a long conversation: all splits at once, with the bits of one after the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from attention_bench import AttentionBench, Pages, spec_of

from engine.cuda.attention import StepShape, splits_at_once, splits_for
from engine.cuda.driver import Address
from engine.cuda.memory import Use

BUSY, IDLE = 1, 1000  # processors of a card: few rows are enough for them all, or never
BLOCK = 32

Forms = list[torch.Tensor]
MakeAttention = Callable[..., AttentionBench]


def forms(bench: AttentionBench, count: int) -> Forms:
    """All that the output product may read of so many rows, as bits."""
    size, out = bench.spec.q_dim, bench.out
    numbers = [
        bench.get(Address(out.values), count, size),
        bench.get(Address(out.scales), count, size // BLOCK),
        bench.get(Address(out.sums), count, size // BLOCK),
    ]
    codes = [bench.get(Address(each), count, size, dtype=torch.int8) for each in (out.high, out.low)]
    return [*(each.view(torch.int32) for each in numbers), *codes]


def turn(bench: AttentionBench, rows: torch.Tensor, pages: Pages, *, first: int) -> tuple[Forms, int]:
    """What becomes of rows behind `first` tokens, and in how many launches."""
    before = bench.kernels.num_launches
    bench.attend(rows, pages, first=first)
    return forms(bench, len(rows)), bench.kernels.num_launches - before


def conversation(bench: AttentionBench, tokens: int, splits: int, count: int) -> Pages:
    """Pages of `tokens` tokens and room for `count` more, behind so many splits that are a few, repeated."""
    base, made = bench.new_pages(512), bench.rows(512 + tokens, seed=1)
    bench.attend(made[:512], base, first=0)
    ends = bench.new_pages(tokens + count)
    pages = Pages((base.addresses * splits)[: 4 * splits] + ends.addresses, base.page_bytes)
    if tokens:
        bench.attend(made[512:], pages, first=256 * splits)
    return pages


def same(found: Forms, expected: Forms) -> bool:
    return all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


# Rows, query heads, heads of keys and values, width, splits before, tokens behind these, window.
TURNS = [
    (2, 1, 1, 64, 1, 0, None),
    (2, 4, 1, 128, 2, 255, None),  # the second row is the first one of a split
    (7, 8, 1, 64, 1, 250, None),
    (7, 2, 2, 256, 1, 249, None),  # the last row is the last one of a split
    (16, 8, 2, 128, 3, 17, None),
    (16, 8, 1, 256, 2, 241, None),
    (32, 1, 1, 128, 8, 224, None),
    (32, 4, 1, 64, 32, 3, None),
    (33, 4, 4, 64, 2, 223, None),
    (33, 6, 2, 96, 4, 250, None),
    (64, 4, 1, 128, 1, 200, None),
    (64, 8, 1, 64, 9, 1, None),
    (5, 1, 1, 512, 1, 252, None),
    (3, 2, 1, 160, 7, 9, None),
    (40, 1, 1, 64, 2, 240, 17),  # rows of a block that see one split, another one, or both
    (40, 3, 1, 64, 3, 230, 256),
    (33, 4, 2, 128, 3, 255, 257),
    (64, 2, 2, 64, 20, 200, 1200),
]


@pytest.mark.parametrize(("count", "heads", "kv_heads", "width", "splits", "tokens", "window"), TURNS)
def test_all_splits_at_once_give_the_bits_of_one_after_the_other(
    count: int,
    heads: int,
    kv_heads: int,
    width: int,
    splits: int,
    tokens: int,
    window: int | None,
    make_attention: MakeAttention,
) -> None:
    first = 256 * splits + tokens
    few = (
        kv_heads * -(-count * (heads // kv_heads) // BLOCK) + 1
    )  # blocks have several splits, also of two pairs
    found = {}
    for processors in (BUSY, few, IDLE):
        spec = spec_of(heads, kv_heads, width, window=window)
        bench = make_attention(spec, card={"multiprocessors": processors}, context=max(first, 512) + 300)
        pages = conversation(bench, tokens, splits, count)
        found[processors] = turn(bench, bench.rows(count, seed=2), pages, first=first)
    assert found[BUSY][1] == 2
    for processors in (few, IDLE):
        assert found[processors][1] == 3
        assert same(found[processors][0], found[BUSY][0])


@pytest.mark.parametrize("order_seed", [1, 2])
def test_the_order_of_blocks_and_threads_changes_nothing(
    order_seed: int, make_attention: MakeAttention
) -> None:
    found = []
    for seed in (0, order_seed):
        bench = make_attention(
            spec_of(6, 2, 64), card={"multiprocessors": 7, "order_seed": seed}, context=1100
        )
        pages = conversation(bench, 250, 2, 25)
        found.append(turn(bench, bench.rows(25, seed=2), pages, first=762))
    assert same(found[0][0], found[1][0])


@pytest.mark.parametrize("planes", [0, 1])
def test_only_what_is_wanted_is_written(planes: int, make_attention: MakeAttention) -> None:
    found = []
    for processors in (BUSY, IDLE):
        bench = make_attention(
            spec_of(4, 2, 96), card={"multiprocessors": processors}, context=600, planes=planes
        )
        pages = conversation(bench, 0, 1, 19)
        values = bench.attend(bench.rows(19, seed=2), pages, first=256)
        found.append([values.view(torch.int32)])
        if planes:
            found[-1].append(bench.get(Address(bench.out.high), 19, 4 * 96, dtype=torch.int8))
    assert same(*found)


@pytest.mark.parametrize("room", [1, 3, 5, 6])
def test_a_turn_takes_the_room_that_there_is_and_no_more(room: int, make_attention: MakeAttention) -> None:
    """Six pairs of rows and a head of keys and values, of three splits each."""
    spec = spec_of(4, 2, 64)
    found = {}
    for processors in (BUSY, IDLE):
        bench = make_attention(spec, card={"multiprocessors": processors}, context=800)
        pages = conversation(bench, 250, 1, 40)
        num_bytes = 4 * BLOCK * 3 * (128 + 2) * room
        bench.space.partials = bench.memory.allocate(num_bytes, Use.WORKSPACE)
        bench.space.partial_bytes = num_bytes
        found[processors] = turn(bench, bench.rows(40, seed=2), pages, first=506)
    assert found[IDLE][1] == 1 + 2 * -(-6 // room)
    assert same(found[IDLE][0], found[BUSY][0])


@pytest.mark.parametrize("head", [2, 5, 7])  # a query; a key and a value of the second group
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_reaches_the_same_rows(
    bad: float, head: int, make_attention: MakeAttention
) -> None:
    found = []
    for processors in (BUSY, IDLE):
        bench = make_attention(spec_of(4, 2, 64), card={"multiprocessors": processors}, context=600)
        pages = conversation(bench, 0, 1, 20)
        rows = bench.rows(20, seed=2)
        rows[11, head, 9] = bad
        found.append(bench.attend(rows, pages, first=256))
    assert found[0].isnan().any()
    assert torch.equal(*(each.isnan() for each in found))
    assert torch.equal(*(each.nan_to_num() for each in found))


def test_room_for_more_splits_changes_nothing(make_attention: MakeAttention) -> None:
    bench = make_attention(spec_of(4, 2, 64), card={"multiprocessors": IDLE}, context=700)
    pages = conversation(bench, 3, 1, 9)
    rows = bench.rows(9, seed=2)
    found = [bench.attend(rows, pages, first=259, room=room) for room in (0, 3, 5)]
    assert all(torch.equal(each, found[0]) for each in found)


def test_a_prompt_goes_through_its_splits_one_after_the_other(make_attention: MakeAttention) -> None:
    bench = make_attention(spec_of(4, 2, 64), card={"multiprocessors": 10}, context=700)
    pages = conversation(bench, 0, 1, 330)
    for count, launches in ((64, 3), (65, 2), (330, 2)):  # 8, 10 and 42 pairs
        assert turn(bench, bench.rows(count), pages, first=256)[1] == launches


@pytest.mark.parametrize("window", [1, 2, 200, 256, 257, 258, 700])
@pytest.mark.parametrize(("rows", "group"), [(2, 1), (40, 1), (50, 3), (9, 4), (40, 5), (30, 40)])
def test_there_is_room_for_all_splits_that_rows_of_a_block_see(rows: int, group: int, window: int) -> None:
    spec = spec_of(group, 1, 64, window=window)
    most = 0
    for first in range(1000, 1256):
        room = splits_at_once(spec, StepShape(rows, splits_for(first + rows)))
        for start in range(0, rows * group, BLOCK):
            last = (min(start + BLOCK, rows * group) - 1) // group
            oldest = max(0, first + start // group - window + 1)
            seen = (first + last) // 256 - oldest // 256 + 1
            assert seen <= room
            most = max(most, seen)
    assert most >= room - 1
