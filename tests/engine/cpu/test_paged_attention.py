"""Attention over pages against attention over the same numbers in one piece."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backend import Sequence
from engine.cpu import paged_attention
from engine.cpu.attention import CausalMasks, attend_block, attend_one
from engine.cpu.kv_kernels import kv_kernels
from engine.cpu.kv_rows import read_rows, write_rows
from engine.cpu.machine_code import Kernels
from engine.cpu.page_pool import CpuPagePool
from engine.cpu.paged_attention import DecodeStep, OwnRows, PrefillStep
from engine.kv_geometry import PAGE, KvFormat, KvGeometry, pages_for
from engine.models.spec import AttentionSpec, RopeSpec

FORMATS: list[KvFormat] = ["int8", "native"]
WINDOWS = [None, 1, 2, 63, 64, 65, 100]


def make_spec(num_heads: int, num_kv_heads: int, head_dim: int, window: int | None = None) -> AttentionSpec:
    rope = RopeSpec(1e4, head_dim)
    return AttentionSpec(num_heads, num_kv_heads, head_dim, scale=0.3, rope=rope, window=window)


class Filled:
    """A sequence of `length` random tokens in a pool, in two layers, of which the second is looked at."""

    def __init__(self, spec: AttentionSpec, kv_format: KvFormat, length: int, *, more: int = 1) -> None:
        layer = (spec.num_kv_heads, spec.head_dim)
        self.spec = spec
        self.pool = CpuPagePool(KvGeometry(kv_format, (layer, layer)), 99)
        pages = [self.pool.allocate() for _ in range(pages_for(length + more) + 1)]
        self.sequence = Sequence([page for page in pages if page is not None][::-1], length)
        kv = torch.randn(length, 2 * spec.num_kv_heads, spec.head_dim)
        for first in range(0, length, PAGE):
            write_rows(self.pool, self.sequence.pages[first // PAGE], 1, first=0, kv=kv[first : first + PAGE])

    def rows(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values (G, length, D) as they are in the pages."""
        pages = self.sequence.pages
        out = torch.empty(2 * self.spec.num_kv_heads, len(pages) * PAGE, self.spec.head_dim)
        read_rows(self.pool, pages, 1, length=length, out=out)
        keys, values = out[:, :length].chunk(2)
        return keys, values

    def spoil_the_rest(self) -> None:
        """Every byte behind the valid rows becomes part of something that is no number, or is huge."""
        for index, page in enumerate(self.sequence.pages):
            first = min(PAGE, max(0, self.sequence.length - index * PAGE))
            for part in self.pool.layer(page, 1):
                if part is not None:
                    part[:, first:] = 127 if part.dtype == torch.int8 else torch.nan

    def decode(self, heads: torch.Tensor) -> torch.Tensor:
        return DecodeStep(self.pool, self.sequence).attend(1, self.spec, heads, CausalMasks(None))


@contextmanager
def threads_set(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def heads_of(spec: AttentionSpec, num_tokens: int) -> torch.Tensor:
    return torch.randn(num_tokens, spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim)


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("length", [0, 1, 62, 63, 64, 65, 300])
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"), [(4, 4, 16), (9, 3, 64), (14, 2, 24), (5, 1, 7)]
)
def test_a_decoded_token_attends_to_its_window(
    num_heads: int, num_kv_heads: int, head_dim: int, length: int, window: int | None, kv_format: KvFormat
) -> None:
    spec = make_spec(num_heads, num_kv_heads, head_dim, window)
    filled, heads = Filled(spec, kv_format, length), heads_of(spec, 1)
    out = filled.decode(heads)
    expected = attend_one(spec, heads[0, :num_heads], *filled.rows(length + 1))
    torch.testing.assert_close(out, expected, atol=2e-6, rtol=1e-5)


@given(
    length=st.integers(0, 500),
    group=st.integers(1, 9),
    window=st.none() | st.integers(1, 300),
    kv_format=st.sampled_from(FORMATS),
)
@settings(max_examples=40, deadline=None)
def test_kernels_and_torch_agree(length: int, group: int, window: int | None, kv_format: KvFormat) -> None:
    spec = make_spec(2 * group, 2, 32, window)
    filled, heads = Filled(spec, kv_format, length), heads_of(spec, 1)
    direct = filled.decode(heads)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paged_attention, "kv_kernels", lambda _: None)
        torch.testing.assert_close(filled.decode(heads), direct, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("open_mp", [True, False])
def test_a_decoded_token_has_the_same_bits_with_any_threads(
    kv_format: KvFormat, open_mp: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(6, 2, 64)
    filled, heads = Filled(spec, kv_format, 400), heads_of(spec, 1)
    with threads_set(1):
        expected = filled.decode(heads)
    if not open_mp:
        compiled = kv_kernels(kv_format)
        assert compiled is not None
        alone = Kernels(compiled.engine, compiled.names, None)
        monkeypatch.setattr(paged_attention, "kv_kernels", lambda _: alone)
    for threads in (2, 3, 5):
        with threads_set(threads):
            assert torch.equal(filled.decode(heads), expected)


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("head_dim", [64, 24])
@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("length", [0, 5, 63, 64, 130])
@pytest.mark.parametrize("kernels", [True, False])
def test_nothing_behind_the_length_changes_a_decoded_token(
    length: int,
    window: int | None,
    head_dim: int,
    kv_format: KvFormat,
    kernels: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not kernels:
        monkeypatch.setattr(paged_attention, "kv_kernels", lambda _: None)
    spec = make_spec(6, 3, head_dim, window)
    filled, heads = Filled(spec, kv_format, length), heads_of(spec, 1)
    expected = filled.decode(heads)
    filled.spoil_the_rest()
    assert torch.equal(filled.decode(heads), expected)


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(
    ("start", "count"), [(0, 1), (0, 64), (0, 130), (5, 1), (63, 2), (64, 64), (130, 50)]
)
def test_a_prompt_attends_as_over_one_piece_and_to_nothing_behind(
    start: int, count: int, window: int | None, kv_format: KvFormat
) -> None:
    spec = make_spec(6, 2, 24, window)
    filled = Filled(spec, kv_format, start, more=count)
    filled.spoil_the_rest()
    step = PrefillStep(filled.pool, filled.sequence, count)
    assert step.valid is not None
    heads = torch.full((step.num_rows, 10, 24), torch.nan)
    heads[step.valid] = heads_of(spec, count)
    out = step.attend(1, spec, heads, CausalMasks(window))[step.valid]
    expected = attend_block(
        spec, heads[step.valid, :6], *filled.rows(start + count), start, CausalMasks(window)
    )
    torch.testing.assert_close(out, expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("kv_format", "bad"), [("int8", torch.nan), ("int8", torch.inf), ("native", torch.nan)]
)
def test_what_is_no_number_is_not_hidden(kv_format: KvFormat, bad: float) -> None:
    """In a key, in a value, in the query: the logits have to show it."""
    spec = make_spec(2, 1, 32)
    for part in range(3):
        filled, heads = Filled(spec, kv_format, 70), heads_of(spec, 1)
        heads[0, [0, 2, 3][part], 5] = bad
        assert not bool(filled.decode(heads)[:, :32].isfinite().all())


def test_a_text_that_stands_alone_attends_to_itself() -> None:
    spec = make_spec(6, 2, 24, 40)
    heads = heads_of(spec, 100)
    keys, values = heads[:, 6:8].transpose(0, 1), heads[:, 8:].transpose(0, 1)
    out = OwnRows().attend(0, spec, heads, CausalMasks(40))
    one = attend_one(spec, heads[99, :6], keys, values)
    torch.testing.assert_close(out[99:], one, atol=2e-6, rtol=1e-5)
