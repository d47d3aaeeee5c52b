"""Equalities that hold whatever the weights are. What the numbers should be is asked in test_oracles.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import TINY_MODELS
from torch.utils._python_dispatch import TorchDispatchMode

from engine.checkpoints.model_folder import open_model
from engine.cpu.backend import PREFILL_BLOCK, CpuBackend
from engine.cpu.page_pool import CpuPagePool
from engine.errors import Cancelled
from engine.kv_geometry import PAGE
from engine.models.spec import Parameter
from engine.paged_cache import PagedCache

LoadBackend = Callable[[str], CpuBackend]
SomeIds = Callable[[int], list[int]]

MODELS = sorted(folder.name for folder in TINY_MODELS.iterdir() if folder.is_dir())
# Rounding differs between products of one row and of many; logits here have a standard deviation of about 4.
TOLERANCE = 1e-4


def run_in_pieces(backend: CpuBackend, ids: list[int], cuts: list[int]) -> torch.Tensor:
    """Logits (T, V) of a new sequence that is handed over in pieces."""
    cache = backend.new_cache()
    borders = [0, *cuts, len(ids)]
    return torch.cat(
        [backend.forward(ids[a:b], cache, all_logits=True) for a, b in pairwise(borders) if a < b]
    )


@pytest.mark.parametrize("name", MODELS)
def test_whole_pieces_and_single_steps_agree(name: str, load_backend: LoadBackend, some_ids: SomeIds) -> None:
    backend, ids = load_backend(name), some_ids(200)
    whole = run_in_pieces(backend, ids, [])
    for cuts in ([1], [100], [63, 64, 65, 130], list(range(1, 200))):
        torch.testing.assert_close(run_in_pieces(backend, ids, cuts), whole, atol=TOLERANCE, rtol=0.0)


@given(cuts=st.lists(st.integers(1, 149), max_size=6, unique=True).map(sorted))
@settings(max_examples=15, deadline=None)
def test_any_pieces_agree(cuts: list[int], load_backend: LoadBackend, some_ids: SomeIds) -> None:
    backend, ids = load_backend("tiny-mistral-sw"), some_ids(150)  # a window of 32
    whole = run_in_pieces(backend, ids, [])
    torch.testing.assert_close(run_in_pieces(backend, ids, cuts), whole, atol=TOLERANCE, rtol=0.0)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("cuts", [[PAGE], [2 * PAGE], [PAGE, 3 * PAGE, 8 * PAGE]])
def test_pieces_cut_at_page_borders_give_the_same_bits(
    name: str, cuts: list[int], load_backend: LoadBackend, some_ids: SomeIds
) -> None:
    backend, ids = load_backend(name), some_ids(PREFILL_BLOCK + 70)
    assert torch.equal(run_in_pieces(backend, ids, cuts), run_in_pieces(backend, ids, []))


@pytest.mark.parametrize("name", MODELS)
def test_last_logits_are_the_last_of_all_logits(
    name: str, load_backend: LoadBackend, some_ids: SomeIds
) -> None:
    backend, ids = load_backend(name), some_ids(70)
    last = backend.forward(ids, backend.new_cache())
    torch.testing.assert_close(last, run_in_pieces(backend, ids, [])[-1], atol=TOLERANCE, rtol=0.0)
    assert last.dtype == torch.float32
    assert last.shape == (backend.spec.vocab_size,)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("keep", [0, 1, 63, 64, 100])
def test_truncated_and_continued_equals_fresh(
    name: str, keep: int, load_backend: LoadBackend, some_ids: SomeIds
) -> None:
    backend, ids = load_backend(name), some_ids(130)
    other = [(token_id + 1) % 480 for token_id in ids]
    cache = backend.new_cache()
    backend.forward([*ids[:keep], *other[keep:]], cache)
    cache.truncate(keep)
    continued = backend.forward(ids[keep:], cache, all_logits=True)
    fresh = run_in_pieces(backend, ids, [])
    torch.testing.assert_close(continued, fresh[keep:], atol=TOLERANCE, rtol=0.0)


def test_two_sequences_in_turns_equal_each_alone(load_backend: LoadBackend, some_ids: SomeIds) -> None:
    backend = load_backend("tiny-qwen3moe-mix")
    first, second = some_ids(30), some_ids(31)
    caches = backend.new_cache(), backend.new_cache()
    turns = [
        torch.stack([backend.forward([a], caches[0]), backend.forward([b], caches[1])])
        for a, b in zip(first, second, strict=False)
    ]
    for index, ids in enumerate((first, second[:30])):
        alone = run_in_pieces(backend, ids, list(range(1, 30)))
        assert torch.equal(torch.stack([turn[index] for turn in turns]), alone)


class TestCancel:
    def test_a_cancelled_step_changes_nothing(self, load_backend: LoadBackend, some_ids: SomeIds) -> None:
        backend, ids, cancel = load_backend("tiny-qwen2"), some_ids(50), threading.Event()
        cache = backend.new_cache()
        backend.forward(ids[:20], cache, cancel=cancel)
        cancel.set()
        with pytest.raises(Cancelled):
            backend.forward(ids[20:], cache, cancel=cancel)
        assert cache.length == 20
        continued = backend.forward(ids[20:], cache)
        torch.testing.assert_close(
            continued, backend.forward(ids, backend.new_cache()), atol=TOLERANCE, rtol=0.0
        )

    def test_finished_blocks_of_a_cancelled_prompt_stay_valid(
        self, load_backend: LoadBackend, some_ids: SomeIds
    ) -> None:
        """The event is set as if by another thread, after the first block and one layer of the second."""
        backend, ids = load_backend("tiny-qwen2"), some_ids(2 * PREFILL_BLOCK + 5)

        class SetAfter(threading.Event):
            looks = 0

            def is_set(self) -> bool:
                self.looks += 1
                return self.looks > backend.spec.num_layers + 1

        cache = backend.new_cache()
        with pytest.raises(Cancelled):
            backend.forward(ids, cache, cancel=SetAfter())
        assert cache.length == PREFILL_BLOCK
        continued = backend.forward(ids[PREFILL_BLOCK:], cache)
        torch.testing.assert_close(
            continued, backend.forward(ids, backend.new_cache()), atol=TOLERANCE, rtol=0.0
        )


class _LargestTensor(TorchDispatchMode):
    """Watches every operation and remembers the most elements that a new tensor had."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


@pytest.mark.parametrize("name", ["tiny-llama-rope3", "tiny-mistral-sw"])
def test_a_long_prompt_makes_no_matrix_of_its_length_squared(
    name: str, load_backend: LoadBackend, some_ids: SomeIds
) -> None:
    backend, ids = load_backend(name), some_ids(4000)
    with _LargestTensor() as largest:
        whole = backend.forward(ids, backend.new_cache())
    assert 0 < largest.elements < 4000 * 4000 / 16
    assert whole.isfinite().all()


@pytest.fixture
def read_model(given_tensors: Any) -> Callable[[str], Any]:
    def read(name: str) -> Any:
        """(folder, tensors by canonical name) of a tiny checkpoint."""
        folder = open_model(TINY_MODELS / name)
        try:
            return folder, {source: folder.tensors.read(source) for source in folder.tensors.tensors()}
        finally:
            folder.tensors.close()

    return read


def test_tied_embeddings_equal_an_untied_copy(
    read_model: Callable[[str], Any], given_tensors: Any, some_ids: SomeIds
) -> None:
    folder, tensors = read_model("tiny-qwen3")
    assert folder.spec.tied_embeddings
    tied = CpuBackend.load(folder.spec, folder.parameters, given_tensors(tensors))
    embed = next(parameter for parameter in folder.parameters if parameter.name == "embed")
    head = Parameter("head", embed.shape, (replace(embed.pieces[0], source="lm_head.weight"),))
    tensors["lm_head.weight"] = tensors[embed.pieces[0].source]
    untied = CpuBackend.load(
        replace(folder.spec, tied_embeddings=False), (*folder.parameters, head), given_tensors(tensors)
    )
    ids = some_ids(40)
    assert torch.equal(untied.forward(ids, untied.new_cache()), tied.forward(ids, tied.new_cache()))
    assert untied.weight_bytes - tied.weight_bytes == 4 * head.num_elements


@pytest.mark.parametrize("name", ["tiny-qwen2", "tiny-qwen3moe-mix"])
def test_weights_kept_in_16_bits_give_the_same_answers(
    name: str, load_backend: LoadBackend, some_ids: SomeIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide, ids = load_backend(name), some_ids(100)
    monkeypatch.setattr("engine.cpu.weights.available_bytes", lambda: 2**28 + wide.weight_bytes - 1)
    folder = open_model(TINY_MODELS / name)
    narrow = CpuBackend.load(folder.spec, folder.parameters, folder.tensors)
    folder.tensors.close()
    assert [notice.code for notice in narrow.notices] == ["weights-not-widened"]
    assert narrow.weight_bytes < 0.6 * wide.weight_bytes
    for cuts in ([], list(range(1, 100))):
        expected = run_in_pieces(wide, ids, cuts)
        torch.testing.assert_close(run_in_pieces(narrow, ids, cuts), expected, atol=TOLERANCE, rtol=0.0)


def test_caches_are_of_this_backends_kind(load_backend: LoadBackend) -> None:
    cache = load_backend("tiny-qwen2").new_cache()
    assert isinstance(cache, PagedCache)
    assert cache.length == 0
    assert isinstance(cache.pool, CpuPagePool)
    assert cache.pool.num_pages == 0
