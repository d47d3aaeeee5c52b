"""Gates with their ups, as a model asks for them: bit for bit what their products, a gate and rounding are,
one behind the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from emulated_card import EmulatedCard, EmulatedCompiler
from product_bench import MakeProducts, Products
from workbench import Workbench, one_matrix, random, strip_of

from engine.config import Activations
from engine.cpu.matrices import Dense, Joined, Matrix
from engine.cpu.strip_matrix import StripMatrix
from engine.cuda.arguments import Swiglu
from engine.cuda.driver import NOWHERE
from engine.cuda.product_rows import Experts
from engine.weights.strips import BLOCK

FORMS: list[Activations] = ["int8", "int8x2"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 9])
@pytest.mark.parametrize(
    ("width", "columns", "scales"),
    [
        (32, 32, {}),
        (96, 576, {}),
        (64, 1024, {"group": 256, "offsets": True}),
        (160, 96, {"narrow": False}),
        (32, 4128, {}),
        (320, 512, {}),  # four chains: all tiles of a job at the same time
        (96, 1024, {}),  # eight: two of them
        (96, 384, {}),  # three: four warps have nothing to do
    ],
)
def test_gates_are_what_their_products_and_a_gate_are(
    width: int,
    columns: int,
    scales: dict[str, Any],
    rows: int,
    bits: int,
    form: Activations,
    make_products: MakeProducts,
) -> None:
    products = make_products(form)
    linear = products.bench.linear(one_matrix(2 * width, columns, bits=bits, **scales))
    source, _ = products.normed(random(rows, columns, seed=5), 1 + random(columns, seed=3) / 4)
    one_by_one = products.bench.activation_room(rows, width, form)
    gate_up = products.bench.put(products.run(linear, source, rows=rows))
    products.bench.kernels.launch("swiglu", Swiglu(gate_up=gate_up, out=one_by_one), grid=(rows, 1, 1))
    made, found = products.gates(linear, source, rows)
    assert made
    assert len(products.launched) in {1: [1], 9: [3]}.get(rows, [1, 3])  # a few where there is room
    expected = products.bench.codes_of(one_by_one, rows)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert found["high"].abs().view(rows, -1, BLOCK).amax(-1).eq(127).all()  # there is something


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("teams", [1, 2, 4])
@pytest.mark.parametrize("capability", [(8, 6), (9, 0)])
def test_gates_have_the_same_bits_with_any_number_of_teams_and_chains(
    capability: tuple[int, int],
    teams: int,
    bits: int,
    make_card: Callable[..., EmulatedCard],
    card_compiler: EmulatedCompiler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whichever number is the quickest, on few processors so that there are several rounds."""
    card = make_card(compute_capability=capability, multiprocessors=2, order_seed=teams)
    bench = Workbench(card, card_compiler)
    products = Products(bench, "int8x2")
    for chains in range(1, 16 // teams + 1):
        columns = 128 * chains - 32 * (chains > 1)  # the last chain is not full
        linear = bench.linear(one_matrix(320, columns, bits=bits))
        assert linear.parts[0].layout.chains == chains
        source, _ = products.normed(random(1, columns, seed=5), 1 + random(columns, seed=3) / 4)
        one_by_one = bench.activation_room(1, 160, "int8x2")
        gate_up = bench.put(products.run(linear, source, rows=1))
        bench.kernels.launch("swiglu", Swiglu(gate_up=gate_up, out=one_by_one), grid=(1, 1, 1))
        expected = bench.codes_of(one_by_one, 1)
        with monkeypatch.context() as patched:
            patched.setattr("engine.cuda.few_rows.teams_for", lambda *_, **__: teams)
            made, found = products.gates(linear, source, 1)
        assert made
        assert all(torch.equal(found[name], expected[name]) for name in expected), chains
    bench.memory.free_all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("width", "columns"), [(32, 32), (160, 96), (320, 512), (96, 1024), (32, 4128)])
def test_gates_that_ask_for_weights_late_have_the_same_bits(
    width: int, columns: int, bits: int, form: Activations, make_products: MakeProducts
) -> None:
    """Also where a warp asks for fewer stages than it has late ones."""
    products = make_products(form)
    linear = products.bench.linear(one_matrix(2 * width, columns, bits=bits))
    source, _ = products.normed(random(1, columns, seed=5), 1 + random(columns, seed=3) / 4)
    made, expected = products.gates(linear, source, 1)
    made_late, found = products.gates(linear, replace(source, is_near=True), 1)
    assert made
    assert made_late
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize(("width", "columns", "scales"), [(32, 96, {}), (96, 256, {"group": 256})])
def test_gates_of_experts_are_too_and_stay_numbers(
    width: int,
    columns: int,
    scales: dict[str, Any],
    tokens: int,
    bits: int,
    form: Activations,
    make_products: MakeProducts,
) -> None:
    """What reads them makes the codes that it needs, as if they had come as codes."""
    products, rows = make_products(form), 2 * tokens
    bench = products.bench
    gate_up = bench.linear(
        *[one_matrix(2 * width, columns, bits=bits, seed=seed, **scales) for seed in range(3)]
    )
    down = bench.linear(*[one_matrix(21, width, bits=bits, seed=9 + seed) for seed in range(3)])
    chosen = Experts(bench.put(torch.tensor([[0, 2], [1, 2], [0, 1]], dtype=torch.int32)[:tokens]), 2)
    x = random(tokens, columns, seed=5)
    sums = bench.put(products.run(gate_up, x, rows=rows, experts=chosen))
    expected = bench.activation_room(rows, width, form)
    bench.kernels.launch("swiglu", Swiglu(gate_up=sums, out=expected), grid=(rows, 1, 1))
    codes = bench.activation(x, form)
    found = products.noted(
        lambda: products.runner.gates_of_experts(gate_up, down, codes, rows=rows, experts=chosen)
    )
    assert len(products.launched) == 1
    assert torch.equal(bench.get(found.values, rows, width), bench.get(expected.values, rows, width))
    each = replace(chosen, rows_each=1)
    made = products.run(down, expected, rows=rows, experts=each)
    assert torch.equal(products.run(down, found, rows=rows, experts=each), made)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scales", [{}, {"group": 256, "offsets": True}], ids=str)
def test_gates_of_a_prompt_come_in_8_bits_and_are_not_written_as_numbers(
    scales: dict[str, Any], form: Activations, make_products: MakeProducts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the kernels of prompts, however few its rows."""
    monkeypatch.setattr("engine.cuda.many_rows._DENSE", ("medium", "general"))
    products, rows, width = make_products(form), 19, 96
    bench = products.bench
    linear = bench.linear(one_matrix(2 * width, 256, bits=4, **scales))
    source, _ = products.normed(random(rows, 256, seed=5), 1 + random(256, seed=3) / 4)
    expected = bench.activation_room(rows, width, form)
    sums = bench.put(products.run(linear, source, rows=rows))
    bench.kernels.launch("swiglu", Swiglu(gate_up=sums, out=expected), grid=(rows, 1, 1))
    products.space.gate_up = NOWHERE
    made, found = products.gates(linear, source, rows)
    assert made
    assert products.launched == [f"product_codes4_{form}_{'general' if scales else 'medium'}", "rms_norm"]
    wanted = bench.codes_of(expected, rows)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("columns", [96, 4160])
@pytest.mark.parametrize(
    ("rows", "kind"), [(1, "one_gated_values"), (9, "short"), (32, "medium")], ids=["1", "9", "32"]
)
def test_gates_stay_numbers_where_numbers_are_multiplied_with_them(
    rows: int,
    kind: str,
    columns: int,
    form: Activations,
    make_products: MakeProducts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also behind a row that takes two steps, of which this kernel has no form of its own."""
    monkeypatch.setattr("engine.cuda.many_rows._DENSE", ("medium",))
    products, width = make_products(form), 96
    bench = products.bench
    linear = bench.linear(one_matrix(2 * width, columns, bits=4))
    source, _ = products.normed(random(rows, columns, seed=5), 1 + random(columns, seed=3) / 4)
    sums = bench.put(products.run(linear, source, rows=rows))
    found, expected = (products.space.gated.of(width, values=True, planes=0) for _ in range(2))
    expected.values = bench.room(rows, width)
    bench.kernels.launch("swiglu", Swiglu(gate_up=sums, out=expected), grid=(rows, 1, 1))
    assert products.noted(lambda: products.runner.gates(linear, source, found, rows=rows))
    assert f"product_codes4_{form}_{kind}" in products.launched
    assert torch.equal(bench.get(found.values, rows, width), bench.get(expected.values, rows, width))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scales", [{}, {"group": 256, "offsets": True}], ids=str)
def test_gates_of_experts_whose_rows_are_grouped_come_in_8_bits(
    scales: dict[str, Any], form: Activations, make_products: MakeProducts
) -> None:
    products, tokens, taken, width = make_products(form), 13, 2, 96
    bench, rows = products.bench, tokens * taken
    gate_up = bench.linear(*[one_matrix(2 * width, 256, bits=4, seed=seed, **scales) for seed in range(4)])
    down = bench.linear(*[one_matrix(21, width, bits=4, seed=9 + seed) for seed in range(4)])
    generator = torch.Generator().manual_seed(1)
    chosen = torch.stack(
        [torch.randperm(4, generator=generator)[:taken].sort().values for _ in range(tokens)]
    )
    products.space.experts = bench.put(chosen.int())
    experts = products.runner.grouped([gate_up, down], tokens, taken=taken, count=4)
    assert experts.tile_rows
    x = bench.activation(random(tokens, 256, seed=5), form)
    sums = bench.put(products.run(gate_up, x, rows=rows, experts=experts))
    expected = bench.activation_room(rows, width, form)
    bench.kernels.launch("swiglu", Swiglu(gate_up=sums, out=expected), grid=(rows, 1, 1))
    found = products.noted(
        lambda: products.runner.gates_of_experts(gate_up, down, x, rows=rows, experts=experts)
    )
    assert len(products.launched) == 1
    assert not found.values
    wanted = bench.codes_of(expected, rows)
    codes = bench.codes_of(found, rows)
    assert codes.keys() == wanted.keys()
    assert all(torch.equal(codes[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("case", ["float", "a bias", "numbers", "a width of half tiles", "two forms"])
def test_gates_that_are_not_made_together_are_left_to_others(case: str, make_products: MakeProducts) -> None:
    products = make_products("float" if case == "float" else "int8x2")
    matrix: Matrix = one_matrix(64, 64, bits=8)
    match case:
        case "a bias":
            matrix = StripMatrix(strip_of(64, 64, bits=8), random(64))
        case "numbers":
            matrix = Dense(random(64, 64))
        case "a width of half tiles":
            matrix = one_matrix(96, 64, bits=8)
        case "two forms":
            matrix = Joined([one_matrix(32, 64, bits=8), one_matrix(32, 64, bits=4)])
    linear = products.bench.linear(matrix)
    source, _ = products.normed(random(2, 64), random(64, seed=2))
    for rows in (1, 2):
        made, _ = products.gates(linear, source, rows)
        assert not made
        assert products.launched == []
