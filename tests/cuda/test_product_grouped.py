"""Rows that take experts of their own: how they come together, and that their products have the same bits as
by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from emulated_card import EmulatedCard, EmulatedCompiler
from tile_bench import Codes, Rows, TileBench, expected, random_codes, random_rows

from engine.cuda.arguments import Mixture, TiledProduct
from engine.cuda.driver import Address
from engine.cuda.many_rows import Launch, most_tiles, num_tiles, tile_rows_for


@pytest.fixture
def bench(card: EmulatedCard, card_compiler: EmulatedCompiler) -> Iterator[TileBench]:
    bench = TileBench(card, card_compiler)
    yield bench
    bench.free()


def random_choices(tokens: int, chosen: int, count: int, *, seed: int = 3) -> np.ndarray:
    """(T, k), ascending; some experts are liked better, some by nobody."""
    random = np.random.default_rng(seed)
    liking = random.random(count) ** 4 * (random.random(count) > 0.2) + 1e-9
    keys = random.exponential(size=(tokens, count)) / liking
    return np.sort(np.argsort(keys, axis=1)[:, :chosen], axis=1).astype(np.int32)


CHOICES = [
    pytest.param(random_choices(1, 1, 1), 1, id="one row"),
    pytest.param(random_choices(33, 8, 40), 40, id="33 tokens"),
    pytest.param(random_choices(300, 4, 5), 5, id="few experts"),
    pytest.param(random_choices(3, 2, 1000), 1000, id="many experts"),
    pytest.param(np.full((65, 1), 6, np.int32), 9, id="all at one"),
    pytest.param(np.full((64, 1), 8, np.int32), 9, id="all at the last"),
    pytest.param(np.zeros((31, 1), np.int32), 9, id="all at the first"),
]


@pytest.mark.parametrize("tile_rows", [8, 32, 64])
@pytest.mark.parametrize(("experts", "count"), CHOICES)
def test_rows_come_by_expert_and_then_in_their_order(
    experts: np.ndarray, count: int, tile_rows: int, bench: TileBench
) -> None:
    flat = experts.reshape(-1)
    order, tiles = bench.grouped(flat, count=count, tile_rows=tile_rows)
    wanted = np.argsort(flat, kind="stable").astype(np.int32)
    assert np.array_equal(bench.get(order, wanted), wanted)
    table = np.empty((num_tiles(flat.size, num_experts=count, tile_rows=tile_rows), 3), np.int32)
    found = bench.get(tiles, table)
    used = found[found[:, 2] > 0]
    assert used[:, 2].max() <= tile_rows
    covered = np.concatenate([np.arange(first, first + places) for _, first, places in used])
    assert np.array_equal(covered, np.arange(flat.size))  # every place once, in order
    for expert, first, places in used:
        assert (flat[wanted[first : first + places]] == expert).all()
    # No tile is smaller than it must be.
    for expert in range(count):
        sizes = used[used[:, 0] == expert, 2]
        assert len(sizes) == -(-np.count_nonzero(flat == expert) // tile_rows)
    assert (found[:, 2] >= 0).all()


@pytest.mark.parametrize("order_seed", [1, 2])
def test_grouping_is_the_same_in_any_order_of_work(
    order_seed: int, make_card: Callable[..., EmulatedCard], card_compiler: EmulatedCompiler
) -> None:
    flat = random_choices(40, 4, 16).reshape(-1)
    bench = TileBench(make_card(order_seed=order_seed), card_compiler)
    order, _ = bench.grouped(flat, count=16, tile_rows=8)
    wanted = np.argsort(flat, kind="stable").astype(np.int32)
    assert np.array_equal(bench.get(order, wanted), wanted)
    bench.free()


@pytest.mark.parametrize("tile_rows", [8, 32, 64])
@pytest.mark.parametrize("form", ["int8", "int8x2"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("tokens", "chosen", "count"), [(1, 1, 3), (9, 8, 12), (17, 2, 4), (65, 3, 7)], ids=lambda each: str(each)
)
def test_each_row_is_multiplied_with_its_expert(
    tokens: int, chosen: int, count: int, bits: int, form: str, tile_rows: int, bench: TileBench
) -> None:
    """Rows are quantised once for all their experts, and their place in a tile changes no bit."""
    experts = random_choices(tokens, chosen, count)
    matrices = [random_codes(40, 128, bits=bits, seed=seed) for seed in range(count)]
    x = random_rows(tokens, 128, planes=1 if form == "int8" else 2)
    order, tiles = bench.grouped(experts, count=count, tile_rows=tile_rows)
    shape = matrices[0].product(form)
    found = bench.product(
        shape.grouped_launch(experts.size, num_experts=count, tile_rows=tile_rows),
        bench.matrix(*matrices),
        bench.activation(x),
        y=np.full((experts.size, 40), np.nan, np.float32),
        rows_each=chosen,
        order=order,
        row_tiles=tiles,
    )
    assert np.array_equal(found, by_themselves(matrices, x, experts))


def by_themselves(matrices: list[Codes], x: Rows, experts: np.ndarray) -> np.ndarray:
    every = np.stack([expected(each, x) for each in matrices])
    return np.stack([every[expert, token] for token, row in enumerate(experts) for expert in row])


@pytest.mark.parametrize(
    ("group", "narrow", "offsets", "columns"),
    [(32, False, False, 96), (256, False, True, 256), (32, True, True, 160), (256, True, False, 256)],
)
@pytest.mark.parametrize("bits", [4, 8])
def test_experts_of_any_form(
    bits: int, group: int, narrow: bool, offsets: bool, columns: int, bench: TileBench
) -> None:
    experts = random_choices(21, 2, 5)
    matrices = [
        random_codes(24, columns, bits=bits, group=group, narrow=narrow, offsets=offsets, seed=seed)
        for seed in range(5)
    ]
    x = random_rows(21, columns, planes=2)
    shape = matrices[0].product("int8x2")
    tile_rows = tile_rows_for(experts.size, num_experts=5, is_plain=shape.is_plain)
    order, tiles = bench.grouped(experts, count=5, tile_rows=tile_rows)
    found = bench.product(
        shape.grouped_launch(experts.size, num_experts=5, tile_rows=tile_rows),
        bench.matrix(*matrices),
        bench.activation(x),
        y=np.full((experts.size, 24), np.nan, np.float32),
        rows_each=2,
        order=order,
        row_tiles=tiles,
    )
    assert np.array_equal(found, by_themselves(matrices, x, experts))


def test_a_mixture_adds_up_to_the_same_bits_whoever_shares_its_tiles(bench: TileBench) -> None:
    """Gate and up with the gate applied, down, and the sum over experts: for all tokens at once, and for each
    alone.
    """
    tokens, chosen, count, hidden, inner = 13, 3, 6, 64, 96
    experts = random_choices(tokens, chosen, count)
    gate_ups = [random_codes(2 * inner, hidden, bits=4, seed=10 + i) for i in range(count)]
    downs = [random_codes(hidden, inner, bits=4, seed=30 + i) for i in range(count)]
    x = random_rows(tokens, hidden, planes=2)
    weights = np.random.default_rng(2).random((tokens, chosen)).astype(np.float32)
    gate_up, down = bench.matrix(*gate_ups), bench.matrix(*downs)

    def run(which: list[int]) -> tuple[dict[str, np.ndarray], np.ndarray]:
        mine = experts[which]
        tile_rows = tile_rows_for(mine.size, num_experts=count, is_plain=True)
        order, tiles = bench.grouped(mine, count=count, tile_rows=tile_rows)
        places = {"order": order, "row_tiles": tiles}
        first, second = gate_ups[0].product("int8x2"), downs[0].product("int8x2")
        middle = bench.room_for(mine.size, inner, planes=2, values=True)
        bench.gates(
            first.grouped_launch(mine.size, num_experts=count, tile_rows=tile_rows),
            gate_up,
            bench.activation(x.taken(np.array(which))),
            middle,
            rows=mine.size,
            rows_each=chosen,
            **places,
        )
        y = bench.put(np.full((mine.size, hidden), np.nan, np.float32))
        arguments = TiledProduct(
            weights=down,
            x=middle,
            y=y,
            stride=hidden,
            rows=mine.size,
            rows_each=1,
            **places,
        )
        bench.launch(second.grouped_launch(mine.size, num_experts=count, tile_rows=tile_rows), arguments)
        total = np.zeros((len(which), hidden), np.float32)
        target = bench.put(total)
        mixture = Mixture(y=y, weights=bench.put(weights[which]), hidden=target, width=hidden, chosen=chosen)
        bench.launch(Launch("mix_experts", (1, len(which), 1)), mixture)
        return bench.forms_of(middle, mine.size), bench.get(Address(target), total)

    middle, together = run(list(range(tokens)))
    values, _ = bench.gated(by_themselves(gate_ups, x, experts))
    wanted = {"values": values, **bench.codes_of(values, planes=2)}
    assert middle.keys() == wanted.keys()
    assert all(np.array_equal(middle[name], wanted[name]) for name in wanted)
    for token in range(tokens):
        alone_middle, alone = run([token])
        own = slice(token * chosen, (token + 1) * chosen)
        assert all(np.array_equal(alone_middle[name], middle[name][own]) for name in wanted)
        assert np.array_equal(alone[0], together[token])


@pytest.mark.parametrize("form", ["int8", "int8x2"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("tile_rows", "offsets"), [(8, False), (32, False), (64, False), (32, True)])
def test_what_is_made_of_experts_gates_has_the_bits_of_rows_that_are_quantised(
    tile_rows: int, offsets: bool, bits: int, form: str, bench: TileBench
) -> None:
    planes, tokens, chosen, count = 1 if form == "int8" else 2, 37, 3, 5
    experts = random_choices(tokens, chosen, count)
    matrices = [random_codes(192, 160, bits=bits, offsets=offsets, seed=seed) for seed in range(count)]
    x = random_rows(tokens, 160, planes=planes)
    order, tiles = bench.grouped(experts, count=count, tile_rows=tile_rows)
    out = bench.room_for(experts.size, 96, planes=planes, values=False)
    bench.gates(
        matrices[0].product(form).grouped_launch(experts.size, num_experts=count, tile_rows=tile_rows),
        bench.matrix(*matrices),
        bench.activation(x),
        out,
        rows=experts.size,
        rows_each=chosen,
        order=order,
        row_tiles=tiles,
    )
    found = bench.forms_of(out, experts.size)
    wanted = bench.codes_of(bench.gated(by_themselves(matrices, x, experts))[0], planes=planes)
    assert found.keys() == wanted.keys()
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


def test_tiles_that_nobody_needs_are_few() -> None:
    assert num_tiles(16384, num_experts=128, tile_rows=32) == 640
    assert most_tiles(16384, num_experts=128) == 2176
    assert tile_rows_for(16384, num_experts=128, is_plain=True) == 64
    assert tile_rows_for(4096, num_experts=128, is_plain=True) == 32
    assert tile_rows_for(16 * 8, num_experts=128, is_plain=True) == 8
    assert tile_rows_for(16 * 8, num_experts=128, is_plain=False) == 32
