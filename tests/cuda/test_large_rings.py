"""Products on cards with 160 KB of shared memory a processor and more, where warps have more weights on their
way: bit for bit what they are on a card with 100 KB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from emulated_card import EmulatedCard, EmulatedCompiler
from product_bench import Products
from workbench import Workbench, one_matrix, random

from engine.config import Activations
from engine.cuda.matrices import DeviceLinear
from engine.cuda.product_rows import Experts, Normed

FORMS: list[Activations] = ["int8", "int8x2"]
FEW = [1, 2, 3, 4]
SMALL, LARGE = (8, 6), (9, 0)
Found = dict[str, torch.Tensor]
OnBoth = Callable[[Activations, Callable[[Products], Found]], None]

pytestmark = [pytest.mark.parametrize("bits", [4, 8]), pytest.mark.parametrize("form", FORMS)]


@pytest.fixture
def on_both(make_card: Callable[..., EmulatedCard], card_compiler: EmulatedCompiler) -> Iterator[OnBoth]:
    """Does something with a few processors of either kind, so that there are several rounds, and finds the
    same.
    """
    benches: list[Workbench] = []

    def compare(form: Activations, work: Callable[[Products], Found]) -> None:
        found = []
        for capability in (SMALL, LARGE):
            card = make_card(compute_capability=capability, multiprocessors=2, order_seed=1)
            benches.append(Workbench(card, card_compiler))
            found.append(work(Products(benches[-1], form)))
        small, large = found
        assert small.keys() == large.keys()
        for name, numbers in small.items():
            assert torch.equal(numbers, large[name]), name
            assert numbers.any(), f"there is nothing in {name}"

    yield compare
    for bench in benches:
        if not bench.card.failed:
            bench.memory.free_all()


def is_large(products: Products) -> bool:
    return products.bench.card.info.compute_capability == LARGE


@pytest.mark.parametrize(
    ("outputs", "columns", "scales"),
    [
        pytest.param(1, 32, {}, id="one block"),
        pytest.param(200, 576, {}, id="short stretches"),
        pytest.param(50, 576, {"offsets": True}, id="offsets"),
        pytest.param(33, 2080, {}, id="long stretches"),
        pytest.param(33, 1024, {"group": 256, "narrow": False}, id="256 a float32 scale"),
    ],
)
def test_products_of_a_few_rows_with_a_norm_before_them_and_without(
    outputs: int, columns: int, scales: dict[str, Any], bits: int, form: Activations, on_both: OnBoth
) -> None:
    def work(products: Products) -> Found:
        found = {}
        linear = products.bench.linear(one_matrix(outputs, columns, bits=bits, **scales))
        for rows in FEW:
            normed, behind = products.normed(random(rows, columns, seed=5), random(columns, seed=3))
            y = random(rows, outputs, seed=rows)
            for name, x in (("as they are", behind), ("normed", normed)):
                found[f"{rows} {name}"] = products.run(linear, x, rows=rows, y=y)
                kind = "one" if rows == 1 and not scales else "few"
                if is_large(products):
                    assert products.launched == [f"product_codes{bits}_{form}_{kind}"]
        return found

    on_both(form, work)


def gates(products: Products, linear: DeviceLinear, x: Normed) -> Found:
    gated = products.bench.activation_room(1, linear.rows // 2, products.form)
    gated.values = 0  # nobody wants them as numbers
    assert products.noted(lambda: products.runner.gates(linear, x, gated, rows=1))
    assert len(products.launched) == 1
    return products.bench.codes_of(gated, 1)


@pytest.mark.parametrize(("width", "columns"), [(32, 32), (160, 96), (320, 512), (96, 1024), (32, 4128)])
def test_gates_whose_weights_are_asked_for_early_or_late(
    width: int, columns: int, bits: int, form: Activations, on_both: OnBoth
) -> None:
    """And behind another product, where blocks are spread over the processors."""

    def work(products: Products) -> Found:
        linear = products.bench.linear(one_matrix(2 * width, columns, bits=bits))
        other = products.bench.linear(one_matrix(width, columns, bits=bits))
        x, _ = products.normed(random(1, columns, seed=5), 1 + random(columns, seed=3) / 4)
        late, behind = replace(x, is_near=True), replace(x, is_near=True, behind=other)
        sources = {"early": x, "late": late, "late and spread": behind}
        return {
            f"{kind} {name}": numbers
            for kind, source in sources.items()
            for name, numbers in gates(products, linear, source).items()
        }

    on_both(form, work)


@pytest.mark.parametrize("tokens", [1, 3])
def test_gates_of_experts_and_what_reads_them(
    tokens: int, bits: int, form: Activations, on_both: OnBoth
) -> None:
    width, columns = 96, 640

    def work(products: Products) -> Found:
        bench, rows = products.bench, 2 * tokens
        gate_up = bench.linear(*[one_matrix(2 * width, columns, bits=bits, seed=seed) for seed in range(3)])
        down = bench.linear(*[one_matrix(columns, width, bits=bits, seed=9 + seed) for seed in range(3)])
        chosen = torch.tensor([[0, 2], [1, 2], [0, 1]], dtype=torch.int32)[:tokens]
        experts = Experts(bench.put(chosen), 2)
        x = bench.activation(random(tokens, columns, seed=5), form)
        gated = products.runner.gates_of_experts(gate_up, down, x, rows=rows, experts=experts)
        assert gated is not None
        made = products.run(down, gated, rows=rows, experts=replace(experts, rows_each=1))
        return {"gates": bench.get(gated.values, rows, width), "outputs": made}

    on_both(form, work)
