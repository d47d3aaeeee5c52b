"""A prompt's logits, and the bytes it leaves in its pages, have the same bits however it is cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import TINY_MODELS

from engine.backend import Sequence
from engine.checkpoints.model_folder import open_model
from engine.config import WeightFormat
from engine.cpu.backend import PREFILL_BLOCK, CpuBackend
from engine.cpu.page_pool import CpuPagePool
from engine.kv_geometry import PAGE, KvFormat, KvGeometry, pages_for

SomeIds = Callable[[int], list[int]]

MODELS = sorted(folder.name for folder in TINY_MODELS.iterdir() if folder.is_dir())
EVERY_MODEL = pytest.mark.parametrize("name", MODELS)
EVERY_WEIGHTS = pytest.mark.parametrize("weights", ["native", "q8", "q4"])
EVERY_KV = pytest.mark.parametrize("kv", ["native", "int8"])


@cache
def load(name: str, weights: WeightFormat) -> CpuBackend:
    folder = open_model(TINY_MODELS / name)
    try:
        return CpuBackend.load(folder.spec, folder.parameters, folder.tensors, weights=weights)
    finally:
        folder.tensors.close()


class Reader:
    """Reads one prompt in pieces, into pages that hold garbage at first."""

    def __init__(self, backend: CpuBackend, kv: KvFormat, num_tokens: int, *, garbage: int = 0) -> None:
        self.backend = backend
        self.pool: CpuPagePool = backend.new_pool(KvGeometry.of(backend.spec, kv), pages_for(num_tokens))
        pages = [self.pool.allocate() for _ in range(self.pool.capacity)]
        self.sequence = Sequence([page for page in pages if page is not None][::-1])
        for page in self.sequence.pages:
            self.pool.bytes_of(page).fill_(garbage)

    def read(self, ids: list[int], cuts: Iterable[int] = ()) -> torch.Tensor:
        """Logits (T, V)"""
        borders = [0, *cuts, len(ids)]
        return torch.cat(
            [
                self.backend.prefill(ids[a:b], self.sequence, self.pool, all_logits=True)
                for a, b in pairwise(borders)
            ]
        )

    def rows(self) -> list[torch.Tensor]:
        """The valid bytes of every layer, as integers, of which two are equal or aren't."""
        found = []
        for layer in range(self.backend.spec.num_layers):
            for index, page in enumerate(self.sequence.pages):
                count = max(0, self.sequence.length - index * PAGE)
                parts = (part for part in self.pool.layer(page, layer) if part is not None)
                found += [part[:, :count].contiguous().view(torch.uint8) for part in parts]
        return found


def assert_same(backend: CpuBackend, kv: KvFormat, ids: list[int], cuts: list[list[int]]) -> None:
    whole = Reader(backend, kv, len(ids))
    logits = whole.read(ids)
    assert bool(logits.isfinite().all())
    for each in cuts:
        pieces = Reader(backend, kv, len(ids), garbage=0xFF)
        assert torch.equal(pieces.read(ids, each), logits), each
        assert all(torch.equal(a, b) for a, b in zip(pieces.rows(), whole.rows(), strict=True)), each


@EVERY_MODEL
@EVERY_WEIGHTS
@EVERY_KV
def test_cut_once_anywhere_around_a_page_border(
    name: str, weights: WeightFormat, kv: KvFormat, some_ids: SomeIds
) -> None:
    cuts = [1, PAGE - 12, PAGE - 1, PAGE, PAGE + 1, PAGE + 12, 2 * PAGE - 1, 2 * PAGE]
    assert_same(load(name, weights), kv, some_ids(2 * PAGE + 3), [[cut] for cut in cuts])


@EVERY_MODEL
@EVERY_KV
def test_cut_into_single_tokens_and_into_63_64_65(name: str, kv: KvFormat, some_ids: SomeIds) -> None:
    ids = some_ids(PAGE + 2)
    assert_same(load(name, "q4"), kv, ids, [list(range(1, len(ids)))])
    ids = some_ids(3 * PAGE + 20)
    assert_same(load(name, "q4"), kv, ids, [list(range(size, len(ids), size)) for size in (63, 64, 65)])


@EVERY_MODEL
@EVERY_KV
def test_blocks_of_a_long_prompt(name: str, kv: KvFormat, some_ids: SomeIds) -> None:
    assert_same(load(name, "q4"), kv, some_ids(PREFILL_BLOCK + 70), [[512], [65, 400], [PREFILL_BLOCK - 1]])


@given(
    length=st.integers(2, 3 * PAGE),
    places=st.lists(st.floats(0, 1), max_size=4),
    name=st.sampled_from(["tiny-mistral-sw", "tiny-qwen3moe-mix"]),
    kv=st.sampled_from(["native", "int8"]),
)
@settings(max_examples=15, deadline=None)
def test_cut_anywhere(length: int, places: list[float], name: str, kv: KvFormat, some_ids: SomeIds) -> None:
    cuts = sorted({1 + int(place * (length - 2)) for place in places})
    assert_same(load(name, "q8"), kv, some_ids(length), [cuts])


@EVERY_MODEL
@EVERY_KV
@pytest.mark.parametrize("extra", range(-12, 13, 4))
def test_a_last_token_alone_after_a_prompt_of_any_length(
    name: str, kv: KvFormat, extra: int, some_ids: SomeIds
) -> None:
    """Of what follows a prefix that was kept, only the last token's logits are asked for."""
    backend, ids = load(name, "q4"), some_ids(PAGE + extra)
    whole, parts = Reader(backend, kv, len(ids)), Reader(backend, kv, len(ids))
    expected = backend.prefill(ids, whole.sequence, whole.pool)
    backend.prefill(ids[:-1], parts.sequence, parts.pool)
    assert torch.equal(backend.prefill(ids[-1:], parts.sequence, parts.pool), expected)


@EVERY_MODEL
@EVERY_KV
@pytest.mark.parametrize("garbage", [0xFF, 0x7F])
@pytest.mark.parametrize("length", [0, 1, 63, 64, 90])
def test_nothing_behind_the_length_changes_a_bit(
    name: str, kv: KvFormat, garbage: int, length: int, some_ids: SomeIds
) -> None:
    """As float32, 0xFF… is no number and 0x7F… is 3e38; as codes they are small, and as large as can be."""
    backend, ids = load(name, "q4"), some_ids(length + 5)
    found = []
    for byte in (0, garbage):
        reader = Reader(backend, kv, length + PAGE, garbage=byte)
        if length:
            backend.prefill(ids[:length], reader.sequence, reader.pool)
        decoded = backend.decode(ids[length], reader.sequence, reader.pool)
        read = backend.prefill(ids[length + 1 :], reader.sequence, reader.pool, all_logits=True)
        found.append(torch.cat((decoded[None], read)))
    assert torch.equal(*found)


@EVERY_MODEL
@EVERY_KV
def test_rows_of_a_text_that_was_rewound_are_overwritten(name: str, kv: KvFormat, some_ids: SomeIds) -> None:
    backend, ids = load(name, "q4"), some_ids(100)
    fresh, used = Reader(backend, kv, 100), Reader(backend, kv, 100)
    used.read([(token + 7) % 480 for token in ids])
    used.sequence.length = 0
    assert torch.equal(used.read(ids, [70]), fresh.read(ids))


@EVERY_MODEL
@EVERY_KV
def test_a_page_copied_as_bytes_goes_on_as_the_first(name: str, kv: KvFormat, some_ids: SomeIds) -> None:
    backend, ids = load(name, "q8"), some_ids(90)
    first, second = Reader(backend, kv, 100), Reader(backend, kv, 100)
    first.read(ids[:70])
    for source, target in zip(first.sequence.pages, second.sequence.pages, strict=True):
        second.pool.write(target, first.pool.read(source))
    second.sequence.length = 70
    assert torch.equal(second.read(ids[70:]), first.read(ids[70:]))
    assert torch.equal(*(backend.decode(5, each.sequence, each.pool) for each in (first, second)))


@EVERY_MODEL
def test_decoding_differs_from_reading_by_rounding(name: str, some_ids: SomeIds) -> None:
    backend, ids = load(name, "q4"), some_ids(80)
    read = Reader(backend, "native", 80).read(ids)
    reader = Reader(backend, "native", 80)
    decoded = torch.stack([backend.decode(token, reader.sequence, reader.pool) for token in ids])
    torch.testing.assert_close(decoded, read, atol=1e-4, rtol=0.0)
