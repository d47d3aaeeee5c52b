"""Makes model folders and files for tests out of the tiny checkpoints in tests/models."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TINY_MODELS = Path(__file__).resolve().parent / "models"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class RawTensor:
    """A tensor as its bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


Tensors = dict[str, RawTensor]


def copy_model(name: str, target: Path) -> Path:
    """A copy that a test may damage."""
    shutil.copytree(TINY_MODELS / name, target)
    (target / "expected.json").unlink()
    return target


def edit_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    values = json.loads(path.read_text(encoding="utf-8"))
    change(values)
    path.write_text(json.dumps(values), encoding="utf-8")


def set_config(folder: Path, **values: Any) -> Path:
    """Sets keys of config.json; `None` as a value writes null, `...` removes the key."""

    def change(config: dict[str, Any]) -> None:
        for key, value in values.items():
            if value is ...:
                config.pop(key, None)
            else:
                config[key] = value

    edit_json(folder / "config.json", change)
    return folder


def read_tensors(path: Path) -> Tensors:
    raw = path.read_bytes()
    start = 8 + struct.unpack("<Q", raw[:8])[0]
    entries = json.loads(raw[8:start])
    entries.pop("__metadata__", None)
    return {
        name: RawTensor(
            entry["dtype"],
            tuple(entry["shape"]),
            raw[slice(*(start + offset for offset in entry["data_offsets"]))],
        )
        for name, entry in entries.items()
    }


def write_tensors(path: Path, tensors: Mapping[str, RawTensor]) -> None:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, tensor in tensors.items():
        end = position + len(tensor.data)
        entries[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [position, end]}
        position = end
    write_raw_safetensors(path, entries, b"".join(tensor.data for tensor in tensors.values()))


def write_raw_safetensors(path: Path, entries: Any, data: bytes, *, header_size: int | None = None) -> None:
    """A file with whatever header is wanted, and a length field that may lie."""
    header = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header) if header_size is None else header_size) + header + data)


def edit_tensors(folder: Path, change: Callable[[Tensors], None]) -> Path:
    tensors = read_tensors(folder / WEIGHTS)
    change(tensors)
    write_tensors(folder / WEIGHTS, tensors)
    return folder


def rename_tensors(folder: Path, rename: Callable[[str], str]) -> Path:
    tensors = read_tensors(folder / WEIGHTS)
    write_tensors(folder / WEIGHTS, {rename(name): tensor for name, tensor in tensors.items()})
    return folder


def split_into_shards(folder: Path, count: int = 2) -> list[Path]:
    """Replaces the weights of a folder by `count` shards and an index."""
    tensors = read_tensors(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    paths = [folder / f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    placement = {name: paths[i * count // len(tensors)].name for i, name in enumerate(tensors)}
    for path in paths:
        write_tensors(
            path, {name: tensor for name, tensor in tensors.items() if placement[name] == path.name}
        )
    index = {"metadata": {"total_size": sum(len(t.data) for t in tensors.values())}, "weight_map": placement}
    (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")
    return paths
