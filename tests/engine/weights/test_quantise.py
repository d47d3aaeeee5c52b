"""Strips lose as little as their size allows, and always the same."""

from __future__ import annotations

import hashlib
import threading
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import engine.weights.quantise as module
from engine.errors import ModelFileError
from engine.weights.quantise import CHUNK_ELEMENTS, LARGEST_WEIGHT, quantise
from engine.weights.strips import (
    GROUPS,
    LARGEST_CODE,
    SMALLEST_CODE,
    Bits,
    Group,
    Strip,
    codes_of,
    concatenate,
    dequantise,
    pack,
    scales_fit,
)

BITS = st.sampled_from([4, 8])
DISTRIBUTIONS = ("normal", "laplace", "student_t", "outliers", "uniform", "sparse", "few_values", "shifted")
SCALE_DTYPES = ("float16", "bfloat16", "float32")
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def sample(distribution: str, rows: int, columns: int, seed: int) -> torch.Tensor:
    """float32 (rows, columns), typical magnitude 1."""
    rng = np.random.default_rng(seed)
    shape = (rows, columns)
    match distribution:
        case "normal":
            values = rng.standard_normal(shape)
        case "laplace":
            values = rng.laplace(size=shape)
        case "student_t":
            values = rng.standard_t(2, shape)
        case "outliers":
            values = rng.standard_normal(shape) * np.where(rng.random(columns) < 0.05, 300, 1)
        case "uniform":
            values = rng.uniform(-1, 1, shape)
        case "sparse":
            values = rng.standard_normal(shape) * (rng.random(shape) < 0.03)
        case "few_values":
            values = rng.integers(-2, 3, shape).astype(float)
        case _:
            values = rng.standard_normal(shape) + 5
    return torch.from_numpy(values.astype(np.float32))


def importances(kind: str, columns: int, seed: int) -> torch.Tensor | None:
    """None, like activations (a few inputs count for most), or mostly zeros."""
    rng = np.random.default_rng(seed + 1)
    if kind == "none":
        return None
    values = np.exp(2 * rng.standard_normal(columns))
    return torch.from_numpy(values * (rng.random(columns) < 0.1) if kind == "sparse" else values)


def plain_strips(weight: torch.Tensor, bits: Bits, group: Group, dtype: torch.dtype) -> list[Strip]:
    """Plain rounding: the largest weight of a group at the largest code; for 4 bits also at -8. Of two that
    are as large, the positive one.
    """
    grouped = weight.view(len(weight), -1, group)
    high, low = grouped.amax(2, keepdim=True), grouped.amin(2, keepdim=True)
    largest = torch.where(high >= -low, high, low)
    strips = []
    for target in (7, -8) if bits == 4 else (127,):
        scales = (largest if bits == 4 else largest.abs()) / target
        narrow = scales.to(dtype).float()
        if dtype == torch.float16:
            narrow = torch.where(narrow == 0, 2.0**-24, narrow)
        codes = (grouped / narrow).round().clamp(SMALLEST_CODE[bits], LARGEST_CODE[bits])
        codes = codes.nan_to_num().to(torch.int8).view_as(weight)
        narrow = narrow.squeeze(2).contiguous()
        strips.append(Strip(bits, group, codes if bits == 8 else pack(codes), narrow))
    return strips


def errors_of(strip: Strip, weight: torch.Tensor, importance: torch.Tensor | None) -> torch.Tensor:
    """Weighted square error of each group, float64 (N, K / G)."""
    squares = (weight.double() - dequantise(strip).double()).square()
    if importance is not None:
        squares = squares * importance.double()
    return squares.view(strip.rows, -1, strip.group).sum(2)


def identical(a: Strip, b: Strip) -> bool:
    return torch.equal(a.codes, b.codes) and torch.equal(
        a.scales.view(torch.int32), b.scales.view(torch.int32)
    )


@given(
    bits=BITS,
    group=st.sampled_from(GROUPS),
    rows=st.integers(1, 5),
    groups=st.integers(1, 4),
    distribution=st.sampled_from(DISTRIBUTIONS),
    importance_kind=st.sampled_from(["none", "activations", "sparse"]),
    exponent=st.integers(-60, 60),
    scale_dtype=st.sampled_from(SCALE_DTYPES),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None, max_examples=200)
def test_no_group_is_worse_than_by_plain_rounding(
    bits: Bits,
    group: Group,
    rows: int,
    groups: int,
    distribution: str,
    importance_kind: str,
    exponent: int,
    scale_dtype: module.ScaleDtype,
    seed: int,
) -> None:
    """By the same weights and with scales of the same type. So half a step of plain rounding bounds it."""
    columns = groups * group
    weight = sample(distribution, rows, columns, seed) * 2.0**exponent
    importance = importances(importance_kind, columns, seed)
    strip = quantise(weight, bits=bits, group=group, importance=importance, scale_dtype=scale_dtype)
    dtype = getattr(torch, scale_dtype)
    if not scales_fit(strip, dtype):
        assert scale_dtype == "float16"
        dtype = torch.float32
    errors = errors_of(strip, weight, importance)
    weights = torch.ones(columns) if importance is None else importance
    total = weights.double().view(-1, group).sum(1)
    peaks = weight.view(rows, -1, group).abs().amax(2).double()
    rounding = total * (peaks * 2.0**-21).square()  # of float32, where the error is next to nothing
    for plain in plain_strips(weight, bits, group, dtype):
        assert (errors <= errors_of(plain, weight, importance) * (1 + 1e-4) + rounding).all()
    if dtype == torch.float32:
        assert (errors <= total * (peaks / LARGEST_CODE[bits] / 2).square() * (1 + 1e-4) + rounding).all()


@given(
    bits=BITS,
    group=st.sampled_from(GROUPS),
    rows=st.integers(1, 9),
    groups=st.integers(1, 4),
    distribution=st.sampled_from(DISTRIBUTIONS),
    weighted=st.booleans(),
    chunk=st.integers(1, 5000),
    threads=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None, max_examples=60)
def test_chunks_and_threads_leave_no_trace(
    bits: Bits,
    group: Group,
    rows: int,
    groups: int,
    distribution: str,
    weighted: bool,
    chunk: int,
    threads: int,
    seed: int,
) -> None:
    weight = sample(distribution, rows, groups * group, seed)
    importance = importances("activations", groups * group, seed) if weighted else None
    whole = quantise(weight, bits=bits, group=group, importance=importance)
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_ELEMENTS", chunk)
        try:
            torch.set_num_threads(threads)
            cut = quantise(weight, bits=bits, group=group, importance=importance)
        finally:
            torch.set_num_threads(before)
    assert identical(whole, cut)


@given(
    bits=BITS,
    rows=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    distribution=st.sampled_from(DISTRIBUTIONS),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None, max_examples=40)
def test_joining_strips_is_quantising_the_joined_matrix(
    bits: Bits, rows: list[int], distribution: str, seed: int
) -> None:
    parts = [sample(distribution, count, 96, seed + i) for i, count in enumerate(rows)]
    importance = importances("activations", 96, seed)
    apart = [quantise(part, bits=bits, importance=importance) for part in parts]
    assert identical(concatenate(apart), quantise(torch.cat(parts), bits=bits, importance=importance))


def test_the_same_bits_on_every_machine() -> None:
    """Made of integers, so the input is the same everywhere; the sum was taken on x86 with AVX-512."""
    numbers = torch.arange(24 * 288, dtype=torch.int64)
    fractions = (((numbers * 7919) % 10007).double() / 5003.5 - 1).view(24, 288)
    weight = fractions * fractions * fractions
    importance = ((torch.arange(288) * 31) % 97 + 1).double().square()
    digest = hashlib.sha256()
    for bits in (4, 8):
        for chosen in (None, importance):
            strip = quantise(weight, bits=bits, importance=chosen)
            digest.update(strip.codes.numpy().tobytes() + strip.scales.numpy().astype("<f4").tobytes())
    assert digest.hexdigest() == "608a6ab233da2e34f8bec738a947ab9e3e30d3825b5ab0800b0dcd7954e96252"


@pytest.mark.parametrize("scale_dtype", SCALE_DTYPES)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("bits", [4, 8])
def test_a_matrix_on_the_grid_comes_back_exactly(
    bits: Bits, group: Group, scale_dtype: module.ScaleDtype
) -> None:
    """Every code occurs, also -8, with scales of either sign that all three types hold."""
    generator = torch.Generator().manual_seed(4)
    codes = torch.randint(SMALLEST_CODE[bits], LARGEST_CODE[bits] + 1, (16, 2, group), generator=generator)
    codes[:, :, 0] = SMALLEST_CODE[bits]
    scales = torch.tensor([1.0, -0.75, 0.01171875, -1.5]).repeat(8).view(16, 2, 1)
    weight = (codes * scales).view(16, 2 * group)
    assert torch.equal(dequantise(quantise(weight, bits=bits, group=group, scale_dtype=scale_dtype)), weight)


@pytest.mark.parametrize(
    ("bits", "group", "weighted", "share"),
    [
        (4, 32, False, 0.72),
        (4, 32, True, 0.64),
        (4, 256, False, 0.70),
        (4, 256, True, 0.69),
        (8, 32, False, 0.83),
        (8, 32, True, 0.70),
        (8, 256, False, 0.96),
        (8, 256, True, 0.92),
    ],
)
def test_the_search_pays(bits: Bits, group: Group, weighted: bool, share: float) -> None:
    """Of the weighted error of plain rounding this much may stay, for normal weights."""
    weight = sample("normal", 64, 2048, seed=1)
    importance = torch.exp(torch.randn(2048, generator=torch.Generator().manual_seed(1)))
    chosen = importance if weighted else None
    strip = quantise(weight, bits=bits, group=group, importance=chosen)
    plain = plain_strips(weight, bits, group, torch.float16)[0]
    assert errors_of(strip, weight, chosen).sum() <= share * errors_of(plain, weight, chosen).sum()


def test_importance_moves_the_error_to_where_it_does_not_count() -> None:
    weight = sample("normal", 64, 256, seed=2)
    importance = torch.ones(256)
    importance[::32] = 1000
    weighted = quantise(weight, bits=4, importance=importance)
    unweighted = quantise(weight, bits=4)
    marked = importance > 1
    error = [(weight - dequantise(strip)).square()[:, marked].mean() for strip in (weighted, unweighted)]
    assert error[0] < 0.2 * error[1]


def test_only_ratios_within_a_group_matter() -> None:
    weight = sample("laplace", 8, 96, seed=3)
    importance = importances("activations", 96, seed=3)
    assert importance is not None
    strip = quantise(weight, bits=4, importance=importance)
    other = importance * torch.tensor([2.0**-140, 2.0**40, 1.0]).repeat_interleave(32)
    assert identical(strip, quantise(weight, bits=4, importance=other))
    assert identical(strip, quantise(weight, bits=4, importance=importance.double()))


@pytest.mark.parametrize("value", [0.0, 1.0, 1e30])
def test_equal_importances_are_none(value: float) -> None:
    weight = sample("laplace", 8, 96, seed=4)
    assert identical(quantise(weight, bits=4, importance=torch.full((96,), value)), quantise(weight, bits=4))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_importances_that_are_no_weights_are_refused(wrong: float) -> None:
    importance = torch.ones(64)
    importance[40] = wrong
    with pytest.raises(ValueError, match="finite and not negative"):
        quantise(torch.ones(2, 64), bits=4, importance=importance)
    with pytest.raises(ValueError, match="64 inputs need as many importances"):
        quantise(torch.ones(2, 64), bits=4, importance=torch.ones(63))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bits", [4, 8])
def test_every_type_of_weight_gives_the_strip_of_its_numbers(bits: Bits, dtype: torch.dtype) -> None:
    weight = sample("normal", 5, 96, seed=5).to(dtype)
    assert identical(quantise(weight, bits=bits), quantise(weight.float(), bits=bits))


@pytest.mark.parametrize("dtype", FLOATS)
def test_weights_need_not_be_contiguous_and_stay_as_they_are(dtype: torch.dtype) -> None:
    stored = sample("normal", 96, 12, seed=6).to(dtype)
    before = stored.clone()
    weight = stored.t()[::2]
    assert not weight.is_contiguous()
    assert identical(quantise(weight, bits=4), quantise(weight.contiguous(), bits=4))
    assert torch.equal(stored, before)


@pytest.mark.parametrize("columns", [192, 288, 2880])
@pytest.mark.parametrize("bits", [4, 8])
def test_awkward_widths(bits: Bits, columns: int) -> None:
    weight = sample("normal", 3, columns, seed=7)
    strip = quantise(weight, bits=bits)
    assert (strip.rows, strip.columns) == (3, columns)
    assert (weight - dequantise(strip)).abs().mean() < 0.3 / LARGEST_CODE[bits] * 3


@pytest.mark.parametrize(("columns", "group"), [(1, 32), (33, 32), (0, 32), (192, 256), (2880, 256)])
def test_widths_that_do_not_divide_are_refused_by_name(columns: int, group: Group) -> None:
    with pytest.raises(ValueError, match=f"Rows of {columns} inputs don't divide into groups of {group}"):
        quantise(torch.ones(4, columns), bits=4, group=group)


def test_a_row_longer_than_a_chunk_and_no_row_at_all() -> None:
    weight = sample("normal", 2, CHUNK_ELEMENTS + 32, seed=8).bfloat16()
    strip = quantise(weight, bits=8)
    assert (weight.float() - dequantise(strip)).abs().max() < 0.05
    assert quantise(weight[:0], bits=4).rows == 0


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("place", [(0, 0), (6, 31), (3, 40)])
def test_weights_that_are_no_numbers_are_refused(
    wrong: float, dtype: torch.dtype, place: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 64)
    weight = torch.ones(7, 64, dtype=dtype)
    weight[place] = wrong
    with pytest.raises(ModelFileError, match="not finite"):
        quantise(weight, bits=8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bits", [4, 8])
def test_huge_weights_are_kept_up_to_a_limit(bits: Bits, dtype: torch.dtype) -> None:
    weight = (sample("uniform", 4, 64, seed=9) * 2.0**119).to(dtype)
    weight[0, 0] = -LARGEST_WEIGHT
    values = dequantise(quantise(weight, bits=bits))
    assert values.isfinite().all()
    error = (weight.double() - values.double()).abs().max()
    assert error <= LARGEST_WEIGHT / LARGEST_CODE[bits]
    weight[0, 0] *= -1.0625
    with pytest.raises(ModelFileError, match="too large"):
        quantise(weight, bits=bits)


@pytest.mark.parametrize("zero", [0.0, -0.0, 1e-45, 1e-39, -1e-31])
@pytest.mark.parametrize("scale_dtype", SCALE_DTYPES)
@pytest.mark.parametrize("bits", [4, 8])
def test_groups_of_zeros_have_codes_0_and_scale_1(
    bits: Bits, scale_dtype: module.ScaleDtype, zero: float
) -> None:
    """Numbers that no float32 sum could notice count as zeros."""
    weight = sample("normal", 3, 96, seed=10)
    weight[1, 32:64] = zero
    weight[2] = zero
    strip = quantise(weight, bits=bits, scale_dtype=scale_dtype)
    assert not codes_of(strip)[1, 32:64].any()
    assert not codes_of(strip)[2].any()
    assert strip.scales[1, 1] == 1
    assert (strip.scales[2] == 1).all()
    alone = quantise(weight[2:], bits=bits, scale_dtype=scale_dtype)
    assert (alone.scales == 1).all()


@given(
    bits=BITS, seed=st.integers(0, 2**32), zeros=st.floats(0, 1), scale_dtype=st.sampled_from(SCALE_DTYPES)
)
@settings(deadline=None, max_examples=40)
def test_no_scale_is_0(bits: Bits, seed: int, zeros: float, scale_dtype: module.ScaleDtype) -> None:
    rng = np.random.default_rng(seed)
    magnitudes = 2.0 ** rng.uniform(-140, 8, (6, 3, 1)) * (rng.random((6, 3, 1)) >= zeros)
    weight = torch.from_numpy(rng.standard_normal((6, 3, 32)) * magnitudes).float().view(6, 96)
    strip = quantise(weight, bits=bits, scale_dtype=scale_dtype)
    assert strip.scales.isfinite().all()
    assert (strip.scales != 0).all()
    if bits == 8:
        assert (strip.scales > 0).all()


@pytest.mark.parametrize("value", [1.0, -1.0, 0.1, -3e-3, 1e-7, 1234.5])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("bits", [4, 8])
def test_constant_groups_and_single_numbers_are_kept_to_the_precision_of_the_scale(
    bits: Bits, group: Group, value: float
) -> None:
    constant = torch.full((2, group), value)
    single = torch.zeros(2, group)
    single[0, 5] = single[1, -1] = value
    for weight in (constant, single):
        values = dequantise(quantise(weight, bits=bits, group=group))
        assert torch.allclose(values, weight, rtol=2.0**-11, atol=0)
        exact = dequantise(quantise(weight, bits=bits, group=group, scale_dtype="float32"))
        assert torch.allclose(exact, weight, rtol=2.0**-23, atol=0)


@pytest.mark.parametrize("scale_dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("bits", [4, 8])
def test_scales_can_be_narrowed_without_loss(bits: Bits, scale_dtype: module.ScaleDtype) -> None:
    """Also those of rows that are tiny beside the rest, like unused tokens in a head."""
    weight = sample("student_t", 8, 96, seed=11)
    for row, exponent in enumerate((-10, -14, -18, -22, -26, -40)):
        weight[row] *= 2.0**exponent
    strip = quantise(weight, bits=bits, scale_dtype=scale_dtype)
    assert scales_fit(strip, getattr(torch, scale_dtype))
    grouped = (weight - dequantise(strip)).abs().view(8, 3, 32)
    if scale_dtype == "float16":
        peaks = weight.view(8, 3, 32).abs().amax(2, keepdim=True)
        rms = grouped.square().mean(2, keepdim=True).sqrt()
        assert (rms <= peaks / LARGEST_CODE[bits] / 2 + 2.0**-25).all()


@pytest.mark.parametrize("exponent", [-30, -20, 40])
@pytest.mark.parametrize("bits", [4, 8])
def test_matrices_beyond_the_normal_range_of_float16_get_wide_scales(bits: Bits, exponent: int) -> None:
    weight = sample("normal", 8, 96, seed=12)
    scaled = weight * 2.0**exponent
    strip = quantise(scaled, bits=bits)
    assert not scales_fit(strip, torch.float16)
    reference = quantise(weight, bits=bits, scale_dtype="float32")
    assert torch.equal(strip.codes, reference.codes)
    assert torch.equal(strip.scales, reference.scales * 2.0**exponent)


@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (7, 96), (100, 256), (300, 1024), (0, 64)])
@pytest.mark.parametrize("bits", [4, 8])
def test_rows_are_told_while_they_are_made(
    bits: Bits, rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 2048)
    threads: set[int] = set()
    told: list[int] = []

    def on_rows(count: int) -> None:
        threads.add(threading.get_ident())
        told.append(count)

    weight = sample("normal", rows, columns, seed=4)
    strip = quantise(weight, bits=bits, on_rows=on_rows)
    assert identical(strip, quantise(weight, bits=bits))
    assert sum(told) == rows
    assert len([count for count in told if count]) == -(-rows // max(1, 2048 // columns))
    assert threads <= {threading.get_ident()}


class GivenUpError(Exception):
    pass


@pytest.mark.parametrize("after", [0, 1, 3])
def test_giving_up_ends_the_work_after_a_chunk_and_leaves_no_thread(
    after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threads wait for the one that gives up, so that they can't have finished before it does."""
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 1024)
    begun: list[int] = []
    given_up = threading.Event()
    work = module._Quantiser.__call__

    def waiting(self, chunk, codes, scales):  # type: ignore[no-untyped-def]
        begun.append(len(chunk))
        if len(begun) > 20:
            given_up.wait(60)
        work(self, chunk, codes, scales)

    monkeypatch.setattr(module._Quantiser, "__call__", waiting)
    finished = 0

    def on_rows(count: int) -> None:
        nonlocal finished
        finished += count > 0
        if finished > after or (after == 0 and count == 0):
            given_up.set()
            raise GivenUpError

    weight = sample("normal", 20_000, 64, seed=5)
    with pytest.raises(GivenUpError):
        quantise(weight, bits=8, on_rows=on_rows)
    assert len(begun) < 20_000 // 16 / 2
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("quantise")]


def test_memory_beside_the_strip_is_bounded_by_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """numpy's, as Python counts it; torch holds nothing but the strip and one turned chunk a thread."""
    chunk = 2**14
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", chunk)
    weight = sample("normal", 512, 1024, seed=13).bfloat16()
    importance = torch.rand(1024)
    quantise(weight[:64], bits=4, importance=importance)  # imports and the like are not counted
    threads = torch.get_num_threads()
    tracemalloc.start()
    quantise(weight, bits=4, importance=importance)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 * chunk * threads + 2**17
