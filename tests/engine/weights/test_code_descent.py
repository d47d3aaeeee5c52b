"""Codes chosen together cost less than codes chosen one by one, and are codes still."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cpu import code_kernel
from engine.weights import code_descent
from engine.weights.calibrated_strip import calibrated_strip
from engine.weights.code_descent import Improve, descend, improve_plainly
from engine.weights.input_statistics import InputObserver, InputStatistics, block_widths
from engine.weights.quantise import quantise
from engine.weights.strips import Strip, codes_of, dequantise, scales_fit

on_both_paths = pytest.mark.parametrize(
    "improve", [improve_plainly, code_kernel.improve], ids=["plain", "compiled"]
)


def inputs(num_inputs: int, *, num_tokens: int = 700, seed: int = 0) -> torch.Tensor:
    """Inputs as hidden states are: around a mean, along few directions, some much larger than others."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    along = normal(num_tokens, 8) @ normal(8, num_inputs)
    return (normal(num_inputs) + along + normal(num_tokens, num_inputs)) * normal(num_inputs).exp()


def statistics_of(x: torch.Tensor, *, widest_block: int = 1024) -> InputStatistics:
    observer = InputObserver(x.shape[1], widest_block=widest_block)
    for part in x.split(100):
        observer.add(part)
    found = observer.statistics()
    assert found is not None
    return found


def cost(weight: torch.Tensor, strip: Strip, statistics: InputStatistics) -> torch.Tensor:
    """Of each row, as the module's first lines define it, with H as it is raised there; float64."""
    assert statistics.moments is not None
    errors = (weight - dequantise(strip)).double()
    total = torch.zeros(len(weight), dtype=torch.float64)
    first = 0
    for moments in statistics.moments:
        part = errors[:, first : first + len(moments)]
        first += len(moments)
        raised = moments.double()
        damping = code_descent._DAMPING + code_descent._DAMPING_TOKENS / statistics.num_tokens
        raised += damping * raised.diagonal().mean() * torch.eye(len(raised), dtype=torch.float64)
        total += ((part @ raised) * part).sum(1)
    return total


def output_error(weight: torch.Tensor, strip: Strip, x: torch.Tensor) -> float:
    return float((x @ (weight - dequantise(strip)).t()).square().mean())


@on_both_paths
@pytest.mark.parametrize("group", [32, 256])
def test_the_output_of_inputs_never_seen_is_nearer_to_what_it_should_be(group: int, improve: Improve) -> None:
    weight = torch.randn(96, 512, generator=torch.Generator().manual_seed(1))
    x = inputs(512, num_tokens=4000)
    seen, unseen = x[:2000], x[2000:]
    statistics = statistics_of(seen)
    nearest = quantise(weight, bits=4, group=group, importance=statistics.mean_squares)  # type: ignore[arg-type]
    chosen = descend(weight, nearest, statistics, sweeps=2, improve=improve)
    assert output_error(weight, chosen, unseen) < 0.6 * output_error(weight, nearest, unseen)


@on_both_paths
@given(
    rows=st.integers(1, 40),
    groups=st.integers(1, 6),
    scale=st.sampled_from([1e-6, 0.02, 1.0, 3e4]),
    sweeps=st.integers(1, 3),
    seed=st.integers(0, 100),
)
@settings(max_examples=60, deadline=None)
def test_no_row_costs_more_than_before(
    improve: Improve, rows: int, groups: int, scale: float, sweeps: int, seed: int
) -> None:
    weight = torch.randn(rows, 32 * groups, generator=torch.Generator().manual_seed(seed)) * scale
    statistics = statistics_of(inputs(32 * groups, seed=seed))
    before = quantise(weight, bits=4, importance=statistics.mean_squares)
    after = descend(weight, before, statistics, sweeps=sweeps, improve=improve)
    costs = cost(weight, before, statistics)
    assert bool((cost(weight, after, statistics) <= costs * (1 + 1e-3)).all())
    assert (after.bits, after.group, after.codes.shape) == (before.bits, before.group, before.codes.shape)
    codes = codes_of(after)
    assert int(codes.min()) >= -8
    assert int(codes.max()) <= 7
    assert bool(after.scales.isfinite().all())
    assert scales_fit(after, torch.float16) or not scales_fit(before, torch.float16)
    assert bool((after.scales.sign() == before.scales.sign()).all())


@on_both_paths
def test_a_second_look_finds_what_the_first_one_missed(improve: Improve) -> None:
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(3))
    statistics = statistics_of(inputs(256))
    strip = quantise(weight, bits=4, importance=statistics.mean_squares)
    costs = [float(cost(weight, strip, statistics).sum())]
    for sweeps in (1, 2, 4):
        better = descend(weight, strip, statistics, sweeps=sweeps, improve=improve)
        costs.append(float(cost(weight, better, statistics).sum()))
    assert costs == sorted(costs, reverse=True)


@on_both_paths
def test_rows_do_not_depend_on_how_many_are_worked_on_at_a_time(
    improve: Improve, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.randn(70, 320, generator=torch.Generator().manual_seed(4))
    statistics = statistics_of(inputs(320), widest_block=256)
    strip = quantise(weight, bits=4, importance=statistics.mean_squares)
    whole = descend(weight, strip, statistics, sweeps=2, improve=improve)
    monkeypatch.setattr(code_descent, "_ROWS", 16)
    parts = descend(weight, strip, statistics, sweeps=2, improve=improve)
    # Products of other shapes may add in another order, so a code on the edge may fall to either side.
    assert float((codes_of(whole) != codes_of(parts)).float().mean()) < 0.01
    torch.testing.assert_close(
        cost(weight, parts, statistics), cost(weight, whole, statistics), rtol=1e-2, atol=0
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@on_both_paths
def test_the_same_call_gives_the_same_strip_and_leaves_all_else_alone(
    improve: Improve, dtype: torch.dtype
) -> None:
    weight = torch.randn(50, 288, generator=torch.Generator().manual_seed(5)).to(dtype)
    before = weight.clone()
    statistics = statistics_of(inputs(288))
    strip = quantise(weight, bits=4, importance=statistics.mean_squares)
    codes, scales = strip.codes.clone(), strip.scales.clone()
    first, second = (descend(weight, strip, statistics, sweeps=2, improve=improve) for _ in range(2))
    assert torch.equal(first.codes, second.codes)
    assert torch.equal(first.scales, second.scales)
    assert torch.equal(strip.codes, codes)
    assert torch.equal(strip.scales, scales)
    assert torch.equal(weight, before)


@on_both_paths
def test_zeros_stay_zeros_and_inputs_that_are_always_zero_do_no_harm(improve: Improve) -> None:
    weight = torch.randn(8, 128, generator=torch.Generator().manual_seed(6))
    weight[2] = 0
    weight[:, 32:64] = 0
    x = inputs(128)
    x[:, 64:96] = 0
    strip = descend(weight, quantise(weight, bits=4), statistics_of(x), sweeps=2, improve=improve)
    values = dequantise(strip)
    assert bool((values[2] == 0).all())
    assert bool(values.isfinite().all())
    nothing = statistics_of(torch.zeros(9, 128))
    everywhere = descend(weight, quantise(weight, bits=4), nothing, sweeps=2, improve=improve)
    assert bool(dequantise(everywhere).isfinite().all())


def test_all_of_the_work_is_told_and_can_be_ended_at_any_time() -> None:
    weight = torch.randn(40, 576, generator=torch.Generator().manual_seed(7))
    statistics = statistics_of(inputs(576), widest_block=256)
    told: list[float] = []
    calibrated_strip(weight, statistics, bits=4, group=32, sweeps=2, on_rows=told.append)
    assert sum(told) == pytest.approx(len(weight))
    assert min(told) >= 0

    class GivenUpError(Exception):
        pass

    def give_up(_share: float) -> None:
        raise GivenUpError

    with pytest.raises(GivenUpError):
        descend(weight, quantise(weight, bits=4), statistics, sweeps=1, on_share=give_up)


@given(num_inputs=st.integers(1, 200).map(lambda n: 32 * n), widest=st.sampled_from([256, 512, 1024]))
def test_blocks_cover_all_inputs_in_whole_groups(num_inputs: int, widest: int) -> None:
    widths = block_widths(num_inputs, widest)
    assert sum(widths) == num_inputs
    assert all(0 < width <= widest for width in widths)
    assert all(width % 256 == 0 for width in widths[:-1])
    assert len(widths) == -(-num_inputs // widest)


@pytest.mark.parametrize("widest", [256, 512])
def test_statistics_are_those_of_all_tokens(widest: int) -> None:
    x = inputs(832, num_tokens=257)
    found = statistics_of(x, widest_block=widest)
    torch.testing.assert_close(found.mean_squares, x.double().square().mean(0))
    assert found.num_tokens == 257
    assert found.moments is not None
    for moments, part in zip(found.moments, x.split(block_widths(832, widest), 1), strict=True):
        wanted = part.double().t() @ part.double() / 257
        torch.testing.assert_close(moments.double(), wanted, rtol=1e-4, atol=1e-4)
        assert torch.equal(moments, moments.t())


def test_what_is_no_number_is_not_used() -> None:
    assert InputObserver(32, widest_block=256).statistics() is None
    observer = InputObserver(32, widest_block=256)
    observer.add(torch.full((1, 32), torch.nan))
    assert observer.statistics() is None
    large = InputObserver(32, widest_block=256)
    large.add(torch.full((1, 32), 1e30))  # its square is no float32
    found = large.statistics()
    assert found is not None
    assert found.moments is None
