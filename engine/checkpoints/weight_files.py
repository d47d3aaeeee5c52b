"""Which files of a folder hold the weights, and what to say when none do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.checkpoints.foreign_files import file_error, path_kind, read_json_object, shown, some_names
from engine.errors import EngineError, ModelFileError, UnsupportedModelError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_ENTRIES = 10_000  # names looked at in one folder
MAX_SHARDS = 1000

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True)
class WeightFiles:
    """`placement` is the index's map of tensor name to file name; None where there is no index."""

    paths: tuple[Path, ...]
    placement: Mapping[str, str] | None = None


def folder_names(folder: Path) -> list[str]:
    """The names in a folder, sorted. Raises ModelFileError when it can't be listed."""
    names: list[str] = []
    try:
        for entry in folder.iterdir():
            names.append(entry.name)
            if len(names) >= MAX_ENTRIES:
                break
    except OSError as error:
        raise file_error(folder, error) from error
    return sorted(names)


def find_weights(folder: Path, names: Iterable[str]) -> WeightFiles:
    """`model.safetensors`, or the shards that the index names, or the only safetensors file there is."""
    present = set(names)
    if SINGLE in present:
        return WeightFiles((folder / SINGLE,))
    if INDEX in present:
        return _indexed(folder)
    candidates = sorted(name for name in present if name.endswith(".safetensors"))
    adapters = [name for name in candidates if name.startswith("adapter_")]
    models = [name for name in candidates if name not in adapters]
    if len(models) == 1:
        return WeightFiles((folder / models[0],))
    if models:
        raise ModelFileError(
            f"{shown(folder)} holds {len(models)} safetensors files ({some_names(models)}) but no {INDEX}.",
            f"Download {INDEX} into that folder.",
        )
    raise _no_weights(folder, present, adapters)


def _indexed(folder: Path) -> WeightFiles:
    index = read_json_object(folder / INDEX)
    placement = index.get("weight_map")
    if not isinstance(placement, dict) or not placement:
        raise ModelFileError(f"{INDEX} has no weight_map.", "Download that file again.")
    for name, file in placement.items():
        if not isinstance(file, str) or not file.endswith(".safetensors") or not _is_plain(file):
            raise ModelFileError(
                f"{INDEX} puts {shown(name)} into {shown(file)!r}, no safetensors file of this folder.",
                "Download that file again.",
            )
    files = sorted(set(placement.values()))
    if len(files) > MAX_SHARDS:
        raise ModelFileError(f"{INDEX} names {len(files):,} files, too many.", "Download that file again.")
    missing = [file for file in files if path_kind(folder / file) == ""]
    if missing:
        raise ModelFileError(
            f"1 of {len(files)} weight files is missing ({some_names(missing)})."
            if len(missing) == 1
            else f"{len(missing)} of {len(files)} weight files are missing ({some_names(missing)}).",
            "Download what is missing into that folder.",
        )
    return WeightFiles(tuple(folder / file for file in files), placement)


def _is_plain(name: str) -> bool:
    """A name of this folder: an index must not lead to files elsewhere."""
    return name not in ("", ".", "..") and not set(name) & set("/\\:\0")


def _no_weights(folder: Path, present: set[str], adapters: list[str]) -> EngineError:
    if adapters:
        return UnsupportedModelError(
            f"{shown(folder)} holds an adapter ({shown(adapters[0])}), not a whole model.",
            "Merge it into its base model first, and pick the merged folder.",
        )
    pickles = sorted(name for name in present if name.lower().endswith(_PICKLES))
    if pickles:
        return UnsupportedModelError(
            f"{shown(folder)} has its weights only as Python pickles ({some_names(pickles)}), "
            "which are refused: opening one can run any program.",
            "Download the model's safetensors files, or convert it with transformers (save_pretrained).",
        )
    return ModelFileError(
        f"{shown(folder)} has no weights: neither {SINGLE} nor {INDEX} is there.",
        "Download the weights into that folder.",
    )
