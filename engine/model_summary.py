"""What a loaded model is, for people and programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from engine.config import WeightFormat
from engine.generation import SamplingParams
from engine.notices import Notice
from engine.weights.sizes import MatrixCounts


@dataclass(frozen=True)
class ModelSummary:
    """What a window shows and a program asks for, without the engine."""

    path: Path
    name: str
    family: str
    architecture: str
    kind: Literal["safetensors", "gguf"]
    parameters: int  # numbers in all weights
    weight_bytes: int  # of memory that the weights take
    context_length: int  # tokens, prompt and answer together
    layers: int
    device: str
    device_description: str
    sampling_defaults: SamplingParams
    notices: tuple[Notice, ...] = field(default=())
    weights: WeightFormat = "native"
    matrices: MatrixCounts | None = None  # in which form they are held; None: all as stored
