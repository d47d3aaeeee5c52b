"""A model of which no more is known than its configuration: enough to have one of its shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.checkpoints.foreign_config import ConfigReader
from engine.checkpoints.foreign_files import path_kind, read_json_object, shown
from engine.checkpoints.model_folder import model_name, open_model
from engine.models.registry import find_text_model
from engine.models.spec import ModelSpec, Parameter
from engine.notices import Notice
from engine.weights.source import TensorInfo

_CONFIG = "config.json"
_MAX_BYTES = 16 * 2**20
_NUMBER_BYTES = 2  # of bfloat16, in which models are published


@dataclass(frozen=True)
class Configuration:
    """notices: what had to be assumed."""

    name: str
    spec: ModelSpec
    parameters: tuple[Parameter, ...]
    notices: tuple[Notice, ...] = ()

    def tensors(self) -> Mapping[str, TensorInfo]:
        """As if files held it: every tensor as bfloat16."""
        return {
            piece.source: _bfloat16(piece.source, piece.shape)
            for parameter in self.parameters
            for piece in parameter.pieces
        }


def is_configuration(path: Path) -> bool:
    """Whether a path names a configuration by itself, and no model."""
    return path.suffix.lower() == ".json" and path_kind(path) != "folder"


def read_configuration(path: Path) -> Configuration:
    """Of a file like config.json, of a folder with one, be there weights or not, or of a GGUF file. Raises
    EngineError.
    """
    kind = path_kind(path)
    if kind == "folder" and path_kind(path / _CONFIG) == "file":
        return _read(path / _CONFIG, model_name(path))
    if kind == "folder" or not (kind == "" or path.suffix.lower() == ".json"):
        return _of_model(path)
    return _read(path, shown(path.parent.name if path.name == _CONFIG else path.stem))


def _read(path: Path, name: str) -> Configuration:
    return read_text_model(read_json_object(path, limit=_MAX_BYTES), shown(path.name), name=name)


def read_text_model(values: Mapping[str, Any], file: str, *, name: str) -> Configuration:
    """values: of the file. Raises EngineError."""
    reader = ConfigReader(values, file)
    model = find_text_model(reader)
    spec = model.read_spec(stores_head=False)
    return Configuration(name, spec, model.family.parameters(spec, {}), tuple(reader.notices))


def _of_model(path: Path) -> Configuration:
    folder = open_model(path)
    folder.tensors.close()
    return Configuration(folder.name, folder.spec, folder.parameters, folder.notices)


def _bfloat16(name: str, shape: tuple[int, ...]) -> TensorInfo:
    info = TensorInfo(shape, "BF16", 0, name)
    return TensorInfo(shape, "BF16", _NUMBER_BYTES * info.num_elements, name)
