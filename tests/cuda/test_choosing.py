"""A single token's experts, chosen by whoever reads the router's logits, as by a launch before."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from emulated_card import EmulatedCard, EmulatedCompiler
from product_bench import Products
from workbench import Workbench, random, strip_of

from engine.config import Activations
from engine.cpu.matrices import Dense, Matrix
from engine.cpu.strip_matrix import StripMatrix
from engine.cuda.arguments import Mixture, Route, Router
from engine.cuda.driver import NOWHERE, Address
from engine.cuda.matrices import DeviceLinear
from engine.cuda.product_rows import Experts, Plain
from engine.cuda.router_sizes import logits_a_block, router_bytes

WIDTH, COLUMNS = 32, 128
COUNTS = [(1, 1), (5, 2), (31, 31), (33, 8), (60, 4), (100, 64), (126, 9), (128, 8)]
LOGITS = ["any", "few", "same", "no number", "infinite", "all minus infinity", "one alone"]

Make = Callable[..., Products]


@pytest.fixture
def make(make_card: Callable[..., EmulatedCard], card_compiler: EmulatedCompiler) -> Iterator[Make]:
    """Products in that form, on a card of its own."""
    benches: list[Workbench] = []

    def new(form: Activations, **card: Any) -> Products:
        benches.append(Workbench(make_card(**card), card_compiler))
        return Products(benches[-1], form)

    yield new
    for bench in benches:
        bench.memory.free_all()


def logits_of(kind: str, count: int) -> torch.Tensor:
    logits = random(count, seed=count) * 3
    match kind:
        case "few":
            logits = torch.randint(0, 4, (count,), generator=torch.Generator().manual_seed(count)).float()
        case "same":
            logits.fill_(-2.5)
        case "no number":
            logits[count // 2] = math.nan
        case "infinite":
            logits[count - 1] = math.inf
        case "all minus infinity":
            logits.fill_(-math.inf)
        case "one alone":
            logits.fill_(-200.0)
            logits[count - 1] = 7.0
    return logits


def experts_of(
    bench: Workbench, count: int, rows: int, columns: int, *, bits: Any, seed: int
) -> DeviceLinear:
    return bench.linear(
        *[StripMatrix(strip_of(rows, columns, bits=bits, seed=seed + expert)) for expert in range(count)]
    )


def routed(
    bench: Workbench, logits: Address, count: int, chosen: int, *, normalises: bool = True
) -> tuple[Address, Address]:
    """Experts and weights, by a launch of its own."""
    experts, weights = bench.room(chosen, dtype=torch.int32), bench.room(chosen)
    route = Route(
        logits=logits, experts=experts, weights=weights, count=count, chosen=chosen, normalises=normalises
    )
    bench.kernels.launch("route", route, grid=(1, 1, 1))
    return experts, weights


def mixed(bench: Workbench, y: torch.Tensor, chosen: int, **weights: Any) -> torch.Tensor:
    target = bench.put(random(y.shape[1], seed=6))
    mixture = Mixture(y=bench.put(y), hidden=target, width=y.shape[1], chosen=chosen, **weights)
    bench.kernels.launch("mix_experts", mixture, grid=(-(-y.shape[1] // 256), 1, 1))
    return bench.get(target, y.shape[1])


def of_experts(
    products: Products, both: tuple[DeviceLinear, DeviceLinear], experts: Experts, chosen: int
) -> list[torch.Tensor]:
    """What comes of a token's gates, and of the products behind them."""
    gate_up, down = both
    bench = products.bench
    x = bench.activation(random(1, gate_up.columns, seed=5), products.form)
    gated = products.noted(
        lambda: products.runner.gates_of_experts(gate_up, down, x, rows=chosen, experts=experts)
    )
    assert isinstance(gated, Plain)
    kinds = list(products.launched)
    y = products.run(down, gated, rows=chosen, experts=replace(experts, rows_each=1))
    kinds += products.launched
    assert len(kinds) == 2
    assert all(kind.endswith("_choosing") == bool(experts.logits) for kind in kinds)
    return [bench.get(gated.values, chosen, gate_up.rows // 2), y]


def chosen_both_ways(
    products: Products, both: tuple[DeviceLinear, DeviceLinear], logits: torch.Tensor, chosen: int
) -> list[torch.Tensor]:
    """As `of_experts`, where each block chooses: the same bits as where a launch before has."""
    products.space.router = products.bench.put(logits)
    choosing = products.runner.choosing(*both, 1, taken=chosen, count=len(logits))
    assert choosing is not None
    experts, _ = routed(products.bench, products.space.router, len(logits), chosen)
    expected = of_experts(products, both, Experts(experts, chosen), chosen)
    found = of_experts(products, both, choosing, chosen)
    assert all(same_bits(one, other) for one, other in zip(found, expected, strict=True))
    return found


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


@pytest.mark.parametrize(("count", "chosen"), COUNTS)
@pytest.mark.parametrize("kind", LOGITS)
def test_the_same_experts_are_taken_with_the_same_weights(
    kind: str, count: int, chosen: int, make: Make
) -> None:
    products = make("int8x2")
    bench, logits = products.bench, logits_of(kind, count)
    gate_up = experts_of(bench, count, 2 * WIDTH, COLUMNS, bits=4, seed=1)
    down = experts_of(bench, count, 21, WIDTH, bits=4, seed=500)
    found = chosen_both_ways(products, (gate_up, down), logits, chosen)
    for normalises in (True, False):
        _, weights = routed(bench, products.space.router, count, chosen, normalises=normalises)
        here = mixed(
            bench, found[1], chosen, logits=products.space.router, count=count, normalises=normalises
        )
        assert same_bits(here, mixed(bench, found[1], chosen, weights=weights))


@pytest.mark.parametrize("capability", [(8, 6), (9, 0)])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("form", ["int8", "int8x2"])
@pytest.mark.parametrize("columns", [96, 640, 7680, 7808])
def test_rows_of_any_width_come_while_experts_are_chosen(
    columns: int, form: Activations, bits: Any, capability: tuple[int, int], make: Make
) -> None:
    """As copies, or as numbers on their way through registers; on few processors, in any order of work."""
    chosen, count = 3, 6
    products = make(form, compute_capability=capability, multiprocessors=2, order_seed=1)
    bench = products.bench
    gate_up = experts_of(bench, count, 2 * WIDTH, columns, bits=bits, seed=1)
    down = experts_of(bench, count, 40, WIDTH, bits=bits, seed=9)
    chosen_both_ways(products, (gate_up, down), logits_of("any", count), chosen)


@pytest.mark.parametrize(
    "case",
    ["two rows", "many experts", "many taken", "numbers", "wide scales", "offsets", "half tiles", "bias"],
)
def test_where_products_do_not_choose_somebody_does_before(case: str, make: Make) -> None:
    products = make("int8x2")

    def can_choose(gate_up: Matrix, down: Matrix, *, rows: int = 1, taken: int = 2, count: int = 128) -> bool:
        linears = [products.bench.linear(each) for each in (gate_up, down)]
        return products.runner.choosing(*linears, rows, taken=taken, count=count) is not None

    gate_up, down = (StripMatrix(strip_of(*shape, bits=4)) for shape in ((64, 64), (40, 32)))
    assert can_choose(gate_up, down)
    match case:
        case "two rows":
            assert not can_choose(gate_up, down, rows=2)
        case "many experts":
            assert not can_choose(gate_up, down, count=129)
        case "many taken":
            assert not can_choose(gate_up, down, taken=65)
        case "numbers":
            assert not can_choose(gate_up, Dense(random(40, 32)))
            assert not can_choose(Dense(random(64, 64)), down)
        case "wide scales":
            assert not can_choose(gate_up, StripMatrix(strip_of(40, 32, bits=4, narrow=False)))
        case "offsets":
            assert not can_choose(StripMatrix(strip_of(64, 64, bits=4, offsets=True)), down)
        case "half tiles":
            assert not can_choose(StripMatrix(strip_of(48, 64, bits=4)), down)
        case "bias":
            assert not can_choose(gate_up, StripMatrix(strip_of(40, 32, bits=4), random(40)))


def test_a_router_that_nobody_waits_for_leaves_logits_and_the_row_alone(make: Make) -> None:
    bench, count, width = make("int8x2").bench, 13, 96
    part = bench.linear(Dense(random(count, width, seed=2))).parts[0]
    untouched = torch.full((4,), 7, dtype=torch.int32)
    found = []
    for arrivals in (bench.put(torch.zeros(1, dtype=torch.int32)), NOWHERE):
        out, logits = bench.activation_room(1, width, "int8x2"), bench.room(count)
        experts, weights = bench.put(untouched), bench.put(untouched)
        route = Route(logits=logits, experts=experts, weights=weights, count=count, chosen=4)
        each = logits_a_block(part)
        router = Router(
            x=bench.put(random(1, width, seed=3)),
            norm=bench.put(random(width, seed=4)),
            out=out,
            weights=part.weights,
            route=route,
            arrivals=arrivals,
            eps=1e-6,
            each=each,
        )
        grid = (-(-count // each) + 1, 1, 1)
        bench.kernels.launch("router_float32", router, grid=grid, shared_bytes=router_bytes(part, each))
        codes = bench.codes_of(out, 1)
        found.append([bench.get(logits, count), bench.get(out.values, width), *codes.values()])
        chose = [bench.get(each, 4, dtype=torch.int32) for each in (experts, weights)]
        assert all(torch.equal(one, untouched) for one in chose) == (arrivals == NOWHERE)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
