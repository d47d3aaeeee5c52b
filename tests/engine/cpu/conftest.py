"""Backends of the tiny checkpoints, and tensors that are given instead of read."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest
import torch
from model_files import TINY_MODELS

from engine.checkpoints.model_folder import open_model
from engine.cpu.backend import CpuBackend
from engine.weights.source import TensorInfo
from engine.weights.weight_file import OnBytes, unwatched

_DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


class GivenTensors:
    """A tensor source over tensors in memory; `reads` lists what was asked for."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self.reads: list[str] = []

    def tensors(self) -> dict[str, TensorInfo]:
        return {
            name: TensorInfo(tuple(tensor.shape), _DTYPE_NAMES[tensor.dtype], tensor.nbytes, name)
            for name, tensor in self._tensors.items()
        }

    def read(self, name: str, on_bytes: OnBytes = unwatched) -> torch.Tensor:
        self.reads.append(name)
        on_bytes(self._tensors[name].nbytes)
        return self._tensors[name].clone()

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    torch.manual_seed(20240601)


@pytest.fixture(scope="session")
def given_tensors() -> type[GivenTensors]:
    return GivenTensors


@pytest.fixture(scope="session")
def load_backend() -> Callable[[str], CpuBackend]:
    """Loads a tiny checkpoint by name; each once for all tests. A backend keeps nothing between calls."""
    loaded: dict[str, CpuBackend] = {}

    def load(name: str) -> CpuBackend:
        if name not in loaded:
            folder = open_model(TINY_MODELS / name)
            try:
                loaded[name] = CpuBackend.load(folder.spec, folder.parameters, folder.tensors)
            finally:
                folder.tensors.close()
        return loaded[name]

    return load


@pytest.fixture(scope="session")
def some_ids() -> Callable[[int], list[int]]:
    """That many ids below 480, always the same: the tiny vocabularies end in control tokens."""

    def ids(count: int) -> list[int]:
        return random.Random(count).choices(range(480), k=count)

    return ids
