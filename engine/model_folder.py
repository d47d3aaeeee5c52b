"""From a path to everything that is known of a model before its weights are read. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from engine.generation import SamplingParams
from engine.models.spec import ModelSpec, Parameter
from engine.notices import Notice
from engine.weights.source import TensorSource

if TYPE_CHECKING:
    from engine.tokenizer import TokenizerSource


@dataclass(frozen=True)
class ModelFolder:
    """An open model: `tensors` holds open files, so close it (`tensors.close()`) when the weights are loaded."""

    path: Path
    name: str
    kind: Literal["safetensors", "gguf"]
    spec: ModelSpec
    parameters: tuple[Parameter, ...]
    tensors: TensorSource
    tokenizer: TokenizerSource
    chat_template: str | None
    eos_token_ids: frozenset[int]          # of config.json and generation_config.json; the tokenizer adds its own
    sampling_defaults: SamplingParams
    notices: tuple[Notice, ...] = ()
