"""Which experts a token takes: against plain Python, and by one launch as by three."""

from __future__ import annotations

import math

import pytest
import torch
from emulated_card import EmulatedCard, EmulatedCompiler
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from workbench import Workbench, random, strip_of

from engine.cpu.matrices import Dense, Matrix, Widened
from engine.cpu.strip_matrix import StripMatrix
from engine.cuda.arguments import Norm, Product, Route, Router
from engine.cuda.router_sizes import logits_a_block, router_bytes

INFINITY, NAN = math.inf, math.nan
SIZES = [(1, 1), (5, 2), (31, 31), (33, 8), (100, 64), (128, 8), (129, 64), (256, 6), (300, 33), (1024, 64)]


def chosen_of(logits: list[float], chosen: int, *, normalises: bool) -> tuple[list[int], list[float]]:
    """Experts, ascending, and their weights: the likeliest, of equals the first."""
    if any(math.isnan(each) for each in logits) or INFINITY in logits or max(logits) == -INFINITY:
        return list(range(chosen)), [NAN] * chosen
    powers = [math.exp(each - max(logits)) for each in logits]
    taken = sorted(range(len(logits)), key=lambda expert: (-logits[expert], expert))[:chosen]
    total = sum(powers[expert] for expert in taken) if normalises else sum(powers)
    return sorted(taken), [powers[expert] / total for expert in sorted(taken)]


def route(
    workbench: Workbench, logits: torch.Tensor, chosen: int, *, normalises: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, count = logits.shape
    experts, weights = workbench.room(rows, chosen, dtype=torch.int32), workbench.room(rows, chosen)
    arguments = Route(
        logits=workbench.put(logits),
        experts=experts,
        weights=weights,
        count=count,
        chosen=chosen,
        normalises=normalises,
    )
    workbench.kernels.launch("route", arguments, grid=(rows, 1, 1))
    return workbench.get(experts, rows, chosen, dtype=torch.int32), workbench.get(weights, rows, chosen)


def check(workbench: Workbench, logits: torch.Tensor, chosen: int, *, normalises: bool) -> None:
    experts, weights = route(workbench, logits, chosen, normalises=normalises)
    for row in range(len(logits)):
        expected, shares = chosen_of(logits[row].tolist(), chosen, normalises=normalises)
        assert experts[row].tolist() == expected
        wanted = torch.tensor(shares, dtype=torch.float64)
        assert torch.allclose(weights[row].double(), wanted, rtol=1e-5, atol=1e-30, equal_nan=True)


@pytest.mark.parametrize("normalises", [True, False])
@pytest.mark.parametrize(("count", "chosen"), SIZES)
def test_the_likeliest_are_taken_and_of_equals_the_first(
    count: int, chosen: int, normalises: bool, workbench: Workbench
) -> None:
    some = random(3, count, seed=count) * 3
    few = torch.randint(0, 4, (3, count), generator=torch.Generator().manual_seed(1)).float()
    same = torch.full((1, count), -2.5)
    check(workbench, torch.cat([some, few, same]), chosen, normalises=normalises)


@pytest.mark.parametrize(("count", "chosen"), [(7, 3), (128, 8), (300, 10)])
@pytest.mark.parametrize("where", ["first", "middle", "last"])
@pytest.mark.parametrize("what", [NAN, -NAN, INFINITY, -INFINITY])
def test_a_logit_that_is_no_finite_number_is_told(
    what: float, where: str, count: int, chosen: int, workbench: Workbench
) -> None:
    logits = random(1, count, seed=1)
    logits[0, {"first": 0, "middle": count // 2, "last": count - 1}[where]] = what
    check(workbench, logits, chosen, normalises=True)
    check(workbench, torch.full((1, count), what), chosen, normalises=False)


def test_probabilities_of_zero_are_equal(workbench: Workbench) -> None:
    experts, weights = route(workbench, torch.tensor([[-200.0, -150, 7, -INFINITY]]), 3, normalises=True)
    assert experts.tolist() == [[0, 1, 2]]
    assert weights.tolist() == [[0, 0, 1]]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_logits_choose_as_the_definition_says(data: st.DataObject, workbench: Workbench) -> None:
    count = data.draw(st.integers(1, 300))
    chosen = data.draw(st.integers(1, min(64, count)))
    halves = st.integers(-12, 12).map(lambda each: each / 2)
    level = st.one_of(halves, st.sampled_from([-INFINITY, 0.0, -0.0, 40.0, -40.0]))
    logits = data.draw(st.lists(level, min_size=count, max_size=count))
    if data.draw(st.integers(0, 9)) == 0:
        logits[data.draw(st.integers(0, count - 1))] = data.draw(st.sampled_from([NAN, INFINITY]))
    check(workbench, torch.tensor([logits]), chosen, normalises=data.draw(st.booleans()))


def by_three(
    workbench: Workbench, x: torch.Tensor, norm: torch.Tensor, matrix: Matrix, chosen: int
) -> list[torch.Tensor]:
    """Rows as numbers and codes, experts and weights."""
    rows, width = x.shape
    part = workbench.linear(matrix).parts[0]
    out = workbench.activation_room(rows, width, "int8x2")
    logits = workbench.room(rows, part.rows)
    workbench.kernels.launch(
        "rms_norm",
        Norm(x=workbench.put(x), weight=workbench.put(norm), out=out, eps=1e-6),
        grid=(rows, 1, 1),
    )
    product = Product(
        weights=part.weights, x=out, y=logits, stride=part.rows, outputs=part.rows, rows=rows, rows_each=1
    )
    workbench.kernels.launch(f"product_{part.kind}_many", product, grid=(-(-part.rows // 8), 1, 1))
    choice = route(workbench, workbench.get(logits, rows, part.rows), chosen, normalises=True)
    codes = workbench.codes_of(out, rows)
    return [workbench.get(out.values, rows, width), *codes.values(), *choice]


def by_one(
    workbench: Workbench, x: torch.Tensor, norm: torch.Tensor, matrix: Matrix, chosen: int, *, each: int
) -> list[torch.Tensor]:
    """As `by_three`."""
    rows, width = x.shape
    part = workbench.linear(matrix).parts[0]
    out = workbench.activation_room(rows, width, "int8x2")
    experts, weights = workbench.room(rows, chosen, dtype=torch.int32), workbench.room(rows, chosen)
    arrivals = workbench.put(torch.zeros(rows, dtype=torch.int32))
    arguments = Router(
        x=workbench.put(x),
        norm=workbench.put(norm),
        out=out,
        weights=part.weights,
        route=Route(
            logits=workbench.room(rows, part.rows),
            experts=experts,
            weights=weights,
            count=part.rows,
            chosen=chosen,
            normalises=True,
        ),
        arrivals=arrivals,
        eps=1e-6,
        each=each,
    )
    grid, shared = (-(-part.rows // each) + 1, rows, 1), router_bytes(part, each)
    workbench.kernels.launch(f"router_{part.kind}", arguments, grid=grid, shared_bytes=shared)
    assert workbench.get(arrivals, rows, dtype=torch.int32).tolist() == [0] * rows
    choice = workbench.get(experts, rows, chosen, dtype=torch.int32), workbench.get(weights, rows, chosen)
    return [workbench.get(out.values, rows, width), *workbench.codes_of(out, rows).values(), *choice]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("count", "width", "chosen"), [(1, 32, 1), (13, 96, 4), (130, 2080, 8), (9, 4128, 9)]
)
def test_one_launch_has_the_bits_of_three(
    count: int, width: int, chosen: int, dtype: torch.dtype, workbench: Workbench
) -> None:
    weight = (random(count, width, seed=2) / 8).to(dtype)
    matrix = Dense(weight) if dtype == torch.float32 else Widened(weight)
    x, norm = random(3, width, seed=3), random(width, seed=4)
    expected = by_three(workbench, x, norm, matrix, chosen)
    for each in (1, 3, logits_a_block(workbench.linear(matrix).parts[0])):
        found = by_one(workbench, x, norm, matrix, chosen, each=each)
        assert len(found) == len(expected) == 7
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whichever_block_comes_last_chooses_the_same(
    seed: int, make_card: type[EmulatedCard], card_compiler: EmulatedCompiler
) -> None:
    matrix, x, norm = Dense(random(140, 64, seed=2)), random(2, 64, seed=3), random(64, seed=4)
    found = []
    for order in (0, seed):
        workbench = Workbench(make_card(order_seed=order), card_compiler)
        found.append(by_one(workbench, x, norm, matrix, 8, each=8))
        workbench.memory.free_all()
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_blocks_make_as_many_logits_as_fit_and_never_of_codes(workbench: Workbench) -> None:
    def fitting(width: int, dtype: torch.dtype) -> int:
        weight = torch.zeros(2, width, dtype=dtype)
        matrix = Dense(weight) if dtype == torch.float32 else Widened(weight)
        return logits_a_block(workbench.linear(matrix).parts[0])

    assert fitting(2048, torch.bfloat16) == 8
    assert fitting(4096, torch.bfloat16) == 8
    assert fitting(4096, torch.float32) == 4
    assert fitting(8192, torch.float32) == 2
    assert fitting(60, torch.float16) == 0
    assert logits_a_block(workbench.linear(StripMatrix(strip_of(4, 64, bits=8))).parts[0]) == 0
