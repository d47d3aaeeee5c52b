"""Products as a model asks for them, against float64, and against each other bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from emulated_card import EmulatedCard, EmulatedCompiler
from product_bench import MakeProducts, Products
from workbench import Workbench, agrees, dense_of, one_matrix, random, strip_of

from engine.config import Activations
from engine.cpu.activations import rounded
from engine.cpu.matrices import Dense, Joined, Matrix, Widened
from engine.cpu.strip_matrix import StripMatrix
from engine.cuda.arguments import Activation
from engine.cuda.driver import NOWHERE, CardInfo
from engine.cuda.few_rows import few_launch
from engine.cuda.matrices import DeviceLinear
from engine.cuda.product_rows import Experts
from engine.cuda.tile_layout import TileLayout
from engine.errors import UnsupportedModelError

FORMS: list[Activations] = ["int8", "int8x2"]
FEW = [1, 2, 3, 4]


@pytest.fixture
def _four_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to four rows are made together, whether or not that is quickest, and on a card of little memory."""
    monkeypatch.setattr("engine.cuda.few_products.most_tokens", lambda *_, **__: max(FEW))


def rows_of_all_sizes(rows: int, columns: int) -> torch.Tensor:
    return random(rows, columns, seed=5) * torch.logspace(-3, 3, rows)[:, None]


# outputs, columns, and how scales are
STRIPS = [
    pytest.param(1, 32, {}, id="one block"),
    pytest.param(21, 96, {"offsets": True}, id="offsets"),
    pytest.param(50, 576, {}, id="plain"),
    pytest.param(37, 576, {"narrow": False}, id="float32 scales"),
    pytest.param(16, 160, {"narrow": False, "offsets": True}, id="float32 scales and offsets"),
    pytest.param(33, 1024, {"group": 256}, id="256 a scale"),
    pytest.param(9, 1024, {"group": 256, "offsets": True}, id="256 a scale and offsets"),
    pytest.param(19, 512, {"group": 256, "narrow": False, "offsets": True}, id="256 a float32 scale"),
    pytest.param(18, 2080, {}, id="long stretches"),
]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("outputs", "columns", "scales"), STRIPS)
def test_codes_with_rows_that_stay_numbers(
    outputs: int, columns: int, scales: dict[str, Any], bits: int, make_products: MakeProducts
) -> None:
    matrix = one_matrix(outputs, columns, bits=bits, **scales)
    x, products = rows_of_all_sizes(11, columns), make_products("float")
    linear = products.bench.linear(matrix)
    found = products.run(linear, x, rows=11)
    assert products.launched == [f"product_codes{bits}_float_many"]
    assert agrees(found, x, dense_of(matrix))
    for i in range(11):
        assert torch.equal(products.run(linear, x[i : i + 1], rows=1)[0], found[i])
        assert products.launched == [f"product_codes{bits}_float_one"]


@pytest.mark.usefixtures("_four_are_few")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("outputs", "columns", "scales"), STRIPS)
def test_codes_with_rows_of_codes_however_many(
    outputs: int,
    columns: int,
    scales: dict[str, Any],
    bits: int,
    form: Activations,
    make_products: MakeProducts,
) -> None:
    """Few rows and many are made by different kernels: a row's bits are the same."""
    matrix = one_matrix(outputs, columns, bits=bits, **scales)
    x, products = rows_of_all_sizes(19, columns), make_products(form)
    linear = products.bench.linear(matrix)
    many = products.run(linear, x, rows=19)
    assert products.launched[0].rsplit("_", 1)[1] not in ("one", "few")
    assert agrees(many, rounded(x, form), dense_of(matrix))
    for count in FEW:
        first = 7 - count  # rows find themselves in different places
        few = products.run(linear, x[first : first + count], rows=count)
        kind = "one" if count == 1 and not scales else "few"
        assert products.launched == [f"product_codes{bits}_{form}_{kind}"]
        assert torch.equal(few, many[first : first + count]), count


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "columns"), [(1, 1), (21, 288), (8, 77), (10, 4128)])
def test_numbers(outputs: int, columns: int, dtype: torch.dtype, make_products: MakeProducts) -> None:
    weight = random(outputs, columns, seed=2).to(dtype)
    matrix = Dense(weight) if dtype == torch.float32 else Widened(weight)
    x, products = random(9, columns, seed=5), make_products("int8x2")
    linear = products.bench.linear(matrix)

    def run(rows: torch.Tensor) -> torch.Tensor:
        source = Activation(values=products.bench.put(rows), width=columns)
        return products.run(linear, source, rows=len(rows))

    found = run(x)
    assert agrees(found, x, dense_of(matrix))
    for i in range(9):
        assert torch.equal(run(x[i : i + 1])[0], found[i])


@pytest.mark.usefixtures("_four_are_few")
@pytest.mark.parametrize("form", ["float", *FORMS])
@pytest.mark.parametrize("rows", [1, 3, 9])
def test_a_bias_is_added_and_so_is_what_was_there(
    rows: int, form: Activations, make_products: MakeProducts
) -> None:
    products = make_products(form)
    bias, y, x = random(21, seed=8), random(rows, 21, seed=9), random(rows, 64, seed=5)
    linear = products.bench.linear(StripMatrix(strip_of(21, 64, bits=8), bias))
    plain = products.run(DeviceLinear(linear.parts, NOWHERE), x, rows=rows)
    assert torch.equal(products.run(linear, x, rows=rows), plain + bias)
    assert torch.equal(products.run(linear, x, rows=rows, y=y), y + (plain + bias))
    assert torch.equal(products.run(DeviceLinear(linear.parts, NOWHERE), x, rows=rows, y=y), y + plain)


@pytest.mark.usefixtures("_four_are_few")
@pytest.mark.parametrize("form", ["float", *FORMS])
@pytest.mark.parametrize("rows", [1, 2, 9])
def test_members_of_different_kinds_fill_one_row(
    rows: int, form: Activations, make_products: MakeProducts
) -> None:
    members: list[Matrix] = [
        one_matrix(5, 64, bits=8),
        one_matrix(12, 64, bits=4, seed=4),
        Dense(random(3, 64, seed=6)),
        one_matrix(32, 64, bits=4, seed=5),
        one_matrix(16, 64, bits=4, seed=7),
    ]
    matrix = Joined(members, random(68, seed=7))
    products, x = make_products(form), random(rows, 64, seed=9)
    linear = products.bench.linear(matrix)
    assert [part.rows for part in linear.parts] == [5, 12, 3, 48]  # whole tiles of one form are one part
    found = products.run(linear, x, rows=rows)
    assert matrix.bias is not None
    first = 0
    for member in members:
        outputs = dense_of(member).shape[0]
        seen = x if isinstance(member, Dense) else rounded(x, form)
        part = slice(first, first + outputs)
        sums = found[:, part].double() - matrix.bias[part]
        expected = seen.double() @ dense_of(member).T
        assert torch.allclose(sums, expected, rtol=1e-5, atol=1e-4)
        first += outputs


@pytest.mark.parametrize("form", ["float", *FORMS])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("scales", [{}, {"group": 256, "offsets": True}, {"narrow": False}], ids=str)
def test_each_row_takes_its_experts(
    scales: dict[str, Any], bits: int, form: Activations, make_products: MakeProducts
) -> None:
    """As if each were the only one, bit for bit."""
    experts = [one_matrix(37, 256, bits=bits, seed=seed, **scales) for seed in range(5)]
    products, x = make_products(form), random(4, 256, seed=5)
    linear = products.bench.linear(*experts)
    chosen = torch.tensor([[0, 1, 3], [0, 1, 4], [1, 2, 4], [2, 3, 4]], dtype=torch.int32)
    found = products.run(linear, x, rows=12, experts=Experts(products.bench.put(chosen), 3)).view(4, 3, 37)
    for expert, matrix in enumerate(experts):
        alone = products.run(products.bench.linear(matrix), x, rows=4)
        assert agrees(alone, rounded(x, form), dense_of(matrix))
        assert torch.equal(found[chosen == expert], alone[(chosen == expert).any(1)])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [1, 3, 8])
def test_experts_whose_rows_do_not_share_their_input(
    tokens: int, form: Activations, make_products: MakeProducts
) -> None:
    """As behind the gates: each row of y has one of x."""
    experts = [one_matrix(40, 96, bits=4, seed=seed) for seed in range(3)]
    products, x = make_products(form), random(2 * tokens, 96, seed=5)
    linear = products.bench.linear(*experts)
    chosen = torch.tensor([[0, 2], [1, 2], [0, 1], [0, 2]] * 2, dtype=torch.int32)[:tokens].reshape(-1)
    found = products.run(linear, x, rows=2 * tokens, experts=Experts(products.bench.put(chosen), 1))
    for expert, matrix in enumerate(experts):
        alone = products.run(products.bench.linear(matrix), x, rows=2 * tokens)
        assert torch.equal(found[chosen == expert], alone[chosen == expert])


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_are_grouped_by_expert_have_the_same_bits(
    form: Activations, make_products: MakeProducts
) -> None:
    experts = [one_matrix(40, 96, bits=4, seed=seed) for seed in range(4)]
    products, x = make_products(form), random(7, 96, seed=5)
    linear = products.bench.linear(*experts)
    generator = torch.Generator().manual_seed(1)
    chosen = torch.stack([torch.randperm(4, generator=generator)[:2].sort().values for _ in range(7)])
    products.space.experts = products.bench.put(chosen.int())
    one_by_one = Experts(products.space.experts, 2)
    together = products.runner.grouped([linear], 7, taken=2, count=4)
    assert together.tile_rows
    assert products.runner.grouped([linear], 4, taken=2, count=4) == one_by_one
    found = [products.run(linear, x, rows=14, experts=each) for each in (one_by_one, together)]
    assert torch.equal(*found)


def test_experts_of_different_kinds_are_refused(make_products: MakeProducts) -> None:
    with pytest.raises(UnsupportedModelError, match="different ways"):
        make_products("float").bench.linear(Dense(random(4, 32)), one_matrix(4, 32, bits=8))


@pytest.mark.usefixtures("_four_are_few")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("outputs", "columns", "scales"), STRIPS)
@pytest.mark.parametrize("rows", [*FEW, 9])
def test_a_norm_that_is_part_of_a_product_changes_no_bit(
    rows: int,
    outputs: int,
    columns: int,
    scales: dict[str, Any],
    bits: int,
    form: Activations,
    make_products: MakeProducts,
) -> None:
    products = make_products(form)
    linear = products.bench.linear(one_matrix(outputs, columns, bits=bits, **scales))
    source, behind = products.normed(rows_of_all_sizes(rows, columns), 1 + random(columns, seed=3) / 4)
    expected = products.run(linear, behind, rows=rows)
    found = products.run(linear, source, rows=rows)
    assert ("rms_norm" in products.launched) == (rows > 4)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("columns", [4096, 4128, 5120, 8192, 8224])
def test_nor_does_it_where_the_row_takes_two_steps(
    columns: int, bits: int, form: Activations, make_products: MakeProducts
) -> None:
    products = make_products(form)
    linear = products.bench.linear(one_matrix(7, columns, bits=bits))
    row = random(1, columns, seed=5) * torch.linspace(0.01, 5, columns)
    source, behind = products.normed(row, 1 + random(columns, seed=3) / 4)
    expected = products.run(linear, behind, rows=1)
    found = products.run(linear, source, rows=1)
    assert any(name.endswith("_wide") for name in products.launched) == (4096 < columns <= 8192)
    assert torch.equal(found, expected)


@pytest.mark.usefixtures("_four_are_few")
@pytest.mark.parametrize("rows", [*FEW, 9])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("form", ["float", *FORMS])
def test_what_is_no_number_reaches_its_own_row_alone(
    bad: float, form: Activations, rows: int, make_products: MakeProducts
) -> None:
    x = random(rows, 64, seed=5)
    x[rows // 2, 40] = bad
    products = make_products(form)
    found = products.run(products.bench.linear(one_matrix(9, 64, bits=8)), x, rows=rows)
    lost = torch.arange(rows) == rows // 2
    assert found[~lost].isfinite().all()
    assert not found[lost].isfinite().any()


@pytest.mark.usefixtures("_four_are_few")
@pytest.mark.parametrize("order_seed", [1, 2])
@pytest.mark.parametrize("multiprocessors", [1, 3])
def test_no_thread_relies_on_another_s_turn_and_no_block_on_the_grid(
    multiprocessors: int,
    order_seed: int,
    make_card: Callable[..., EmulatedCard],
    card_compiler: EmulatedCompiler,
) -> None:
    """Few blocks make several rounds of tiles each; groups of warps go on while one makes outputs."""
    found = []
    for options in ({}, {"order_seed": order_seed, "multiprocessors": multiprocessors}):
        products = Products(Workbench(make_card(**options), card_compiler), "int8x2")
        bench, results = products.bench, []
        for columns, scales in ((96, {}), (576, {"offsets": True}), (2080, {})):
            linear = bench.linear(one_matrix(192, columns, bits=4, **scales))
            for rows in (1, 3):
                x = rows_of_all_sizes(rows, columns)
                results.append(products.run(linear, x, rows=rows, y=random(rows, 192)))
            for rows in (1, 9):
                x = rows_of_all_sizes(rows, columns)
                results += products.gates(linear, products.normed(x, random(columns))[0], rows)[1].values()
        found.append(results)
        bench.memory.free_all()
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("tiles", "takers"), [(1, 1), (64, 1), (384, 1), (9496, 1), (2, 8), (128, 8), (128, 64), (128, 200)]
)
def test_blocks_are_no_more_than_have_something_to_do_and_no_fewer_than_processors(
    tiles: int, takers: int
) -> None:
    card = CardInfo("", (9, 0), 1 << 30, 132, "")
    layout = TileLayout(4, 16 * tiles, 4096, 32)
    launch = few_launch(layout, card, planes=2, tokens=1, slots=1, taken=1, takers=takers)
    assert 1 <= launch.grid <= launch.jobs
    assert launch.grid * takers <= max(card.multiprocessors, takers)  # as many as begin at the same time
    assert launch.grid == launch.jobs or (launch.grid + 1) * takers > card.multiprocessors
