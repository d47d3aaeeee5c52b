"""Opens a GGUF file: one file with everything that a Hugging Face folder spreads over several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.checkpoints.foreign_config import ConfigReader
from engine.checkpoints.generation_config import read_eos_ids
from engine.checkpoints.gguf_config import GgufConfig, gguf_architecture, gguf_config
from engine.checkpoints.model_parts import ModelParts, Problems
from engine.models.registry import find_text_model
from engine.models.spec import ModelSpec
from engine.tokenizers.gguf_tokenizer import GgufTokenizerData
from engine.weights.checking import HEAD, check_tensors
from engine.weights.gguf_package import readable_dtypes
from engine.weights.gguf_source import GgufSource


def read_gguf(path: Path, parts: ModelParts, problems: Problems) -> None:
    """Fills `parts` with what the file holds."""
    source: GgufSource | None = None
    with problems:
        parts.tensors = source = GgufSource(path)
        parts.file_bytes = source.file_bytes
    if source is None:
        return
    metadata = source.header.metadata
    config: GgufConfig | None = None
    with problems:
        parts.architecture = str(metadata.get("general.architecture", ""))
        parts.architecture = gguf_architecture(source, path.name)
        config = gguf_config(source, path.name, parts.notices)
    if config is not None:
        with problems:
            _read_model(source, config, path.name, parts)
    with problems:
        parts.tokenizer = GgufTokenizerData.from_metadata(metadata)
    with problems:
        parts.chat_template = _chat_template(metadata, path.name)
    with problems:
        parts.eos_token_ids = _eos_ids(metadata, path.name)


def _read_model(source: GgufSource, config: GgufConfig, file: str, parts: ModelParts) -> None:
    """The spec, and the parameters checked against what the file holds."""
    source.set_interleaved_heads(config.interleaved_heads)
    stored = source.tensors()
    text_model = find_text_model(ConfigReader(config.values, file, notices=parts.notices))
    spec = text_model.read_spec(stores_head=HEAD in stored)
    parts.spec = _with_frequency_factors(spec, config.frequency_factors)
    parts.parameters = text_model.family.parameters(parts.spec, stored)
    check_tensors(parts.parameters, stored, readable=readable_dtypes(), config_file="its own settings")


def _with_frequency_factors(spec: ModelSpec, factors: tuple[float, ...]) -> ModelSpec:
    if not factors:
        return spec
    layers = []
    for layer in spec.layers:
        rope = replace(layer.attention.rope, frequency_factors=factors)
        layers.append(replace(layer, attention=replace(layer.attention, rope=rope)))
    return replace(spec, layers=tuple(layers))


def _chat_template(metadata: Mapping[str, Any], file: str) -> str | None:
    settings = ConfigReader(metadata, file)
    for key in ("tokenizer.chat_template", "tokenizer.chat_template.default"):
        if key in settings:
            return settings.text(key)
    return None


def _eos_ids(metadata: Mapping[str, Any], file: str) -> frozenset[int]:
    return read_eos_ids(ConfigReader({"eos_token_id": metadata.get("tokenizer.ggml.eos_token_id")}, file))
