"""The header of a safetensors file, read without mapping the file and checked to the last byte.

Layout: 8 bytes of length (little-endian), that many bytes of JSON, then the tensors end to end. What is
accepted is at most what the reference implementation accepts: offsets start at 0, leave no gap, never
overlap and end with the file. https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from engine.checkpoints.foreign_files import file_error, parse_json_object, shown
from engine.errors import ModelFileError

MAX_HEADER_BYTES = 100_000_000  # the reference implementation's limit
MAX_AXES = 16

# Bits a number, for every type that the format knows.
DTYPE_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


@dataclass(frozen=True)
class StoredTensor:
    """`start` is the offset of the first byte from the start of the file."""

    shape: tuple[int, ...]
    dtype: str
    start: int
    num_bytes: int


def read_header(handle: io.FileIO, path: Path) -> Mapping[str, StoredTensor]:
    """Every tensor of the file. Raises ModelFileError with one sentence that names the file."""
    try:
        file_size = os.fstat(handle.fileno()).st_size
        handle.seek(0)
        length_bytes = handle.read(8)
        if len(length_bytes) < 8:
            raise _damaged(path, f"it has only {file_size} bytes" if file_size else "it is empty")
        header_size = int.from_bytes(length_bytes, "little")
        if header_size > file_size - 8:
            raise _damaged(path, f"its header claims {header_size:,} bytes, more than the whole file has")
        if header_size > MAX_HEADER_BYTES:
            raise _damaged(path, f"its header claims {header_size:,} bytes, more than the format allows")
        raw = handle.read(header_size)
    except OSError as error:
        raise file_error(path, error) from error
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _damaged(path, "its header is not text") from error
    if not text.startswith("{"):
        raise _damaged(path, "its header is not a JSON object")
    entries = parse_json_object(text, f"The header of {path.name}")
    entries.pop("__metadata__", None)
    return _checked(entries, path, data_start=8 + header_size, file_size=file_size)


def _checked(
    entries: Mapping[str, Any], path: Path, *, data_start: int, file_size: int
) -> Mapping[str, StoredTensor]:
    """Each entry by itself, then all together: they must fill the rest of the file exactly."""
    tensors = {name: _entry(name, entry, path, data_start) for name, entry in entries.items()}
    expected = data_start
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].num_bytes)):
        if tensor.start < expected:
            raise _damaged(path, f"{shown(name)} overlaps another tensor")
        if tensor.start > expected:
            raise _damaged(path, f"there is a gap of {tensor.start - expected:,} bytes before {shown(name)}")
        expected = tensor.start + tensor.num_bytes
    if expected > file_size:
        raise _damaged(path, f"it ends {expected - file_size:,} bytes too early")
    if expected < file_size:
        raise _damaged(path, f"{file_size - expected:,} bytes at its end belong to no tensor")
    return tensors


def _entry(name: str, entry: object, path: Path, data_start: int) -> StoredTensor:
    what = f"the header entry of {shown(name)}"
    if not isinstance(entry, dict):
        raise _damaged(path, f"{what} is not an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _damaged(path, f"{what} has the unknown type {shown(dtype, 40)!r}")
    if not _are_sizes(shape) or len(shape) > MAX_AXES:
        raise _damaged(path, f"{what} has no valid shape")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[1] < offsets[0]:
        raise _damaged(path, f"{what} has no valid offsets")
    num_bits = math.prod(shape) * DTYPE_BITS[dtype]
    num_bytes = offsets[1] - offsets[0]
    if num_bits != num_bytes * 8:
        raise _damaged(
            path, f"{what} gives it {num_bytes:,} bytes, but its shape and type need {num_bits / 8:,.0f}"
        )
    return StoredTensor(tuple(shape), dtype, data_start + offsets[0], num_bytes)


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    """Whether it is a list of numbers that a 64-bit size can hold."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _damaged(path: Path, why: str) -> ModelFileError:
    return ModelFileError(
        f"{shown(path.name)} is damaged: {why}.",
        "The download was probably cut short; download that file again.",
    )
