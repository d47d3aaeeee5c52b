"""Rows into pages and out of them, by both paths."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cpu import kv_rows
from engine.cpu.kv_kernels import kv_kernels
from engine.cpu.kv_rows import quantise_rows, read_rows, write_rows
from engine.cpu.page_pool import CpuPagePool
from engine.kv_geometry import PAGE, KvFormat, KvGeometry

LAYERS = ((2, 16), (1, 7), (3, 64), (2, 40))
TINY = torch.finfo(torch.float32).tiny


def new_pool(kv_format: KvFormat = "int8", pages: int = 1) -> CpuPagePool:
    pool = CpuPagePool(KvGeometry(kv_format, LAYERS), 16)
    assert [pool.allocate() for _ in range(pages)] == list(range(pages))
    return pool


@pytest.fixture(params=["kernels", "plain"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        monkeypatch.setattr(kv_rows, "kv_kernels", lambda _: None)
    else:
        assert kv_kernels("int8") is not None
    return request.param


def everything(pool: CpuPagePool, layer: int, length: int, *, capacity: int = 0) -> torch.Tensor:
    """All rows of all pages (2G, capacity, D), into memory that holds no numbers."""
    heads, head_dim = LAYERS[layer]
    pages = list(range(pool.num_pages))
    out = torch.full((2 * heads, max(capacity, len(pages) * PAGE), head_dim), torch.nan)
    read_rows(pool, pages, layer, length=length, out=out)
    return out


@given(exponents=st.lists(st.integers(-45, 38), min_size=1, max_size=8), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_a_number_is_off_by_half_a_step_at_most(exponents: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(exponents), 40, generator=generator).clamp(-3, 3) / 3
    x *= torch.tensor([10.0**exponent for exponent in exponents])[:, None]
    codes, scales = quantise_rows(x)
    step = x.abs().amax(-1, keepdim=True) / 127
    error = (codes.double() * scales.double()[:, None] - x.double()).abs()
    assert bool((error <= step.double() * 0.500001 + 127 * TINY).all())
    assert int(codes.abs().max()) <= 127
    assert bool(scales.isfinite().all())


def test_the_largest_of_a_row_is_127_and_a_row_of_zeros_stays_zero() -> None:
    x = torch.stack((torch.linspace(-5, 2, 16), torch.zeros(16), torch.linspace(-1, 3e38, 16)))
    codes, scales = quantise_rows(x)
    assert codes.abs().amax(-1).tolist() == [127, 0, 127]
    assert scales[1] == 0
    assert bool((codes[2].float() * scales[2]).isfinite().all())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_with_anything_that_is_no_number_reads_as_none(bad: float, path: str) -> None:
    pool = new_pool()
    kv = torch.randn(3, 6, 64)
    kv[1, 4, 33] = bad
    write_rows(pool, 0, 2, first=0, kv=kv)
    rows = everything(pool, 2, 3)[:, :3]
    assert bool(rows[4, 1].isnan().all())
    rows[4, 1] = 0.0
    assert bool(rows.isfinite().all())


@given(
    layer=st.integers(0, len(LAYERS) - 1),
    first=st.integers(0, PAGE - 1),
    exponents=st.lists(st.integers(-45, 38), min_size=1, max_size=4),
    threads=st.sampled_from([1, 2, 3]),
)
@settings(max_examples=40, deadline=None)
def test_kernels_write_the_bytes_that_torch_writes(
    layer: int, first: int, exponents: list[int], threads: int
) -> None:
    heads, head_dim = LAYERS[layer]
    kv = torch.randn(PAGE - first, 2 * heads, head_dim) * torch.tensor(
        [10.0 ** exponents[i % len(exponents)] for i in range(2 * heads)]
    ).unsqueeze(-1)
    kv[0, 0] = 0.0
    kv.view(-1)[-1] = torch.nan
    pools = new_pool(), new_pool()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        write_rows(pools[0], 0, layer, first=first, kv=kv)
    finally:
        torch.set_num_threads(before)
    codes, scales = quantise_rows(kv)
    numbers, kept = pools[1].layer(0, layer)
    assert kept is not None
    numbers[:, first:], kept[:, first:] = codes.transpose(0, 1), scales.T
    assert torch.equal(*(pool.read(0).view(torch.int32) for pool in pools))


@pytest.mark.parametrize("kv_format", ["int8", "native"])
@pytest.mark.parametrize("layer", range(len(LAYERS)))
def test_rows_are_read_as_they_were_written_piece_by_piece(
    kv_format: KvFormat, layer: int, path: str
) -> None:
    pool = new_pool(kv_format, pages=3)
    heads, head_dim = LAYERS[layer]
    wide = torch.randn(150, 5 + 2 * heads, head_dim)  # as they lie behind queries
    kv = wide[:, 5:]
    for start, end in [(0, 1), (1, 63), (63, 64), (64, 65), (65, 128), (128, 150)]:
        write_rows(pool, start // PAGE, layer, first=start % PAGE, kv=kv[start:end])
    out = everything(pool, layer, 150, capacity=4 * PAGE)
    expected = kv
    if kv_format == "int8":
        codes, scales = quantise_rows(kv)
        expected = codes.float() * scales[..., None]
    assert torch.equal(out[:, :150], expected.transpose(0, 1))
    assert not out[:, 150 : 3 * PAGE].any()
    assert bool(out[:, 3 * PAGE :].isnan().all())  # not touched


@pytest.mark.parametrize("kv_format", ["int8", "native"])
@pytest.mark.parametrize("byte", [0xFF, 0x7F, 0x80])
@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 127])
def test_behind_the_length_there_are_zeros_whatever_the_pages_hold(
    kv_format: KvFormat, byte: int, length: int, path: str
) -> None:
    pool = new_pool(kv_format, pages=2)
    for page in range(2):
        pool.bytes_of(page).fill_(byte)
    assert not everything(pool, 2, length)[:, length:].any()


def test_writing_a_layer_leaves_every_other_byte_alone(path: str) -> None:
    for kv_format in ("int8", "native"):
        pool = new_pool(kv_format)
        for layer, (heads, head_dim) in enumerate(LAYERS):
            pool.bytes_of(0).fill_(0x55)
            write_rows(pool, 0, layer, first=3, kv=torch.randn(2, 2 * heads, head_dim))
            numbers, scales = pool.layer(0, layer)
            for part in (numbers, scales) if scales is not None else (numbers,):
                part[:, 3:5].view(torch.uint8)[:] = 0x55
            assert bool((pool.read(0) == 0x55).all())
