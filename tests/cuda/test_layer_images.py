"""Experts that differ in form are the CPU's: no kernel could find them by their number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.checkpoints.model_folder import open_model
from engine.cpu.backend import CpuBackend
from engine.cpu.matrices import Dense, Joined, Matrix, Widened
from engine.cpu.model import ModelWeights
from engine.cpu.moe import MoeWeights
from engine.cpu.strip_matrix import StripMatrix
from engine.cuda.driver import Address
from engine.cuda.layer_images import layer_images
from engine.errors import UnsupportedModelError
from engine.weights.quantise import quantise

MODEL = Path(__file__).resolve().parents[1] / "models" / "tiny-qwen3moe-mix"


class Nowhere:
    """In the place of an uploader: only norms are uploaded."""

    def tensor(self, tensor: torch.Tensor) -> Address:
        return Address(1)


@pytest.fixture(scope="module")
def weights() -> ModelWeights:
    folder = open_model(MODEL)
    try:
        return CpuBackend.load(folder.spec, folder.parameters, folder.tensors).weights
    finally:
        folder.tensors.close()


def with_experts(weights: ModelWeights, experts: Sequence[Matrix]) -> ModelWeights:
    """As the gates and ups of the first layer that has experts."""
    layers = list(weights.layers)
    index = next(i for i, layer in enumerate(layers) if isinstance(layer.feed_forward, MoeWeights))
    feed_forward = layers[index].feed_forward
    assert isinstance(feed_forward, MoeWeights)
    changed = replace(feed_forward, gate_up=list(experts))
    layers[index] = replace(layers[index], feed_forward=changed)
    return replace(weights, layers=tuple(layers))


ROWS = torch.randn(64, 256, generator=torch.Generator().manual_seed(3))


def strip(bits: Any = 8, group: Any = 32, rows: int = 64) -> StripMatrix:
    return StripMatrix(quantise(ROWS[:rows], bits=bits, group=group))


DIFFERENT: dict[str, Callable[[], tuple[Matrix, Matrix]]] = {
    "bits": lambda: (strip(8), strip(4)),
    "groups": lambda: (strip(4, 32), strip(4, 256)),
    "rows": lambda: (strip(), strip(rows=32)),
    "a strip and numbers": lambda: (strip(), Dense(ROWS)),
    "numbers": lambda: (Dense(ROWS), Widened(ROWS.half())),
    "one piece and two": lambda: (strip(), Joined([strip(rows=32), strip(rows=32)])),
    "pieces": lambda: (
        Joined([strip(rows=32), strip(rows=32)]),
        Joined([strip(4, rows=32), strip(rows=32)]),
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_experts_that_differ_are_refused_as_a_model_that_the_card_has_no_kernels_for(
    weights: ModelWeights, what: str
) -> None:
    one, other = DIFFERENT[what]()
    for experts in ([one, one, other], [other, one, one]):
        with pytest.raises(UnsupportedModelError, match="different ways"):
            layer_images(with_experts(weights, experts), Nowhere())  # type: ignore[arg-type]
    layer_images(with_experts(weights, [one, one]), Nowhere())  # type: ignore[arg-type]
