"""A strip is what its definition says, however it is cut and joined."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.weights.sizes import strip_bytes
from engine.weights.source import StoredStrip
from engine.weights.strips import (
    BLOCK,
    GROUPS,
    LARGEST_CODE,
    SMALLEST_CODE,
    Bits,
    Group,
    Strip,
    check_width,
    codes_of,
    concatenate,
    dequantise,
    fits,
    pack,
    pick_rows,
    scales_fit,
    take_rows,
    unpack,
)

BITS = st.sampled_from([4, 8])
SEEDS = st.integers(0, 2**32)


def random_strip(
    bits: Bits, group: Group, *, rows: int, groups: int, seed: int, offsets: bool = False
) -> Strip:
    """Every code that there is, scales of both signs and 0."""
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, groups * group)
    codes = torch.randint(
        SMALLEST_CODE[bits], LARGEST_CODE[bits] + 1, shape, generator=generator, dtype=torch.int8
    )
    scales = torch.randn(rows, groups, generator=generator)
    scales[torch.rand(rows, groups, generator=generator) < 0.1] = 0
    shifts = torch.randn(rows, groups, generator=generator) if offsets else None
    return Strip(bits, group, codes if bits == 8 else pack(codes), scales, shifts)


def same(a: Strip, b: Strip) -> bool:
    """Equal to the bit."""
    if (a.bits, a.group, a.offsets is None) != (b.bits, b.group, b.offsets is None):
        return False
    if a.offsets is not None and b.offsets is not None and not torch.equal(a.offsets, b.offsets):
        return False
    return torch.equal(a.codes, b.codes) and torch.equal(a.scales, b.scales)


def test_byte_i_of_a_block_holds_code_i_low_and_code_i_plus_16_high() -> None:
    """Written out with Python integers: the kernels rely on this order."""
    codes = torch.randint(-8, 8, (3, 96), generator=torch.Generator().manual_seed(1), dtype=torch.int8)
    packed = pack(codes)
    assert packed.shape == (3, 48)
    assert packed.dtype == torch.uint8
    for row in range(3):
        for block in range(3):
            for i in range(16):
                low, high = codes[row, 32 * block + i].item(), codes[row, 32 * block + 16 + i].item()
                assert packed[row, 16 * block + i].item() == (low % 16) + 16 * (high % 16)


def test_every_pair_of_nibbles_survives() -> None:
    every = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(1, 256)
    codes = unpack(every)
    assert codes.min() == -8
    assert codes.max() == 7
    assert torch.equal(pack(codes), every)


def test_masking_and_shifting_a_byte_gives_16_times_its_codes() -> None:
    """What spares a kernel the sign extension."""
    packed = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(16, 16)
    low, high = unpack(packed).view(16, 2, 16).unbind(1)
    assert torch.equal((packed << 4).view(torch.int8), low * 16)
    assert torch.equal((packed & 0xF0).view(torch.int8), high * 16)


@given(rows=st.integers(0, 5), blocks=st.integers(1, 9), seed=SEEDS)
@settings(deadline=None)
def test_unpack_undoes_pack(rows: int, blocks: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(-8, 8, (rows, blocks * BLOCK), generator=generator, dtype=torch.int8)
    assert torch.equal(unpack(pack(codes)), codes)


@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("bits", [4, 8])
def test_a_value_is_its_code_times_the_scale_of_its_row_and_group(
    bits: Bits, group: Group, offsets: bool
) -> None:
    strip = random_strip(bits, group, rows=3, groups=3, seed=7, offsets=offsets)
    codes, values = codes_of(strip), dequantise(strip)
    assert values.shape == (3, 3 * group)
    assert values.dtype == torch.float32
    for row in range(3):
        for column in range(3 * group):
            expected = codes[row, column].float() * strip.scales[row, column // group]
            if strip.offsets is not None:
                expected = expected + strip.offsets[row, column // group]
            assert values[row, column] == expected


def test_dequantising_leaves_the_strip_alone() -> None:
    strip = random_strip(8, 32, rows=2, groups=2, seed=3, offsets=True)
    codes = strip.codes.clone()
    assert torch.equal(dequantise(strip), dequantise(strip))
    assert torch.equal(strip.codes, codes)


@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize(("group", "num_groups"), [(32, 1), (32, 6), (32, 9), (32, 90), (256, 1), (256, 3)])
@pytest.mark.parametrize("bits", [4, 8])
def test_size_is_the_one_that_is_foretold(bits: Bits, group: Group, num_groups: int, offsets: bool) -> None:
    strip = random_strip(bits, group, rows=5, groups=num_groups, seed=0, offsets=offsets)
    assert (strip.rows, strip.columns) == (5, group * num_groups)
    assert strip.nbytes == strip_bytes(5, strip.columns, StoredStrip(bits, offsets, group))


@given(
    picks=st.lists(st.integers(0, 6), max_size=12),
    bits=st.sampled_from([4, 8]),
    offsets=st.booleans(),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None, max_examples=60)
def test_picked_rows_are_the_rows(picks: list[int], bits: Bits, offsets: bool, seed: int) -> None:
    strip = random_strip(bits, 32, rows=7, groups=2, seed=seed, offsets=offsets)
    ids = torch.tensor(picks, dtype=torch.int64)
    found = dequantise(pick_rows(strip, ids))
    assert torch.equal(found.view(torch.int32), dequantise(strip)[ids].view(torch.int32))


@given(
    bits=BITS,
    rows=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    with_offsets=st.integers(0, 15),
    seed=SEEDS,
)
@settings(deadline=None)
def test_joined_rows_are_those_of_the_parts(
    bits: Bits, rows: list[int], with_offsets: int, seed: int
) -> None:
    """With offsets in any of the parts; those without get zeros, so the values stay."""
    parts = [
        random_strip(bits, 32, rows=count, groups=3, seed=seed + i, offsets=bool(with_offsets >> i & 1))
        for i, count in enumerate(rows)
    ]
    joined = concatenate(parts)
    assert torch.equal(dequantise(joined), torch.cat([dequantise(part) for part in parts]))
    start = 0
    for part in parts:
        cut = take_rows(joined, start, start + part.rows)
        assert torch.equal(cut.codes, part.codes)
        assert torch.equal(cut.scales, part.scales)
        assert torch.equal(dequantise(cut), dequantise(part))
        start += part.rows


def test_rows_that_are_taken_share_the_memory() -> None:
    strip = random_strip(4, 32, rows=6, groups=2, seed=1, offsets=True)
    cut = take_rows(strip, 2, 5)
    assert cut.codes.data_ptr() == strip.codes[2].data_ptr()
    assert cut.scales.data_ptr() == strip.scales[2].data_ptr()


def test_different_kinds_are_not_joined() -> None:
    strip = random_strip(4, 32, rows=1, groups=8, seed=1)
    for other in (
        random_strip(8, 32, rows=1, groups=8, seed=1),
        random_strip(4, 256, rows=1, groups=1, seed=1),
        random_strip(4, 32, rows=1, groups=7, seed=1),
    ):
        with pytest.raises(ValueError, match="different kinds"):
            concatenate([strip, other])


def test_which_widths_fit() -> None:
    assert [width for width in (0, 1, 31, 32, 33, 192, 288, 576, 2880) if fits(width, 32)] == [
        32,
        192,
        288,
        576,
        2880,
    ]
    assert [width for width in (0, 32, 192, 256, 288, 768, 2880) if fits(width, 256)] == [256, 768]
    for width, group in ((1, 32), (33, 32), (0, 32), (2880, 256)):
        with pytest.raises(ValueError, match=f"Rows of {width} inputs don't divide into groups of {group}"):
            check_width(width, group)
    with pytest.raises(ValueError, match="not by 64"):
        check_width(64, 64)


def test_scales_that_float16_holds_are_known() -> None:
    strip = random_strip(8, 32, rows=2, groups=2, seed=5, offsets=True)
    assert strip.offsets is not None
    assert scales_fit(strip, torch.float32)
    assert not scales_fit(strip, torch.float16)
    narrow = Strip(8, 32, strip.codes, strip.scales.half().float(), strip.offsets.half().float())
    assert scales_fit(narrow, torch.float16)
    assert not scales_fit(narrow, torch.bfloat16)
    wide_offsets = Strip(8, 32, strip.codes, narrow.scales, strip.offsets)
    assert not scales_fit(wide_offsets, torch.float16)
    assert not scales_fit(Strip(8, 32, strip.codes, torch.full((2, 2), 1e6)), torch.float16)


CODES = torch.zeros(4, 64, dtype=torch.int8)
SCALES = torch.ones(4, 2)


@pytest.mark.parametrize(
    ("bits", "group", "codes", "scales", "offsets", "message"),
    [
        (5, 32, CODES, SCALES, None, "4 or 8 bits, not of 5"),
        (8, 64, CODES, SCALES, None, "not by 64"),
        (4, 32, CODES, SCALES, None, r"Codes of 4 bits are a torch.uint8 matrix, not torch.int8 \(4, 64\)"),
        (8, 32, CODES.view(-1), SCALES, None, r"matrix, not torch.int8 \(256,\)"),
        (8, 256, CODES, SCALES, None, "Rows of 64 inputs don't divide into groups of 256"),
        (8, 32, CODES[:, :1].contiguous(), SCALES, None, "Rows of 1 inputs"),
        (8, 32, CODES[:, ::2], SCALES[:, :1].contiguous(), None, "codes of a strip have to be contiguous"),
        (8, 32, CODES, SCALES[:, :1], None, r"scales .* torch.float32 \(4, 2\), not torch.float32 \(4, 1\)"),
        (8, 32, CODES, SCALES.half(), None, "scales .* not torch.float16"),
        (8, 32, CODES, torch.ones(2, 4).t(), None, "scales of a strip have to be contiguous"),
        (8, 32, CODES, SCALES, SCALES[:3], r"offsets .* not torch.float32 \(3, 2\)"),
        (8, 32, CODES, SCALES, SCALES.double(), "offsets .* not torch.float64"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(
    bits: Bits,
    group: Group,
    codes: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        Strip(bits, group, codes, scales, offsets)
