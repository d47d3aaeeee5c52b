"""Finished strips in one safetensors file, and how it is read: every byte against its checksum.

What a name stands for lies under `<name>/codes`, `<name>/scales` and, where there are any, `<name>/offsets`;
a plain tensor under `<name>/values`. The last tensor, `checksums`, holds CRC-32s as uint32: of the header
with its length, then of each tensor in the order of the data. CRC-32 finds every change of up to 32
neighbouring bits, and zlib's is faster than a disk (about 5 GB/s; BLAKE2b 0.8): these files guard against
decay, not against forgery.

Strips are mapped, so that a load takes no copy of what the system's cache holds anyway. `weight_file` says
why the files of a model are not; these are ours: replaced and removed, but never changed. Before it is given
away each piece is read through a small buffer to check it, so that a disk that fails or a file that was cut
short is an error here, and not the end of the process at the first use of the map. What can't be mapped, is
better not mapped (see `mapped_files`), or would not lie as vectors want it, is read into memory.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.checkpoints.foreign_files import parse_json_object, shown
from engine.errors import ModelFileError
from engine.weights.mapped_files import map_of
from engine.weights.part_file import lock_for_reading
from engine.weights.safetensors_header import StoredTensor, read_header
from engine.weights.strips import Bits, Group, Strip
from engine.weights.weight_file import ALIGNMENT, OnBytes, WeightFile, new_array, unwatched

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    StripParts = Mapping[str, npt.NDArray[np.uint8]]  # flat, by the names of STRIP_PARTS

FORMAT = "kestrel-strips"
FORMAT_VERSION = 1
CHECKSUMS = "checksums"
CHECKSUM_BYTES = 4
STRIP_PARTS = ("codes", "scales", "offsets")
VALUES = "values"

_CHUNK_BYTES = 2**20  # read, then checked, at a time: it has to fit into the processor's cache

# Names of torch's types in the words of safetensors.
DTYPES: Mapping[str, str] = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


class StripFileError(Exception):
    """The file can't be used; the text is a clause that says why. `outdated`: another version wrote it."""

    def __init__(self, why: str, *, outdated: bool = False) -> None:
        super().__init__(why)
        self.outdated = outdated


@dataclass(frozen=True)
class StripKey:
    """What strips were made of, and how. A file is used only where all of it is the same.

    model: see `engine/checkpoints/model_identity.py`. quantiser_version: raised whenever the same
    weights would become other strips. calibration: what the importances came from, "" for none.
    """

    model: str
    bits: Bits
    group: Group
    quantiser_version: int
    calibration: str = ""
    scale_dtype: str = "float16"

    def as_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def metadata_of(key: StripKey) -> dict[str, str]:
    """What the header says of the whole file."""
    return {"format": FORMAT, "version": str(FORMAT_VERSION), "key": key.as_json()}


def in_data_order(entries: Mapping[str, StoredTensor]) -> list[str]:
    """The order of the checksums. Empty tensors come before what starts at the same place, by name."""
    return sorted(entries, key=lambda name: (entries[name].start, entries[name].num_bytes, name))


class StripFile:
    """An open file of strips. What it gives outlives it, and may be asked for by several threads at once.

    Reading raises StripFileError for what is damaged, and OutOfMemoryError. Memory that is mapped may be
    written to: that changes the caller's pages, not the file. As long as any of it is held, so is the lock
    that keeps the file from being removed.
    """

    def __init__(self, path: Path, key: StripKey) -> None:
        """Checks the header, and that the file holds what `key` says."""
        try:
            self._file = WeightFile(path)
        except ModelFileError as error:
            raise StripFileError(_clause(error)) from error
        try:
            lock_for_reading(self._file.handle)
            self._entries, self._checksums = self._read_index(key)
        except ModelFileError as error:
            self.close()
            raise StripFileError(_clause(error)) from error
        except BaseException:
            self.close()
            raise
        self._map = map_of(self._file)
        names = [name.rpartition("/")[::2] for name in in_data_order(self._entries)]
        self.in_order = tuple(name for name, part in names if part == "codes")
        self.strips = frozenset(self.in_order)
        self.tensors = frozenset(name for name, part in names if part == VALUES)

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def num_bytes(self) -> int:
        return self._file.size

    def read_strip(self, name: str) -> Strip:
        """Raises KeyError for a name that is not in `strips`."""
        return self.strip_of(name, self.read_parts(name))

    def read_parts(self, name: str, on_bytes: OnBytes = unwatched) -> StripParts:
        """The bytes of a strip, for which torch need not be there. Raises KeyError."""
        parts = ("codes", "scales", *(["offsets"] if f"{name}/offsets" in self._entries else []))
        return {part: self._read(f"{name}/{part}", on_bytes) for part in parts}

    def strip_of(self, name: str, parts: StripParts) -> Strip:
        """What `read_parts` gave, as a strip in the same memory. The file may be closed by then."""
        codes, scales = (self._as_tensor(f"{name}/{part}", parts[part]) for part in ("codes", "scales"))
        offsets = self._as_tensor(f"{name}/offsets", parts["offsets"]) if "offsets" in parts else None
        try:
            return Strip(*_kind(codes, scales), codes, scales, offsets)
        except ValueError as error:
            raise StripFileError(f"the parts of {shown(name)} don't belong together") from error

    def read_tensor(self, name: str) -> torch.Tensor:
        """Raises KeyError for a name that is not in `tensors`."""
        stored = f"{name}/{VALUES}"
        return self._as_tensor(stored, self._read(stored))

    def close(self) -> None:
        self._map = None  # it ends with the last array in it
        self._file.close()

    def _as_tensor(self, name: str, values: npt.NDArray[np.uint8]) -> torch.Tensor:
        import torch

        entry = self._entries[name]
        return torch.from_numpy(values).view(getattr(torch, DTYPES[entry.dtype])).view(entry.shape)

    def _read(self, name: str, on_bytes: OnBytes = unwatched) -> npt.NDArray[np.uint8]:
        """All bytes, which have the right checksum."""
        entry = self._entries[name]
        mapped = self._mapped(entry)
        buffer = new_array(entry.num_bytes, name) if mapped is None else mapped
        try:
            checksum = self._read_checked(entry, None if mapped is not None else buffer, on_bytes)
        except ModelFileError as error:
            raise StripFileError(_clause(error)) from error
        if checksum != self._checksums[name]:
            raise StripFileError(f"the checksum of {shown(name)} is wrong")
        return buffer

    def _mapped(self, entry: StoredTensor) -> npt.NDArray[np.uint8] | None:
        """Its place in the map; None where it has to be read."""
        import numpy as np

        whole = self._map
        if entry.start % ALIGNMENT or not entry.num_bytes or whole is None:
            return None
        return np.frombuffer(whole, np.uint8, entry.num_bytes, entry.start)

    def _read_checked(
        self, entry: StoredTensor, buffer: npt.NDArray[np.uint8] | None, on_bytes: OnBytes
    ) -> int:
        """The checksum of what the file holds, which is put into the buffer if there is one."""
        view: Any = bytearray(min(entry.num_bytes, _CHUNK_BYTES)) if buffer is None else buffer
        whole = memoryview(view)
        checksum = 0
        for done in range(0, entry.num_bytes, _CHUNK_BYTES):
            size = min(_CHUNK_BYTES, entry.num_bytes - done)
            chunk = whole[:size] if buffer is None else whole[done : done + size]
            self._file.read_into(chunk, entry.start + done)
            checksum = zlib.crc32(chunk, checksum)
            on_bytes(size)
        return checksum

    def _read_index(self, key: StripKey) -> tuple[dict[str, StoredTensor], dict[str, int]]:
        """The tensors and their checksums, when the header's own is right and the file belongs to `key`."""
        entries = dict(read_header(self._file.handle, self.path))
        stored = entries.get(CHECKSUMS)
        header = bytearray(min((entry.start for entry in entries.values()), default=0))
        self._file.read_into(memoryview(header), 0)
        if stored is None:
            raise StripFileError("it is not a file of strips")
        checksums = self._stored_checksums(stored)
        del entries[CHECKSUMS]
        if len(checksums) != len(entries) + 1 or checksums[0] != zlib.crc32(header):
            raise StripFileError("the checksum of its header is wrong")
        _check_metadata(bytes(header[8:]).decode("utf-8"), key, self.path.name)
        if any(entry.dtype not in DTYPES for entry in entries.values()):
            raise StripFileError("it holds tensors of an unknown type")
        return entries, dict(zip(in_data_order(entries), checksums[1:], strict=True))

    def _stored_checksums(self, stored: StoredTensor) -> list[int]:
        raw = bytearray(stored.num_bytes)
        self._file.read_into(memoryview(raw), stored.start)
        parts = (raw[at : at + CHECKSUM_BYTES] for at in range(0, len(raw), CHECKSUM_BYTES))
        return [int.from_bytes(part, "little") for part in parts]


def _check_metadata(header: str, key: StripKey, file: str) -> None:
    metadata = parse_json_object(header, file).get("__metadata__")
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise StripFileError("it is not a file of strips")
    if metadata.get("version") != str(FORMAT_VERSION):
        raise StripFileError("another version of the program wrote it", outdated=True)
    found = parse_json_object(str(metadata.get("key")), file)
    wanted = asdict(key)
    differing = {name for name in wanted.keys() | found.keys() if found.get(name) != wanted.get(name)}
    if differing == {"quantiser_version"}:
        raise StripFileError("another version of the program wrote it", outdated=True)
    if "model" in differing:
        raise StripFileError("it belongs to another model")
    if differing:
        raise StripFileError(f"it was made with other settings ({', '.join(sorted(map(shown, differing)))})")


def _kind(codes: torch.Tensor, scales: torch.Tensor) -> tuple[Bits, Group]:
    """Bits and group, from the type of the codes and the two widths. Strip checks them."""
    import torch

    bits: Bits = 8 if codes.dtype == torch.int8 else 4
    if codes.ndim != 2 or scales.ndim != 2 or not scales.shape[1]:
        raise ValueError("Codes and scales are matrices.")
    columns = codes.shape[1] * 8 // bits
    return bits, 256 if columns == 256 * scales.shape[1] else 32


def _clause(error: ModelFileError) -> str:
    """The sentence of an error as a part of another sentence."""
    return error.message.rstrip(".")
