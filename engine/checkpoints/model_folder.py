"""From a path to everything that is known of a model before its weights are read. Nothing here imports
torch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from engine.checkpoints.foreign_files import path_kind, shown, some_names
from engine.checkpoints.model_parts import ModelParts, Problems
from engine.checkpoints.weight_files import folder_names
from engine.errors import ModelFileError
from engine.generation import SamplingParams
from engine.models.spec import ModelSpec, Parameter
from engine.notices import Notice
from engine.weights.source import TensorSource

if TYPE_CHECKING:
    from engine.tokenizers.tokenizer import TokenizerSource

_MAX_SEARCH_FOLDERS = 200  # looked at to find where inside a picked folder the model is
_MAX_SEARCH_DEPTH = 4


@dataclass(frozen=True)
class ModelFolder:
    """An open model: `tensors` holds open files, so close it (`tensors.close()`) when the weights are
    loaded.
    """

    path: Path
    name: str
    kind: Literal["safetensors", "gguf"]
    spec: ModelSpec
    parameters: tuple[Parameter, ...]
    tensors: TensorSource
    tokenizer: TokenizerSource
    chat_template: str | None
    eos_token_ids: frozenset[int]  # of config.json and generation_config.json; the tokenizer adds its own
    sampling_defaults: SamplingParams
    notices: tuple[Notice, ...] = ()


def open_model(path: Path) -> ModelFolder:
    """Opens a Hugging Face folder or a GGUF file. Raises EngineError; reads headers only."""
    parts = read_parts(path, Problems(collect=False))
    assert parts.spec is not None
    assert parts.tensors is not None
    assert parts.tokenizer is not None
    return ModelFolder(
        path=parts.path,
        name=parts.name,
        kind=parts.kind,
        spec=parts.spec,
        parameters=parts.parameters,
        tensors=parts.tensors,
        tokenizer=parts.tokenizer,
        chat_template=parts.chat_template,
        eos_token_ids=parts.eos_token_ids,
        sampling_defaults=parts.sampling_defaults,
        notices=tuple(parts.notices),
    )


def read_parts(path: Path, problems: Problems) -> ModelParts:
    """All that can be found out; whoever gets the result closes it. Nothing stays open when this raises."""
    parts = ModelParts(path=path, name=model_name(path), kind="safetensors")
    try:
        with problems:
            _read(path, parts, problems)
    except BaseException:
        parts.close()
        raise
    return parts


def model_name(path: Path) -> str:
    """What people call the model: the folder's name, or the repository's in a Hugging Face download cache."""
    try:
        path = path.resolve()
    except (
        OSError,
        RuntimeError,
        ValueError,
    ):  # a loop of links, or no name at all: the text as given will do
        pass
    for parent in path.parents:
        if parent.name == "snapshots" and parent.parent.name.startswith("models--"):
            return shown(parent.parent.name.split("--")[-1])
    return shown(path.stem if path.suffix.lower() == ".gguf" else path.name)


def _read(path: Path, parts: ModelParts, problems: Problems) -> None:
    kind = path_kind(path)
    if kind == "":
        raise ModelFileError(f"{shown(path)} does not exist.", "Check the path, or pick the model again.")
    if kind == "folder":
        _read_folder(path, parts, problems)
    elif kind == "file" and _is_gguf(path):
        _read_gguf(path, parts, problems)
    else:
        raise _not_a_model(path)


def _read_folder(folder: Path, parts: ModelParts, problems: Problems) -> None:
    from engine.checkpoints.huggingface_folder import CONFIG, read_folder

    names = folder_names(folder)
    if CONFIG in names:
        read_folder(folder, names, parts, problems)
        return
    ggufs = [name for name in names if name.lower().endswith(".gguf")]
    if len(ggufs) == 1:
        _read_gguf(folder / ggufs[0], parts, problems)
        return
    if ggufs:
        raise ModelFileError(
            f"{shown(folder)} holds {len(ggufs)} GGUF files ({some_names(ggufs)}).", "Pick one of them."
        )
    if not names:
        raise ModelFileError(f"{shown(folder)} is empty.", "Pick a folder with a model in it.")
    inner = _model_inside(folder)
    if inner is not None:
        raise ModelFileError(
            f"{shown(folder)} is not a model folder itself.", f"Pick {shown(inner)} inside it."
        )
    raise ModelFileError(
        f"{shown(folder)} is not a model folder: it has no {CONFIG}.",
        "Pick the folder that holds config.json and the weights, or a GGUF file.",
    )


def _read_gguf(path: Path, parts: ModelParts, problems: Problems) -> None:
    from engine.checkpoints.gguf_file import read_gguf

    parts.path, parts.name, parts.kind = path, model_name(path), "gguf"
    read_gguf(path, parts, problems)


def _is_gguf(path: Path) -> bool:
    from engine.checkpoints.foreign_files import open_binary
    from engine.weights.gguf_header import MAGIC

    if path.suffix.lower() == ".gguf":
        return True
    with open_binary(path) as handle:
        return handle.read(len(MAGIC)) == MAGIC


def _not_a_model(path: Path) -> ModelFileError:
    if path.suffix == ".safetensors" or path.name.endswith(".json"):
        return ModelFileError(
            f"{shown(path)} is one file of a model folder.", f"Pick the folder {shown(path.parent)} instead."
        )
    return ModelFileError(
        f"{shown(path)} is neither a model folder nor a GGUF file.", "Pick a model folder or a GGUF file."
    )


def _model_inside(folder: Path) -> Path | None:
    """The first folder below that has a config.json, as download caches have it; looks at a few folders
    only.
    """
    level = [folder]
    looked_at = 0
    for _ in range(_MAX_SEARCH_DEPTH):
        following: list[Path] = []
        for parent in level:
            for child in _subfolders(parent):
                looked_at += 1
                if looked_at > _MAX_SEARCH_FOLDERS:
                    return None
                if os.path.isfile(child / "config.json"):  # False, too, where it may not be looked at
                    return child
                following.append(child)
        level = following
    return None


def _subfolders(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if os.path.isdir(p) and not os.path.islink(p))
    except OSError:  # only a search for a better hint: what can't be looked into gives none
        return []
