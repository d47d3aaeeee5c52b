"""Writes a file of strips while they are made, one at a time, so that no more of them is in memory for it.

The header of a safetensors file stands before the data, but what it has to say is known only at the end: a
strip may turn out to have offsets, and checksums come last in any case. So the names are told beforehand,
and from them follows how long the header can get; that much is left free at the front, and filled with
spaces behind the header, as the format allows. (The safetensors library writes a file in one call, with
everything in memory.)
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from engine.weights.part_file import PartFile
from engine.weights.safetensors_header import MAX_HEADER_BYTES, StoredTensor
from engine.weights.strip_file import (
    CHECKSUM_BYTES,
    CHECKSUMS,
    DTYPES,
    STRIP_PARTS,
    VALUES,
    StripKey,
    in_data_order,
    metadata_of,
)

if TYPE_CHECKING:
    import torch

    from engine.weights.strips import Strip

_CHUNK_BYTES = 2**20  # its checksum is made while it is still in the processor's cache
_MAX_AXES = 8
_MAX_ENTRY_BYTES = 64 + 16 * (_MAX_AXES + 2)  # of the header, without the name; sizes stay below 10 ** 15
_ALIGNMENT = 64  # of the data's start


class WritingStopped(Exception):  # noqa: N818  (it is no error: somebody wanted it)
    """Raised in the middle of a write once that is wanted."""


class StripFileWriter:
    """`with` removes everything that was written unless `commit` was reached.

    Raises OSError when the system does. Mistakes of the program (a name twice or never told, tensors that
    can't be stored) are ValueErrors.
    """

    def __init__(
        self, path: Path, key: StripKey, names: Iterable[str], *, stop: threading.Event | None = None
    ) -> None:
        """stop: once it is set, adding raises WritingStopped, also in the middle of a large strip."""
        self._stop = stop
        self._names = frozenset(names)
        self._metadata = metadata_of(key)
        self._data_start = self._reserved()
        if self._data_start - 8 > MAX_HEADER_BYTES:
            raise ValueError(f"A safetensors file can't hold {len(self._names):,} strips.")
        self._entries: dict[str, StoredTensor] = {}
        self._checksums: dict[str, int] = {}
        self._end = self._data_start
        self._added: set[str] = set()
        self._file = PartFile(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.abort()

    @property
    def num_bytes(self) -> int:
        """Bytes so far."""
        return self._end

    def add_strip(self, name: str, strip: Strip) -> None:
        self._claim(name)
        self._append(f"{name}/codes", strip.codes)
        self._append(f"{name}/scales", strip.scales)
        if strip.offsets is not None:
            self._append(f"{name}/offsets", strip.offsets)

    def add_tensor(self, name: str, tensor: torch.Tensor) -> None:
        self._claim(name)
        self._append(f"{name}/{VALUES}", tensor)

    def finish(self) -> None:
        """Header and checksums, then waits for the disk. All names have to be there."""
        missing = self._names - self._added
        if missing:
            raise ValueError(f"{len(missing)} strips were never added, {min(missing)!r} for one.")
        order = in_data_order(self._entries)
        num_checksums = len(order) + 1
        self._entries[CHECKSUMS] = StoredTensor(
            (num_checksums,), "U32", self._end, num_checksums * CHECKSUM_BYTES
        )
        header = self._header()
        checksums = [zlib.crc32(header), *(self._checksums[name] for name in order)]
        raw = b"".join(checksum.to_bytes(CHECKSUM_BYTES, "little") for checksum in checksums)
        self._file.write(memoryview(raw), self._end)
        self._end += len(raw)
        self._file.write(memoryview(header), 0)
        self._file.sync()

    def publish(self) -> None:
        """Puts the finished file at its place."""
        self._file.finish()

    def commit(self) -> None:
        """`finish` and `publish`."""
        self.finish()
        self.publish()

    def abort(self) -> None:
        """Removes what was written. After `publish` it does nothing."""
        self._file.abort()

    def _claim(self, name: str) -> None:
        if name not in self._names:
            raise ValueError(f"{name!r} was not told beforehand.")
        if name in self._added:
            raise ValueError(f"{name!r} was added before.")
        self._added.add(name)

    def _append(self, name: str, tensor: torch.Tensor) -> None:
        import torch

        dtype = _DTYPE_NAMES.get(str(tensor.dtype).removeprefix("torch."))
        if dtype is None or tensor.ndim > _MAX_AXES:
            raise ValueError(f"{name!r} can't be stored: {tensor.dtype} {tuple(tensor.shape)}.")
        flat = tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
        view: Any = flat.numpy()
        whole = memoryview(view)
        start, checksum = self._end, 0
        for done in range(0, len(whole), _CHUNK_BYTES):
            if self._stop is not None and self._stop.is_set():
                raise WritingStopped
            chunk = whole[done : done + _CHUNK_BYTES]
            checksum = zlib.crc32(chunk, checksum)
            self._file.write(chunk, start + done)
        self._end = start + len(whole)
        self._entries[name] = StoredTensor(tuple(tensor.shape), dtype, start, len(whole))
        self._checksums[name] = checksum

    def _header(self) -> bytes:
        """The header with its length and the spaces up to the data."""
        entries: dict[str, Any] = {"__metadata__": self._metadata}
        for name, entry in self._entries.items():
            start = entry.start - self._data_start
            offsets = [start, start + entry.num_bytes]
            entries[name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": offsets}
        text = json.dumps(entries, separators=(",", ":")).encode("ascii")
        size = self._data_start - 8
        assert len(text) <= size, "the header is longer than its names allow"
        return size.to_bytes(8, "little") + text.ljust(size)

    def _reserved(self) -> int:
        """Bytes before the data: the most that the header can take."""
        parts = len(STRIP_PARTS)
        size = len(json.dumps(self._metadata)) + 64 + _MAX_ENTRY_BYTES + len(CHECKSUMS)
        for name in self._names:
            size += parts * (len(json.dumps(name)) + len("/offsets") + _MAX_ENTRY_BYTES)
        return -(-(8 + size) // _ALIGNMENT) * _ALIGNMENT


_DTYPE_NAMES = {torch_name: name for name, torch_name in DTYPES.items()}
