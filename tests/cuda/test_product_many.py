"""Products of several rows with strips in tiles, against the same sums in NumPy: bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from emulated_card import EmulatedCard, EmulatedCompiler
from tile_bench import Codes, Rows, TileBench, expected, fused, random_codes, random_rows

from engine.cuda.many_rows import PRODUCTS, ManyRows
from engine.cuda.tile_layout import TileLayout

FORMS = ["int8", "int8x2"]
PLAIN = ["short", "turn", "medium", "large"]
DENSE = [*PLAIN, "general16", "general64", "general"]
MANY = ["scattered", "medium", "large", "general"]  # of product_many.cu


@pytest.fixture
def bench(card: EmulatedCard, card_compiler: EmulatedCompiler) -> Iterator[TileBench]:
    bench = TileBench(card, card_compiler)
    yield bench
    bench.free()


def run(bench: TileBench, matrix: Codes, x: Rows, suffix: str, *, form: str, **more: Any) -> np.ndarray:
    """With that kernel, whatever the sizes."""
    launch = matrix.product(form).launch_with(suffix, len(x.high))
    y = np.full((len(x.high), matrix.rows), np.nan, np.float32)
    return bench.product(launch, bench.matrix(matrix), bench.activation(x), y=y, **more)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("outputs", "columns", "group", "narrow", "offsets"),
    [
        (5, 32, 32, True, False),
        (40, 96, 32, True, True),
        (130, 576, 32, True, False),
        (49, 1024, 256, True, False),
        (33, 512, 256, True, True),
        (20, 192, 32, False, False),
        (17, 256, 256, False, True),
        (18, 160, 32, False, True),
    ],
)
def test_every_kernel_adds_up_in_the_same_order(
    outputs: int,
    columns: int,
    group: int,
    narrow: bool,
    offsets: bool,
    bits: int,
    form: str,
    bench: TileBench,
) -> None:
    matrix = random_codes(outputs, columns, bits=bits, group=group, narrow=narrow, offsets=offsets)
    x = random_rows(65, columns, planes=FORMS.index(form) + 1)
    wanted = expected(matrix, x)
    for suffix in DENSE:
        if suffix in PLAIN and not matrix.product(form).is_plain:
            continue
        found = run(bench, matrix, x, suffix, form=form)
        assert np.array_equal(found, wanted), suffix


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bits", [4, 8])
def test_numbers_are_the_same_where_they_are_converted(
    bits: int, form: str, make_card: Callable[..., EmulatedCard], card_compiler: EmulatedCompiler
) -> None:
    """As newer cards do."""
    bench = TileBench(make_card(compute_capability=(9, 0)), card_compiler)
    for is_narrow, has_offsets in ((True, False), (True, True), (False, False)):
        matrix = random_codes(130, 576, bits=bits, narrow=is_narrow, offsets=has_offsets)
        x = random_rows(65, 576, planes=FORMS.index(form) + 1)
        wanted = expected(matrix, x)
        for suffix in DENSE:
            if suffix in PLAIN and not matrix.product(form).is_plain:
                continue
            assert np.array_equal(run(bench, matrix, x, suffix, form=form), wanted), suffix
    bench.free()


def test_sums_in_another_order_are_other_numbers() -> None:
    """So the equalities here mean something."""
    matrix, x = random_codes(40, 1024, bits=4), random_rows(9, 1024, planes=2)
    assert not np.array_equal(expected(matrix, x), expected(replace(matrix, most_chains=1), x))


def test_the_reference_rounds_once() -> None:
    # The product is 1 + 2^-23 + 2^-48 and 1 - ...: between two floats, where float64 lands on the middle.
    a = np.array([1 + 2.0**-12], np.float32)
    c = np.array([2.0**-60], np.float32)
    product = float(a[0]) ** 2
    middle = np.float32(product)
    assert float(middle) != product
    assert fused(a, a, c)[0] == np.nextafter(middle, np.float32(2))


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 16, 17, 64, 130])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bits", [4, 8])
def test_a_row_has_the_same_bits_in_any_company(bits: int, form: str, rows: int, bench: TileBench) -> None:
    matrix = random_codes(40, 192, bits=bits)
    x = random_rows(130, 192, planes=FORMS.index(form) + 1)
    wanted = expected(matrix, x)
    taken = np.random.default_rng(rows).permutation(130)[:rows]
    for suffix in DENSE:
        assert np.array_equal(run(bench, matrix, x.taken(taken), suffix, form=form), wanted[taken])


@pytest.mark.parametrize("most_chains", [1, 2, 3, 4, 5, 16])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("suffix", DENSE)
def test_stretches_of_any_length(suffix: str, bits: int, most_chains: int, bench: TileBench) -> None:
    """More than there are warps, ones that end within a step, ones that are longer than a step."""
    matrix = replace(random_codes(20, 38 * 32, bits=bits), most_chains=most_chains)
    x = random_rows(9, 38 * 32, planes=2)
    assert np.array_equal(run(bench, matrix, x, suffix, form="int8x2"), expected(matrix, x))


@pytest.mark.parametrize("suffix", DENSE)
def test_a_bias_and_what_was_there_are_added_at_the_end(suffix: str, bench: TileBench) -> None:
    matrix, x = random_codes(35, 128, bits=8), random_rows(19, 128, planes=1)
    random = np.random.default_rng(5)
    bias = random.standard_normal(35).astype(np.float32)
    y = random.standard_normal((19, 50)).astype(np.float32)
    sums = expected(matrix, x)
    found = bench.product(
        matrix.product("int8").launch_with(suffix, 19),
        bench.matrix(matrix),
        bench.activation(x),
        y=y,
        bias=bench.put(bias),
        adds=1,
    )
    assert np.array_equal(found[:, :35], y[:, :35] + (sums + bias))
    assert np.array_equal(found[:, 35:], y[:, 35:])


@pytest.mark.parametrize("order_seed", [1, 2, 3])
@pytest.mark.parametrize("suffix", DENSE)
def test_no_thread_relies_on_another_s_turn(
    suffix: str, order_seed: int, make_card: Callable[..., EmulatedCard], card_compiler: EmulatedCompiler
) -> None:
    bench = TileBench(make_card(order_seed=order_seed), card_compiler)
    matrix, x = random_codes(70, 736, bits=8, offsets=suffix not in PLAIN), random_rows(67, 736, planes=2)
    found = run(bench, matrix, x, suffix, form="int8x2")
    assert np.array_equal(found, expected(matrix, x))
    bench.free()


# gates, columns, and how scales are
GATES = [
    pytest.param(32, 32, {}, id="one block"),
    pytest.param(96, 192, {}, id="half of a block's outputs"),
    pytest.param(160, 576, {}, id="plain"),
    pytest.param(64, 512, {"group": 256, "offsets": True}, id="256 a scale and offsets"),
    pytest.param(96, 160, {"narrow": False, "offsets": True}, id="float32 scales and offsets"),
]


def gates_of(
    bench: TileBench, matrix: Codes, x: Rows, suffix: str, *, form: str, values: bool = False
) -> dict[str, np.ndarray]:
    rows, planes = len(x.high), FORMS.index(form) + 1
    out = bench.room_for(rows, matrix.rows // 2, planes=planes, values=values)
    launch = matrix.product(form).launch_with(suffix, rows)
    bench.gates(launch, bench.matrix(matrix), bench.activation(x), out, rows=rows)
    return bench.forms_of(out, rows)


def wanted_gates(bench: TileBench, matrix: Codes, x: Rows, *, form: str) -> dict[str, np.ndarray]:
    """By three kernels, one behind the other."""
    values, _ = bench.gated(expected(matrix, x))
    return {"values": values, **bench.codes_of(values, planes=FORMS.index(form) + 1)}


def are_equal(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(found[name], wanted[name], equal_nan=True) for name in found)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 20, 65])
@pytest.mark.parametrize(("outputs", "columns", "scales"), GATES)
def test_what_is_made_of_gates_has_the_bits_of_rows_that_are_quantised(
    outputs: int, columns: int, scales: dict[str, Any], rows: int, bits: int, form: str, bench: TileBench
) -> None:
    matrix = random_codes(2 * outputs, columns, bits=bits, **scales)
    x = random_rows(rows, columns, planes=FORMS.index(form) + 1)
    wanted = wanted_gates(bench, matrix, x, form=form)
    assert np.count_nonzero(wanted["high"])
    assert wanted.keys() - {"low"} == {"values", "high", "scales", "sums"}
    for suffix in MANY if matrix.product(form).is_plain else ["general"]:
        for values in (False, True):
            found = gates_of(bench, matrix, x, suffix, form=form, values=values)
            assert found.keys() == wanted.keys() - (set() if values else {"values"})
            assert are_equal(found, wanted), suffix


@pytest.mark.parametrize("suffix", ["short", "turn", "general16", "general64"])
def test_gates_whose_neighbours_another_block_makes_are_quantised_behind_it(
    suffix: str, bench: TileBench
) -> None:
    matrix, x = random_codes(192, 192, bits=4), random_rows(20, 192, planes=2)
    assert not matrix.product("int8x2").launch_with(suffix, 20).rounds_gates
    wanted = wanted_gates(bench, matrix, x, form="int8x2")
    assert are_equal(gates_of(bench, matrix, x, suffix, form="int8x2", values=True), wanted)


@pytest.mark.parametrize("order_seed", [1, 2, 3])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bits", [4, 8])
def test_no_warp_relies_on_its_neighbour_s_turn_with_gates(
    bits: int,
    form: str,
    order_seed: int,
    make_card: Callable[..., EmulatedCard],
    card_compiler: EmulatedCompiler,
) -> None:
    """Also where sums don't fit into shared memory at once: 8 bits and one plane."""
    bench = TileBench(make_card(order_seed=order_seed), card_compiler)
    matrix, x = random_codes(320, 288, bits=bits), random_rows(67, 288, planes=FORMS.index(form) + 1)
    wanted = wanted_gates(bench, matrix, x, form=form)
    for suffix in MANY:
        assert are_equal(gates_of(bench, matrix, x, suffix, form=form), wanted), suffix
    bench.free()


@pytest.mark.parametrize("suffix", MANY)
@pytest.mark.parametrize("form", FORMS)
def test_gates_that_are_no_numbers_leave_their_block_without_a_scale(
    form: str, suffix: str, bench: TileBench
) -> None:
    matrix, x = random_codes(128, 128, bits=4), random_rows(11, 128, planes=FORMS.index(form) + 1)
    matrix.scales[40] = np.nan  # a gate of the second block
    x.scales[4, 2] = np.nan
    found = gates_of(bench, matrix, x, suffix, form=form)
    assert are_equal(found, wanted_gates(bench, matrix, x, form=form))
    is_left_without = np.isnan(found["scales"])
    assert is_left_without[4].all()
    assert is_left_without[:, 1].all()
    assert not np.delete(is_left_without, 4, 0)[:, 0].any()


@pytest.mark.parametrize("width", [32, 288, 2080])
def test_rows_are_quantised_as_where_they_are_made(width: int, bench: TileBench) -> None:
    gate_up = np.random.default_rng(4).standard_normal((3, 2 * width)).astype(np.float32)
    made, rows = bench.gated(gate_up)
    quantised = bench.quantised(made)
    assert np.array_equal(quantised.high, rows.high)
    assert np.array_equal(quantised.low, rows.low)
    assert np.array_equal(quantised.scales, rows.scales)
    assert (np.abs(rows.high).reshape(3, -1, 32).max(-1) == 127).all()


@pytest.mark.parametrize("suffix", DENSE)
@pytest.mark.parametrize("form", FORMS)
def test_what_is_no_number_stays_in_its_row(form: str, suffix: str, bench: TileBench) -> None:
    matrix, x = random_codes(33, 128, bits=4), random_rows(11, 128, planes=FORMS.index(form) + 1)
    x.scales[4, 2] = np.nan
    found = run(bench, matrix, x, suffix, form=form)
    assert np.isnan(found[4]).all()
    assert np.array_equal(np.delete(found, 4, 0), np.delete(expected(matrix, x), 4, 0))


@pytest.mark.parametrize("outputs", [16, 1024, 4096, 24576, 151936])
@pytest.mark.parametrize("rows", [2, 9, 17, 64, 65, 200, 2048])
def test_every_launch_covers_all_rows_and_outputs(rows: int, outputs: int) -> None:
    shape = ManyRows(TileLayout(8, outputs, 4096, 32), "int8x2", is_plain=True)
    launch = shape.launch(rows, multiprocessors=132)
    assert launch.kernel in PRODUCTS
    covered = {"short": (16, 32), "turn": (64, 32), "medium": (32, 128), "large": (64, 128)}
    at_once, made = covered[launch.kernel.rsplit("_", 1)[1]]
    assert 0 <= launch.grid[0] * at_once - rows < at_once
    assert 0 <= launch.grid[1] * made - outputs < made
    assert launch.shared_bytes <= 99 * 1024
    assert launch.grid[1] < 65536


def test_a_prompt_takes_the_kernel_that_reads_least_and_a_turn_one_that_keeps_all_processors_busy() -> None:
    shape = ManyRows(TileLayout(4, 4096, 4096, 32), "int8", is_plain=True)
    kernels = [shape.launch(rows, multiprocessors=132).kernel for rows in (9, 32, 128, 2048)]
    assert [name.rsplit("_", 1)[1] for name in kernels] == ["short", "turn", "medium", "large"]
