"""Attention on the card: right, and with the same bits for a token alone and for one of many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attention_bench import AttentionBench, Pages, run_in, spec_of

MakeAttention = Callable[..., AttentionBench]


def agrees(found: torch.Tensor, expected: torch.Tensor, width: int) -> bool:
    """Within what queries and weights of 16 bits may differ by, for each head beside its own size."""
    found, expected = found.double().view(-1, width), expected.view(-1, width)
    errors = (found - expected).norm(dim=-1) / expected.norm(dim=-1)
    return bool(errors.median() < 1e-4) and bool(errors.max() < 3e-4)


HEADS = [(1, 1), (2, 1), (6, 2), (4, 1), (8, 1), (16, 1), (18, 2)]


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_a_token_has_the_bits_that_it_has_among_many(
    heads: int, kv_heads: int, make_attention: MakeAttention
) -> None:
    bench = make_attention(spec_of(heads, kv_heads, 64), context=600)
    rows = bench.rows(514)
    whole_pages, pages = bench.new_pages(514), bench.new_pages(514, order=3)
    whole = bench.attend(rows, whole_pages, first=0)
    assert agrees(whole, bench.expected(rows, whole_pages, first=0), 64)
    alone = run_in(bench, rows, pages, [254, 1, 1, 1, 1, 252, 1, 1, 1, 1])
    assert torch.equal(alone.view(torch.int32), whole.view(torch.int32))
    assert bench.page_bytes_of(pages, 514) == bench.page_bytes_of(whole_pages, 514)


LENGTHS = [255, 256, 257, 511, 513]


def same_alone(bench: AttentionBench, length: int, *, before: int = 1, seed: int = 0) -> torch.Tensor:
    """The rows of a whole prompt, after the last few tokens had the same bits one by one."""
    rows = bench.rows(length, seed=seed)
    whole_pages, pages = bench.new_pages(length), bench.new_pages(length, order=seed + 1)
    whole = bench.attend(rows, whole_pages, first=0)
    alone = run_in(bench, rows, pages, [length - before, *[1] * before])
    assert torch.equal(alone.view(torch.int32), whole.view(torch.int32))
    assert bench.page_bytes_of(pages, length) == bench.page_bytes_of(whole_pages, length)
    assert agrees(whole, bench.expected(rows, whole_pages, first=0), bench.spec.head_dim)
    return whole


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("width", [32, 64, 96, 128, 160, 256])
def test_heads_of_any_width_at_the_ends_of_splits(
    width: int, length: int, make_attention: MakeAttention
) -> None:
    same_alone(make_attention(spec_of(3, 1, width), context=520), length, before=2, seed=length)


def test_the_widest_heads(make_attention: MakeAttention) -> None:
    same_alone(make_attention(spec_of(2, 2, 512), context=300), 290, before=2)


@pytest.mark.parametrize("window", [1, 2, 31, 100, 255, 256, 257, 300])
def test_a_window_hides_what_is_older(window: int, make_attention: MakeAttention) -> None:
    bench = make_attention(spec_of(4, 2, 64, window=window), context=600)
    same_alone(bench, 600, before=3, seed=window)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_order_of_blocks_and_threads_changes_nothing(seed: int, make_attention: MakeAttention) -> None:
    spec = spec_of(8, 2, 96)
    results = []
    for order_seed in (0, seed):
        results.append(
            same_alone(make_attention(spec, context=600, card={"order_seed": order_seed}), 530, before=2)
        )
    assert torch.equal(*results)


def test_steps_of_any_size_give_the_same_bits(make_attention: MakeAttention) -> None:
    bench = make_attention(spec_of(6, 2, 64), context=700)
    rows = bench.rows(690)
    whole = bench.attend(rows, bench.new_pages(690), first=0)
    for steps in ([690 - 300, 300], [7, 13, 236, 2, 255, 177], [1, 1, 254, 1, 433]):
        pages = bench.new_pages(690, order=steps[0])
        assert torch.equal(run_in(bench, rows, pages, steps), whole)


def test_room_for_more_splits_changes_nothing(make_attention: MakeAttention) -> None:
    bench = make_attention(spec_of(4, 2, 64), context=600)
    rows, pages = bench.rows(300), bench.new_pages(300)
    before = bench.attend(rows[:299], pages, first=0)
    found = []
    for bench.lets_early in (False, True):
        found += [bench.attend(rows[299:], pages, first=299, room=room) for room in (2, 4, 5, 2)]
    assert all(torch.equal(each, found[0]) for each in found)
    assert before.isfinite().all()
    counters = bench.get(bench.space.arrivals, 2, dtype=torch.int32)
    assert counters.tolist() == [0, 0]  # ready for the next layer


MANY_SPLITS = [
    (2, 1, 64, None),
    (2, 4, 128, None),  # fewer splits than heads
    (2, 8, 64, None),
    (3, 8, 96, 256 + 100),
    (8, 8, 128, None),  # as many
    (4, 4, 32, 3 * 256),
    (5, 4, 64, None),  # one more
    (20, 2, 32, None),
    (33, 4, 96, None),
    (12, 10, 64, None),  # more heads than the other kernel takes
    (2, 3, 160, None),  # heads of two chunks, one of them of 32 features
    (6, 3, 256, None),
    (11, 2, 512, 256 * 8 + 9),
    (41, 2, 160, 256 * 24 + 9),
    (65, 3, 32, None),  # more than are put together at once
    (70, 1, 64, 256 * 41 + 255),
    (130, 2, 32, None),
]


def same_behind_many(bench: AttentionBench, splits: int) -> torch.Tensor:
    """Five rows of the last of so many splits, after tokens had the same bits alone and together. The same
    pages, of three splits, lie at many places.
    """
    first, spec = 256 * (splits - 1), bench.spec
    base, rows = bench.new_pages(768), bench.rows(773)
    bench.attend(rows[:768], base, first=0)
    found = []
    for steps, bench.lets_early in (([5], False), ([1] * 5, False), ([4, 1], True), ([1] * 5, True)):
        ends = bench.new_pages(5)
        pages = Pages((base.addresses * splits)[: 4 * (splits - 1)] + ends.addresses, base.page_bytes)
        found.append(run_in(bench, rows[768:], pages, steps, first=first))
        assert agrees(found[-1], bench.expected(rows[768:], pages, first=first), spec.head_dim)
    assert all(torch.equal(each, found[0]) for each in found)
    counters = bench.get(bench.space.arrivals, spec.num_kv_heads, dtype=torch.int32)
    assert not counters.any()
    return found[0]


@pytest.mark.parametrize(("splits", "heads", "width", "window"), MANY_SPLITS)
def test_many_splits_become_one(
    splits: int, heads: int, width: int, window: int | None, make_attention: MakeAttention
) -> None:
    spec = spec_of(heads, 1, width, window=window)
    same_behind_many(make_attention(spec, context=256 * max(splits, 3), card={"multiprocessors": 64}), splits)


@pytest.mark.parametrize(
    ("splits", "heads", "kv_heads", "width"), [(9, 4, 2, 64), (3, 8, 1, 128), (6, 3, 1, 256)]
)
def test_whichever_blocks_come_last_put_splits_together(
    splits: int, heads: int, kv_heads: int, width: int, make_attention: MakeAttention
) -> None:
    found = []
    for seed in range(4):
        card = {"order_seed": seed, "multiprocessors": 64}
        bench = make_attention(spec_of(heads, kv_heads, width), context=256 * max(splits, 3), card=card)
        found.append(same_behind_many(bench, splits))
    assert all(torch.equal(each, found[0]) for each in found)


@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(16, 2, 64), (16, 1, 32), (2, 1, 512)])
def test_blocks_that_wait_leave_a_processor_to_others(
    heads: int, kv_heads: int, width: int, make_attention: MakeAttention
) -> None:
    """However few a card has: it fails where too many wait."""
    found = []
    for multiprocessors in (1, 2, 4, 7, 64):
        card = {"multiprocessors": multiprocessors}
        bench = make_attention(spec_of(heads, kv_heads, width), context=256 * 10, card=card)
        found.append(same_behind_many(bench, 10))
    assert all(torch.equal(each, found[0]) for each in found)


@pytest.mark.parametrize("form", ["int8", "native"])
@pytest.mark.parametrize(("normed", "rotated"), [(False, 64), (True, 32), (False, 2)])
def test_without_norm_and_with_features_that_stay(
    normed: bool, rotated: int, form: Any, make_attention: MakeAttention
) -> None:
    spec = spec_of(4, 2, 64, rotated=rotated)
    same_alone(make_attention(spec, context=300, form=form, normed=normed), 260)


@pytest.mark.parametrize(("normed", "rotated"), [(True, None), (False, None), (True, 32)])
@pytest.mark.parametrize(("heads", "width"), [(7, 32), (7, 128), (8, 64), (8, 96), (8, 128)])
def test_heads_of_which_a_warp_has_two(
    heads: int, width: int, normed: bool, rotated: int | None, make_attention: MakeAttention
) -> None:
    spec = spec_of(heads, 1, width, rotated=rotated)
    same_alone(make_attention(spec, context=300, normed=normed), 258, before=3)


@pytest.mark.parametrize("form", ["int8", "native"])
@pytest.mark.parametrize("width", [4, 20, 80])
def test_heads_that_fill_no_tile(width: int, form: Any, make_attention: MakeAttention) -> None:
    same_alone(make_attention(spec_of(4, 2, width), context=300, form=form), 260)


@pytest.mark.parametrize("length", LENGTHS)
def test_pages_of_numbers(length: int, make_attention: MakeAttention) -> None:
    bench = make_attention(spec_of(4, 2, 64, window=300), context=520, form="native")
    same_alone(bench, length, before=2)


@pytest.mark.parametrize("length", [200, 290])
@pytest.mark.parametrize("planes", [0, 1, 2])
def test_what_the_output_product_reads_is_the_same_too(
    planes: int, length: int, make_attention: MakeAttention
) -> None:
    bench = make_attention(spec_of(6, 2, 96), context=300, planes=planes)
    rows = bench.rows(length)

    def forms(count: int) -> list[torch.Tensor]:
        """Of the last row."""
        size, row = 6 * 96, count - 1
        found = [bench.get(bench.out.values, count, size)[row]]
        if planes:
            found.append(bench.get(bench.out.scales, count, size // 32)[row])
            found.append(bench.get(bench.out.high, count, size, dtype=torch.int8)[row])
        if planes > 1:
            found.append(bench.get(bench.out.low, count, size, dtype=torch.int8)[row])
        return found

    bench.attend(rows, bench.new_pages(length), first=0)
    whole = forms(length)
    run_in(bench, rows, bench.new_pages(length, order=2), [length - 1, 1])
    assert all(torch.equal(*pair) for pair in zip(forms(1), whole, strict=True))


@pytest.mark.parametrize("part", ["query", "key", "value"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("group", [2, 8])
def test_what_is_no_number_reaches_whoever_reads_it(
    group: int, bad: float, part: str, make_attention: MakeAttention
) -> None:
    heads = 2 * group
    bench = make_attention(spec_of(heads, 2, 64), context=300)
    rows = bench.rows(290)
    head = {"query": group, "key": heads + 1, "value": heads + 3}[part]  # all of the second group
    rows[270, head, 9] = bad
    readers = torch.zeros(290, heads, dtype=torch.bool)
    if part == "query":
        readers[270, group] = True
    else:
        readers[270:, group:] = True
    pages = bench.new_pages(290)
    whole = bench.attend(rows, pages, first=0).view(290, heads, 64)
    assert torch.equal(whole.isnan(), readers[..., None].expand(-1, -1, 64))
    alone = run_in(bench, rows, bench.new_pages(290, order=1), [270, 1, 1, 18]).view(290, heads, 64)
    assert torch.equal(alone.isnan(), whole.isnan())


@pytest.mark.parametrize("length", [1, 16, 33, 250, 300])
def test_what_pages_hold_beyond_the_newest_token_is_nothing(
    length: int, make_attention: MakeAttention
) -> None:
    bench = make_attention(spec_of(4, 2, 64), context=300)
    rows, found = bench.rows(length), []
    for byte in (0, 255):  # of which scales are no numbers
        pages = bench.new_pages(length)
        bench.fill(pages, byte)
        found.append(run_in(bench, rows, pages, [length - 1, 1] if length > 1 else [1]))
    assert found[0].isfinite().all()
    assert torch.equal(*found)


def test_values_of_nothing_give_nothing(make_attention: MakeAttention) -> None:
    bench = make_attention(spec_of(2, 1, 64), context=300)
    rows = bench.rows(260)
    rows[:, 3] = 0
    rows[5, 3] = 1e-39  # rounds to nothing
    found = run_in(bench, rows, bench.new_pages(260), [259, 1])
    assert (found == 0).all()


def test_kept_codes_are_quotients_rounded_to_whole(make_attention: MakeAttention) -> None:
    """As a division has them, also of rows so small that what is left of one is denormal."""
    bench = make_attention(spec_of(1, 1, 128), context=300)
    rows = bench.rows(260)
    rows[:, 2] *= 10.0 ** torch.linspace(-32, 30, 260)[:, None]
    rows[::2, 2, 1:] = rows[::2, 2, :1] / 127 * (torch.arange(-63, 64) + 0.5)
    pages = bench.new_pages(260)
    run_in(bench, rows, pages, [200, 1, 1, 57, 1])
    scales = rows[:, 2].abs().amax(-1, keepdim=True) / 127
    expected = (rows[:, 2] / scales).round().double() * scales.double()
    assert torch.equal(bench.kept(pages, 260)[1][:, 0], expected)


def test_one_token_of_a_hundred_thousand_times_the_weight(make_attention: MakeAttention) -> None:
    """Sums before it are forgotten without a trace of what is no number."""
    bench = make_attention(spec_of(2, 1, 64), context=600, normed=False)
    rows = bench.rows(520)
    rows[400, 2] = rows[519, 0] * 300
    found = same_bits(bench, rows)
    assert found.isfinite().all()


def same_bits(bench: AttentionBench, rows: torch.Tensor) -> torch.Tensor:
    length = len(rows)
    whole = bench.attend(rows, bench.new_pages(length), first=0)
    alone = run_in(bench, rows, bench.new_pages(length, order=1), [length - 1, 1])
    assert torch.equal(alone.view(torch.int32), whole.view(torch.int32))
    return whole


def test_one_launch_a_token_and_two_a_prompt(make_attention: MakeAttention) -> None:
    bench = make_attention(spec_of(4, 2, 64), context=100)
    pages, rows = bench.new_pages(70), bench.rows(70)
    counts = []
    for first, end in ((0, 69), (69, 70)):
        before = bench.kernels.num_launches
        bench.attend(rows[first:end], pages, first=first)
        counts.append(bench.kernels.num_launches - before)
    assert counts == [2, 1]
