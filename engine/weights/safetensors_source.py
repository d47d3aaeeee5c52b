"""Tensors of one or several safetensors files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.checkpoints.foreign_files import shown
from engine.errors import ModelFileError
from engine.weights.names import canonical_name, left_out_kind
from engine.weights.safetensors_header import StoredTensor, read_header
from engine.weights.source import TensorInfo
from engine.weights.weight_file import OnBytes, WeightFile, new_buffer, unwatched

if TYPE_CHECKING:
    import torch

READABLE_DTYPES = frozenset({"BF16", "F16", "F32"})  # plain numbers, which need nothing else to be understood

# The names that torch has for types, also for parts of matrices that were quantised by others.
_TORCH_TYPES: Mapping[str, str] = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip


@dataclass(frozen=True)
class _Entry:
    file: WeightFile
    tensor: StoredTensor
    info: TensorInfo


class SafetensorsSource:
    """All tensors of a model folder. `left_out` counts by kind those that a text model has no use for."""

    def __init__(self, paths: Iterable[Path], *, placement: Mapping[str, str] | None = None) -> None:
        """Opens the files and checks their headers. `placement` is the index's map of tensor to file name."""
        self.left_out: Counter[str] = Counter()
        self.file_bytes = 0
        self._files: list[WeightFile] = []
        self._entries: dict[str, _Entry] = {}
        owners: dict[str, str] = {}
        try:
            for path in paths:
                self._add_file(path, owners)
            if placement is not None:
                _check_placement(placement, owners)
        except BaseException:
            self.close()
            raise

    def tensors(self) -> Mapping[str, TensorInfo]:
        return {name: entry.info for name, entry in self._entries.items()}

    def files(self) -> Sequence[WeightFile]:
        return sorted(self._files, key=lambda file: file.path.name)

    def read(self, name: str, on_bytes: OnBytes = unwatched) -> torch.Tensor:
        """Of any type that torch has."""
        import torch

        entry = self._entries[name]
        dtype = getattr(torch, _TORCH_TYPES[entry.tensor.dtype])
        buffer = new_buffer(entry.tensor.num_bytes, name)
        entry.file.read_tensor_bytes(buffer, entry.tensor.start, on_bytes)
        return buffer.view(dtype).view(entry.tensor.shape)

    def read_raw(self, name: str) -> bytes:
        """The bytes of a small tensor, as they are in the file. Needs no torch."""
        entry = self._entries[name]
        raw = bytearray(entry.tensor.num_bytes)
        entry.file.read_into(memoryview(raw), entry.tensor.start)
        return bytes(raw)

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _add_file(self, path: Path, owners: dict[str, str]) -> None:
        file = WeightFile(path)
        self._files.append(file)
        for stored_name, tensor in read_header(file.handle, path).items():
            if stored_name in owners:
                raise ModelFileError(
                    f"{shown(stored_name)} is in both {shown(owners[stored_name])} and {shown(path.name)}.",
                    "Remove the files that don't belong to this model, or download it again.",
                )
            owners[stored_name] = path.name
            kind = left_out_kind(stored_name)
            if kind is not None:
                self.left_out[kind] += 1
                continue
            self._add_tensor(file, stored_name, tensor)
        self.file_bytes += file.size

    def _add_tensor(self, file: WeightFile, stored_name: str, tensor: StoredTensor) -> None:
        name = canonical_name(stored_name)
        other = self._entries.get(name)
        if other is not None:
            raise ModelFileError(
                f"{shown(other.info.stored_name)} and {shown(stored_name)} are one tensor under two names.",
                "Download the model again.",
            )
        info = TensorInfo(tensor.shape, tensor.dtype, tensor.num_bytes, stored_name)
        self._entries[name] = _Entry(file, tensor, info)


def _check_placement(placement: Mapping[str, str], owners: Mapping[str, str]) -> None:
    """The index and the headers must say the same of every tensor."""
    for name, file in placement.items():
        if owners.get(name) != file:
            found = f"{shown(owners[name])} holds it" if name in owners else "no file holds it"
            raise ModelFileError(
                f"model.safetensors.index.json says that {shown(name)} is in {shown(file)}, but {found}.",
                "Download the model again; its files come from different versions.",
            )
    extra = [name for name in owners if name not in placement]
    if extra:
        raise ModelFileError(
            f"model.safetensors.index.json doesn't name {shown(extra[0])} of {shown(owners[extra[0]])}.",
            "Download the model again; its files come from different versions.",
        )
