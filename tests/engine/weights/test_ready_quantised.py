"""Strips of other programs' formats stand for the numbers that those formats define, bit for bit."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ModelFileError
from engine.weights.quantise import quantise
from engine.weights.ready_quantised import awq_strip, gptq_strip, int8_strip, packed_strip
from engine.weights.ready_values import awq_values, fp8_values, gptq_values, int8_values, packed_values
from engine.weights.strips import Strip, dequantise, scales_fit

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the output that lies in each place of a word
QUICK = settings(max_examples=60, deadline=None)


@dataclass(frozen=True)
class Quantised:
    """Unsigned codes (N, K), zero points (N, groups) and scales (N, groups) of any matrix."""

    codes: torch.Tensor
    zeros: torch.Tensor
    scales: torch.Tensor

    @property
    def values(self) -> torch.Tensor:
        """float32 (N, K), worked out in double precision, where no step rounds."""
        repeats = self.codes.shape[1] // self.scales.shape[1]
        zeros = self.zeros.double().repeat_interleave(repeats, 1)
        scales = self.scales.double().repeat_interleave(repeats, 1)
        exact = (self.codes.double() - zeros) * scales
        assert torch.equal(exact.float().double(), exact)
        return exact.float()


def quantised(
    rows: int,
    columns: int,
    group: int,
    *,
    bits: int = 4,
    symmetric: bool = False,
    dtype: torch.dtype = torch.float16,
    seed: int = 0,
) -> Quantised:
    generator = torch.Generator().manual_seed(seed)
    groups = columns // group
    top = 2**bits
    codes = torch.randint(0, top, (rows, columns), generator=generator)
    zeros = torch.randint(0, top, (rows, groups), generator=generator)
    if symmetric:
        zeros.fill_(top // 2)
    scales = (torch.randn(rows, groups, generator=generator) / 50).to(dtype)
    return Quantised(codes, zeros, scales)


@st.composite
def matrices(draw: st.DrawFn, bits: int = 4) -> Quantised:
    group = draw(st.sampled_from([32, 64, 128]))
    return quantised(
        8 * draw(st.integers(1, 3)),
        group * draw(st.integers(1, 3)),
        draw(st.sampled_from([group, 32])),
        bits=bits,
        symmetric=draw(st.booleans()),
        dtype=draw(st.sampled_from([torch.float16, torch.bfloat16])),
        seed=draw(st.integers(0, 999)),
    )


def words(values: torch.Tensor, bits: int = 4, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """(A, B) -> int32 (A, B * bits / 32), written out number by number."""
    per_word = 32 // bits
    places = order or tuple(range(per_word))
    rows = []
    for row in values.tolist():
        row += [0] * (-len(row) % per_word)
        packed = []
        for start in range(0, len(row), per_word):
            word = sum(row[start + places[i]] << (bits * i) for i in range(per_word))
            packed.append(word - 2**32 if word >= 2**31 else word)
        rows.append(packed)
    return torch.tensor(rows, dtype=torch.int32)


def gptq_tensors(
    made: Quantised, *, less: int = 1, bits: int = 4
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    zeros = (made.zeros.t() - less) % 2**bits
    return words(made.codes, bits).t().contiguous(), words(zeros, bits), made.scales.t().contiguous()


def held(strip: Strip | None) -> torch.Tensor:
    """What the strip stands for; there has to be one."""
    assert strip is not None
    return dequantise(strip)


def awq_tensors(made: Quantised) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    codes, zeros = words(made.codes.t(), order=AWQ_ORDER), words(made.zeros.t(), order=AWQ_ORDER)
    return codes, zeros, made.scales.t().contiguous()


@QUICK
@given(made=matrices())
def test_gptq_loses_nothing(made: Quantised) -> None:
    columns = made.codes.shape[1]
    order = torch.arange(columns, dtype=torch.int32) // (columns // made.scales.shape[1])
    strip = gptq_strip(*gptq_tensors(made), order)
    assert strip is not None
    assert strip.bits == 4
    assert torch.equal(dequantise(strip), made.values)
    assert torch.equal(held(gptq_strip(*gptq_tensors(made))), made.values)
    assert torch.equal(gptq_values(*gptq_tensors(made)), made.values)
    second = gptq_tensors(made, less=0)
    assert torch.equal(held(gptq_strip(*second, zeros_less_one=False)), made.values)
    assert torch.equal(gptq_values(*second, order, zeros_less_one=False), made.values)


@QUICK
@given(made=matrices(bits=8))
def test_gptq_of_8_bits_loses_nothing(made: Quantised) -> None:
    made.codes.clamp_(min=1)  # with 0 and 255 in one group no strip can hold it
    strip = gptq_strip(*gptq_tensors(made, bits=8), bits=8)
    assert strip is not None
    assert strip.bits == 8
    assert torch.equal(dequantise(strip), made.values)
    assert torch.equal(gptq_values(*gptq_tensors(made, bits=8), bits=8), made.values)


@QUICK
@given(made=matrices(), seed=st.integers(0, 999))
def test_inputs_in_an_order_of_their_own_get_the_scale_of_their_group(made: Quantised, seed: int) -> None:
    columns, groups = made.codes.shape[1], made.scales.shape[1]
    shuffled = torch.randperm(columns, generator=torch.Generator().manual_seed(seed))
    order = (torch.arange(columns) // (columns // groups))[shuffled]
    moved = Quantised(made.codes[:, shuffled], made.zeros, made.scales)
    expected = made.values[:, shuffled]
    assert torch.equal(gptq_values(*gptq_tensors(moved), order.int()), expected)
    packed_zeros = words(made.zeros.t()).t().contiguous()  # along the outputs
    packed = packed_values(
        words(moved.codes), made.scales, packed_zeros, order.int(), bits=4, columns=columns
    )
    assert torch.equal(packed, expected)


@QUICK
@given(made=matrices())
def test_awq_loses_nothing(made: Quantised) -> None:
    strip = awq_strip(*awq_tensors(made))
    assert strip is not None
    assert strip.bits == 4
    assert torch.equal(dequantise(strip), made.values)
    assert torch.equal(awq_values(*awq_tensors(made)), made.values)


@QUICK
@given(made=matrices(), rows=st.integers(1, 24))
def test_packed_int4_loses_nothing(made: Quantised, rows: int) -> None:
    """Any number of rows: their zero points are packed along the rows."""
    made = Quantised(made.codes[:rows], made.zeros[:rows], made.scales[:rows])
    packed, zeros = words(made.codes), words(made.zeros.t()).t().contiguous()
    strip = packed_strip(packed, made.scales, zeros, bits=4, columns=made.codes.shape[1])
    assert strip is not None
    assert strip.bits == 4
    assert torch.equal(dequantise(strip), made.values)
    values = packed_values(packed, made.scales, zeros, bits=4, columns=made.codes.shape[1])
    assert torch.equal(values, made.values)


@QUICK
@given(made=matrices(bits=8), seed=st.integers(0, 99), lowest=st.booleans())
def test_packed_int8_loses_nothing(made: Quantised, seed: int, lowest: bool) -> None:
    """With one end of the range in each group, and never both."""
    generator = torch.Generator().manual_seed(seed)
    groups = made.codes.view(len(made.codes), -1, 32)
    ends = torch.rand(*groups.shape[:2], 1, generator=generator) < (0.5 if lowest else 2)
    codes = torch.where(ends, groups.clamp(min=1), groups.clamp(max=254)).view(made.codes.shape)
    made = Quantised(codes, made.zeros, made.scales)
    packed, zeros = words(codes, 8), words(made.zeros.t(), 8).t().contiguous()
    strip = packed_strip(packed, made.scales, zeros, bits=8, columns=codes.shape[1])
    assert strip is not None
    assert strip.bits == 8
    assert int(strip.codes.min()) >= -127
    assert torch.equal(dequantise(strip), made.values)


def test_int8_groups_that_use_the_whole_range_are_left_to_the_quantiser() -> None:
    made = quantised(2, 64, 32, bits=8, symmetric=True)
    made.codes[1, 40], made.codes[1, 50] = 0, 255
    packed = words(made.codes, 8)
    assert packed_strip(packed, made.scales, bits=8, columns=64) is None
    assert torch.equal(packed_values(packed, made.scales, bits=8, columns=64), made.values)


@pytest.mark.parametrize("bits", [4, 8])
def test_symmetric_forms_become_strips_without_offsets(bits: int) -> None:
    made = quantised(8, 128, 64, bits=bits, symmetric=True, seed=3)
    made.codes.clamp_(min=1)
    strip = packed_strip(words(made.codes, bits), made.scales, bits=bits, columns=128)  # type: ignore[arg-type]
    assert strip is not None
    assert strip.offsets is None
    assert scales_fit(strip, torch.float16)
    assert torch.equal(dequantise(strip), made.values)
    if bits == 4:
        for other in (
            gptq_strip(*gptq_tensors(made)),
            awq_strip(*awq_tensors(made)),
            awq_strip(words(made.codes.t(), order=AWQ_ORDER), None, made.scales.t()),
        ):
            assert other.offsets is None
            assert torch.equal(other.codes, strip.codes)
            assert torch.equal(other.scales, strip.scales)


@pytest.mark.parametrize("shape", [(5, 1), (1,), ()])
def test_one_scale_for_a_row_or_for_all_is_spread(shape: tuple[int, ...]) -> None:
    made = quantised(5, 96, 96, symmetric=True)
    scales = made.scales if shape == (5, 1) else made.scales[0].reshape(shape)
    expected = Quantised(made.codes, made.zeros, scales.reshape(-1, 1).expand(5, 1)).values
    strip = packed_strip(words(made.codes), scales, bits=4, columns=96)
    assert strip is not None
    assert torch.equal(dequantise(strip), expected)


def test_float32_scales_differ_by_rounding_only() -> None:
    made = quantised(8, 64, 32)
    scales = torch.rand(8, 2) + 0.5
    repeated = scales.repeat_interleave(32, 1).double()
    exact = (made.codes.double() - made.zeros.double().repeat_interleave(32, 1)) * repeated
    strip = awq_strip(*awq_tensors(made)[:2], scales.t())
    # Three roundings of numbers that are at most 16 scales large.
    assert ((dequantise(strip).double() - exact).abs() <= 3 * 2.0**-24 * 16 * repeated).all()


def test_inputs_in_an_order_of_their_own_are_no_strip() -> None:
    tensors = gptq_tensors(quantised(8, 64, 32))
    order = torch.arange(64, dtype=torch.int32) // 32
    assert gptq_strip(*tensors, order.flip(0)) is None
    packed = words(quantised(8, 64, 32).codes)
    assert packed_strip(packed, torch.ones(8, 2), None, order.flip(0), bits=4, columns=64) is None
    unset = torch.full((64,), -1, dtype=torch.int32)
    assert packed_strip(packed, torch.ones(8, 2), None, unset, bits=4, columns=64) is not None


@pytest.mark.parametrize("group", [16, 24, 48])
def test_groups_that_strips_can_not_follow_are_dequantised(group: int) -> None:
    made = quantised(8, 2 * group, group)
    assert gptq_strip(*gptq_tensors(made)) is None
    assert awq_strip(*awq_tensors(made)) is None
    assert packed_strip(words(made.codes), made.scales, bits=4, columns=2 * group) is None
    assert torch.equal(gptq_values(*gptq_tensors(made)), made.values)
    assert torch.equal(awq_values(*awq_tensors(made)), made.values)


@QUICK
@given(made=matrices(bits=8))
def test_int8_loses_nothing(made: Quantised) -> None:
    made.codes.clamp_(min=1)
    weight, zeros = (made.codes - 128).to(torch.int8), (made.zeros - 128).to(torch.int8)
    strip = int8_strip(weight, made.scales, zeros)
    assert strip is not None
    assert torch.equal(dequantise(strip), made.values)
    assert torch.equal(int8_values(weight, made.scales, zeros), made.values)


@pytest.mark.parametrize("shape", [(), (1,), (8,), (8, 1)])
def test_int8_with_one_scale_a_row_or_for_all(shape: tuple[int, ...]) -> None:
    weight = torch.randint(-127, 128, (8, 64), dtype=torch.int8)
    scale = torch.rand(shape).bfloat16()
    expected = weight.float() * scale.float().reshape(-1, 1)
    assert torch.equal(held(int8_strip(weight, scale)), expected)
    assert torch.equal(int8_values(weight, scale), expected)


def test_zero_points_of_int8_are_taken_as_those_of_signed_codes() -> None:
    made = quantised(8, 64, 32)
    zeros = (made.zeros - 8).to(torch.int8)
    assert torch.equal(
        held(packed_strip(words(made.codes), made.scales, zeros, bits=4, columns=64)), made.values
    )


def test_tensors_that_contradict_each_other_are_refused() -> None:
    made = quantised(8, 64, 32)
    qweight, qzeros, scales = gptq_tensors(made)
    with pytest.raises(ModelFileError, match="Its scales have the shape"):
        gptq_strip(qweight, qzeros, scales[:, :7])
    with pytest.raises(ModelFileError, match="Its scales have the shape"):
        gptq_strip(qweight, qzeros, scales[0])
    with pytest.raises(ModelFileError, match="Its zero points have the shape"):
        gptq_strip(qweight, qzeros[:1], scales)
    with pytest.raises(ModelFileError, match="qweight should be a matrix of int32, not int64"):
        gptq_strip(qweight.long(), qzeros, scales)
    with pytest.raises(ModelFileError, match="qzeros should be a matrix of int32"):
        awq_strip(awq_tensors(made)[0], qzeros[0], scales)
    for convert in (packed_strip, packed_values):
        with pytest.raises(ModelFileError, match="Its zero points have the shape"):
            convert(words(made.codes), made.scales, qzeros[:1].t().contiguous(), bits=4, columns=64)
    for columns in (65, 56):
        with pytest.raises(ModelFileError, match="Its codes have the shape"):
            packed_strip(words(made.codes), made.scales, bits=4, columns=columns)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_scales_that_are_no_numbers_are_refused(number: float) -> None:
    made = quantised(8, 64, 32)
    made.scales[3, 1] = number
    for convert in (
        lambda: gptq_strip(*gptq_tensors(made)),
        lambda: awq_strip(*awq_tensors(made)),
        lambda: packed_strip(words(made.codes), made.scales, bits=4, columns=64),
        lambda: packed_values(words(made.codes), made.scales, bits=4, columns=64),
        lambda: fp8_values(torch.zeros(8, 2).to(torch.float8_e4m3fn), made.scales[:, 1]),
    ):
        with pytest.raises(ModelFileError, match="not all finite"):
            convert()


# --- 8-bit floats


def float8(rows: int, columns: int, dtype: torch.dtype = torch.float8_e4m3fn) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(1)).mul(20).to(dtype)


@pytest.mark.parametrize("block", [(128, 128), (64, 32), (1, 128)])
@pytest.mark.parametrize(("rows", "columns"), [(128, 128), (130, 257), (1, 32), (300, 96)])
def test_fp8_blocks_are_their_numbers_times_their_scale(
    rows: int, columns: int, block: tuple[int, int]
) -> None:
    weight = float8(rows, columns)
    scale = torch.rand(math.ceil(rows / block[0]), math.ceil(columns / block[1])) + 0.5
    row_blocks, column_blocks = torch.arange(rows) // block[0], torch.arange(columns) // block[1]
    expected = weight.float() * scale[row_blocks][:, column_blocks]
    assert torch.equal(fp8_values(weight, scale, block=block), expected)


@pytest.mark.parametrize("block", [(2**24, 2**24), (1, 2**40), (2**40, 1)])
def test_fp8_blocks_larger_than_the_matrix_take_no_more_memory(block: tuple[int, int]) -> None:
    """Their sizes come from a config, and say nothing of how large anything is."""
    grid = (-(-3 // block[0]), -(-5 // block[1]))
    weight, scale = float8(3, 5), torch.rand(grid) + 0.5
    assert torch.equal(fp8_values(weight, scale, block=block), weight.float() * scale)


@pytest.mark.parametrize("shape", [(), (1,), (6,), (6, 1)])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_with_one_scale_a_row_or_for_all(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    weight = float8(6, 32, dtype)
    scale = (torch.rand(shape) + 0.5).bfloat16()
    assert torch.equal(fp8_values(weight, scale), weight.float() * scale.float().reshape(-1, 1))


def test_fp8_becomes_q8_within_half_a_step() -> None:
    values = fp8_values(float8(8, 256), torch.rand(1, 2) + 0.5, block=(128, 128))
    strip = quantise(values, bits=8, group=32)
    steps = strip.scales.abs().repeat_interleave(32, 1)
    # Half a step, or more where the search found that a largest weight beyond the codes errs less in all.
    assert ((dequantise(strip) - values).abs() <= steps).all()
    errors = (dequantise(strip) - values).pow(2).mean().sqrt() / values.pow(2).mean().sqrt()
    assert errors < 0.01


def test_fp8_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(ModelFileError, match="Its scales have the shape"):
        fp8_values(float8(130, 128), torch.ones(1, 1), block=(128, 128))
    with pytest.raises(ModelFileError, match="Its scales have the shape"):
        fp8_values(float8(130, 128), torch.ones(2, 1))
    with pytest.raises(ModelFileError, match="8-bit floats, not float16"):
        fp8_values(torch.zeros(8, 8).half(), torch.ones(1))
    weight = float8(8, 32)
    weight.view(torch.uint8)[2, 3] = 0x7F  # not a number, in this type
    with pytest.raises(ModelFileError, match="not finite"):
        quantise(fp8_values(weight, torch.ones(1)), bits=8)
