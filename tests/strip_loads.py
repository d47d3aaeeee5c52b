"""Loads of tiny models as strips, as tests watch and cancel them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import torch

from engine.checkpoints.model_folder import ModelFolder
from engine.cpu.backend import CpuBackend
from engine.models.spec import (
    AttentionSpec,
    DenseSpec,
    LayerSpec,
    ModelSpec,
    Parameter,
    RopeSpec,
)
from engine.weights.strip_cache import StripCache
from engine.weights.strip_file import StripKey
from engine.weights.strip_shelf import StripShelf


def load(folder: ModelFolder, bits: int, ids: Sequence[int] = (), **options) -> CpuBackend:  # type: ignore[no-untyped-def]
    return CpuBackend.load(
        folder.spec,
        folder.parameters,
        options.pop("source", folder.tensors),
        weights="q8" if bits == 8 else "q4",
        calibration_ids=ids,
        **options,
    )


def logits(backend: CpuBackend, ids: Sequence[int]) -> torch.Tensor:
    return backend.forward(ids, backend.new_cache(), all_logits=True)


def shelf_in(root: Path) -> StripShelf:
    key = StripKey(model="model", bits=8, group=32, quantiser_version=1)
    return StripShelf(StripCache(root, 10**9), key, lambda: "model")


def one_layer_spec(*, vocab_size: int, hidden_size: int = 64, tied: bool = False) -> ModelSpec:
    attention = AttentionSpec(2, 1, 32, scale=0.2, rope=RopeSpec(1e4, 32))
    layer = LayerSpec(attention, DenseSpec(96))
    return ModelSpec("X", "Llama", hidden_size, vocab_size, 128, 1e-5, (layer,), tied)


def random_tensors(parameters: Sequence[Parameter]) -> dict[str, torch.Tensor]:
    return {piece.source: torch.randn(piece.shape) / 8 for each in parameters for piece in each.pieces}


class CancelledAt(threading.Event):
    def __init__(self, look: int) -> None:
        super().__init__()
        self.looks = 0
        self._look = look

    def is_set(self) -> bool:
        self.looks += 1
        return self.looks >= self._look
