"""Products whose rows depend on what is around them are found out, and prompts still give the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from engine.cpu.backend import PREFILL_BLOCK, CpuBackend
from engine.cpu.matrices import Matrix
from engine.cpu.model import DenseWeights, LayerWeights, ModelWeights
from engine.cpu.row_trial import RowShapes, try_rows
from engine.kv_geometry import PAGE


class Shifting:
    """As `matrix`, but results are off by what `how` makes of the rows."""

    num_bytes = 0

    def __init__(self, matrix: Matrix, how: Callable[[int], torch.Tensor]) -> None:
        self._matrix, self._how = matrix, how

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._matrix(x) + self._how(len(x))


def by_count(count: int) -> torch.Tensor:
    """The library sums in another order where there are many rows."""
    return torch.tensor(1e-3 if count > PAGE else 0.0)


def by_place(count: int) -> torch.Tensor:
    """The library has another method for the last rows."""
    return torch.arange(count)[:, None] * 1e-3


def changed(backend: CpuBackend, how: Callable[[int], torch.Tensor]) -> ModelWeights:
    """The weights with every feed-forward block's last product shifting."""
    layers = []
    for layer in backend.weights.layers:
        block = layer.feed_forward
        down = (
            Shifting(block.down, how)
            if isinstance(block, DenseWeights)
            else [Shifting(each, how) for each in block.down]
        )
        layers.append(replace(layer, feed_forward=replace(block, down=down)))  # type: ignore[arg-type]
    return replace(backend.weights, layers=tuple(layers))


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-qwen3moe-mix"])
def test_products_here_are_alike(name: str, load_backend: Callable[[str], CpuBackend]) -> None:
    found = try_rows(load_backend(name).weights.layers, PREFILL_BLOCK)
    assert found.block == PREFILL_BLOCK
    assert found.expert > 1


def test_experts_whose_rows_depend_on_their_place_get_one_row_at_a_time(
    load_backend: Callable[[str], CpuBackend],
) -> None:
    weights = changed(load_backend("tiny-qwen3moe-mix"), by_place)
    assert try_rows(weights.layers, PREFILL_BLOCK).expert == 1


@pytest.mark.parametrize(
    ("name", "how"), [("tiny-qwen3", by_count), ("tiny-qwen3", by_place), ("tiny-qwen3moe-mix", by_place)]
)
def test_prompts_in_pieces_give_the_same_bits_all_the_same(
    name: str,
    how: Callable[[int], torch.Tensor],
    load_backend: Callable[[str], CpuBackend],
    some_ids: Callable[[int], list[int]],
) -> None:
    sound = load_backend(name)
    backend, ids = CpuBackend(sound.spec, changed(sound, how)), some_ids(200)
    assert backend._rows.block == PAGE or backend._rows.expert == 1
    whole = backend.forward(ids, backend.new_cache("int8"), all_logits=True)
    cache = backend.new_cache("int8")
    cache.reserve(200)
    pieces = [
        backend.prefill(ids[a:b], cache.sequence, cache.pool, all_logits=True)
        for a, b in [(0, 30), (30, 31), (31, 128), (128, 200)]
    ]
    assert torch.equal(torch.cat(pieces), whole)


def test_shapes_are_tried_at_the_first_prompt_of_more_than_a_page(
    load_backend: Callable[[str], CpuBackend],
    some_ids: Callable[[int], list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []

    def trying(layers: Sequence[LayerWeights], block: int) -> RowShapes:
        tried.append(block)
        return try_rows(layers, block)

    monkeypatch.setattr("engine.cpu.backend.try_rows", trying)
    sound = load_backend("tiny-qwen3")
    backend = CpuBackend(sound.spec, sound.weights)
    cache = backend.new_cache()
    backend.forward(some_ids(PAGE - 1), cache)
    backend.forward(some_ids(1), cache)
    assert tried == []
    for _ in range(2):
        backend.forward(some_ids(PAGE + 1), cache)
    assert tried == [PREFILL_BLOCK]
