"""Weights made on the card: the same in every run, of a size that keeps numbers finite, and none of them
through the computer's memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from bench_configs import CONFIGS, configuration
from emulated_card import EmulatedCard, EmulatedCompiler

from engine.bench import random_model
from engine.bench.random_model import RandomLoad, load_random
from engine.config import EngineConfig
from engine.cuda.arguments import Fill, Reading
from engine.cuda.driver import as_bytes
from engine.cuda.embedding import embedding_image
from engine.cuda.kernel_set import KernelSet
from engine.cuda.memory import CardMemory
from engine.cuda.random_weights import RandomRows
from engine.progress import no_progress

Load = Callable[..., RandomLoad]


@pytest.fixture
def load(
    make_card: Callable[..., EmulatedCard], card_compiler: EmulatedCompiler, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Load]:
    """`load(config keys, card=..., **settings)`: random weights on a card."""
    loads: list[RandomLoad] = []

    def load_on_card(values: dict[str, Any], card: EmulatedCard | None = None, **settings: Any) -> RandomLoad:
        found = make_card() if card is None else card
        monkeypatch.setattr("engine.card_loading.find_card", lambda: found.info)
        monkeypatch.setattr(random_model, "open_card", lambda: found)
        monkeypatch.setattr(random_model, "NvrtcCompiler", lambda cache: card_compiler)
        config = EngineConfig(**{"device": "cuda", "weights": "q4", **settings})
        loads.append(load_random(configuration(values), config, on_progress=no_progress, cancel=None))
        return loads[-1]

    yield load_on_card
    for each in loads:
        each.backend.close()


def logits_of(load: RandomLoad, count: int = 5) -> torch.Tensor:
    ids = [(7 * i + 3) % load.backend.spec.vocab_size for i in range(count)]
    with closing(load.backend.new_cache("int8")) as cache:
        return load.backend.forward(ids, cache, all_logits=True)


@pytest.mark.parametrize("name", sorted(CONFIGS))
@pytest.mark.parametrize("weights", ["q4", "q8", "native"])
def test_logits_are_finite_and_of_a_size_that_words_have(name: str, weights: str, load: Load) -> None:
    logits = logits_of(load(CONFIGS[name], weights=weights))
    assert bool(logits.isfinite().all())
    assert 0.1 < float(logits.std()) < 10
    assert len({tuple(row.tolist()) for row in logits}) == len(logits), "tokens make a difference"


def test_they_are_the_same_in_every_run(load: Load) -> None:
    first, second = (logits_of(load(CONFIGS["qwen3_moe"])) for _ in range(2))
    assert torch.equal(first, second)


def test_a_deep_model_keeps_its_numbers_finite(load: Load) -> None:
    logits = logits_of(load({**CONFIGS["qwen3"], "num_hidden_layers": 64}), 2)
    assert bool(logits.isfinite().all())


def test_hardly_anything_goes_up(load: Load, card: EmulatedCard) -> None:
    """Norms, tables of rotation and the tokens of a load's trial; of the matrices not a byte."""
    backend = load({**CONFIGS["llama"], "vocab_size": 4096}, card, context=64).backend
    uploaded = card.counts.upload_bytes
    assert backend.weight_bytes > 100_000
    assert uploaded < backend.weight_bytes / 4


class Memory:
    """Some of a card's, with a kernel at work on it."""

    def __init__(self, card: EmulatedCard, compiler: EmulatedCompiler, num_bytes: int) -> None:
        self.card = card
        self.kernels = KernelSet(card, compiler)
        self.address = card.allocate(num_bytes)
        self.found = card.allocate(4)
        self._num_bytes = num_bytes

    def fill(self, form: int, *, count: int | None = None, seed: int = 1, **fields: Any) -> np.ndarray:
        count = self._num_bytes if count is None else count
        arguments = Fill(target=self.address, count=count, seed=seed, form=form, **fields)
        self.kernels.launch("fill_memory", arguments, grid=(2, 1, 1))
        found = np.empty(self._num_bytes, np.uint8)
        self.card.download(found, self.address)
        return found


@pytest.fixture
def memory(card: EmulatedCard, card_compiler: EmulatedCompiler) -> Iterator[Memory]:
    held = Memory(card, card_compiler, 40_003)
    yield held
    card.free(held.address)
    card.free(held.found)


def test_codes_of_4_bits_are_all_alike_often(memory: Memory) -> None:
    found = memory.fill(1)
    counts = np.bincount(np.concatenate([found & 15, found >> 4]), minlength=16)
    expected = 2 * len(found) / 16
    assert np.abs(counts - expected).max() < 6 * math.sqrt(expected)


def test_codes_of_8_bits_are_those_that_strips_have(memory: Memory) -> None:
    codes = memory.fill(2).view(np.int8)
    assert (codes.min(), codes.max()) == (-127, 127)
    assert abs(float(codes.astype(np.float64).std()) - 73.6) < 1


@pytest.mark.parametrize(("form", "dtype"), [(3, torch.float32), (4, torch.bfloat16)])
def test_numbers_lie_evenly_within_their_bound(memory: Memory, form: int, dtype: torch.dtype) -> None:
    found = memory.fill(form, bound=0.5)[:40_000]
    numbers = torch.from_numpy(found).view(dtype).double()
    assert float(numbers.abs().max()) <= 0.5
    assert abs(float(numbers.std()) - 0.5 / math.sqrt(3)) < 0.01
    assert abs(float(numbers.mean())) < 0.01


def test_another_seed_makes_other_bytes_and_the_same_one_the_same(memory: Memory) -> None:
    first, again, other = (memory.fill(1, seed=seed) for seed in (5, 5, 6))
    assert np.array_equal(first, again)
    assert np.mean(first == other) < 0.02


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 2047, 40_003])
def test_exactly_what_was_asked_for_is_filled(memory: Memory, count: int) -> None:
    memory.fill(0, pattern=0)
    found = memory.fill(0, count=count, pattern=0x44332211)
    assert found[:count].tobytes() == (b"\x11\x22\x33\x44" * (count // 4 + 1))[:count]
    assert not found[count:].any()


@pytest.mark.parametrize(
    ("count", "place"), [(1, 0), (512, 511), (513, 512), (2500, 0), (2500, 1031), (2500, 2499)]
)
def test_reading_reaches_every_byte(memory: Memory, count: int, place: int) -> None:
    """A word that is told of if it is read, and nowhere else but zeros. count, place: of 16 bytes."""
    memory.fill(0, pattern=0)
    words = np.zeros((2500, 4), np.uint32)
    words[place, 3] = 0x5EED5EED
    for end, is_told in ((count, True), (place, False)):
        memory.card.upload(memory.address, as_bytes(words))
        reading = Reading(source=memory.address, found=memory.found, count=end)
        memory.card.fill(memory.found, 0, 4)
        memory.kernels.launch("read_memory", reading, grid=(1, 1, 1))
        found = np.empty(4, np.uint8)
        memory.card.download(found, memory.found)
        assert bool(found.any()) == is_told


@pytest.mark.parametrize("vocab_size", [1, 3, 1024, 1025, 5000])
def test_rows_of_an_embedding_are_the_same_on_the_card(
    vocab_size: int, card: EmulatedCard, card_compiler: EmulatedCompiler
) -> None:
    lookup = RandomRows(vocab_size, 40)
    memory, kernels = CardMemory(card), KernelSet(card, card_compiler)
    image = embedding_image(lookup)
    assert image is not None
    embedding = image.upload(memory)
    assert embedding.num_bytes == vocab_size * 40 * 2
    assert card.counts.upload_bytes <= 1024 * 40 * 2
    ids = torch.tensor([0, vocab_size - 1, vocab_size // 2, min(1023, vocab_size - 1)])
    tokens, hidden = card.allocate(16), card.allocate(4 * 40 * 4)
    card.upload(tokens, as_bytes(ids.int()))
    embedding.launch(kernels, tokens, hidden, rows=4)
    found = torch.empty(4, 40)
    card.download(as_bytes(found), hidden)
    assert torch.equal(found, lookup.rows(ids))
    memory.free_all()
    card.free(tokens)
    card.free(hidden)
