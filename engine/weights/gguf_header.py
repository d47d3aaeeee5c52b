"""The metadata and the tensor list of a GGUF file.

The `gguf` package's own reader maps the file and makes an array object for every token (1.7 s for 49,000
tokens); this one reads the head of the file once (0.1 s) and bounds every count by the bytes that are
really there, so a damaged file can't ask for memory. Tensor types and their block sizes are the package's.
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.checkpoints.foreign_files import shown
from engine.errors import EngineError, ModelFileError, UnsupportedModelError
from engine.weights.weight_file import WeightFile
from engine.wording import phrase

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
FIRST_CHUNK_BYTES = 8 * 2**20
MAX_HEAD_BYTES = 512 * 2**20
MAX_KEYS = 2**16
MAX_TENSORS = 2**20
MAX_AXES = 4
MAX_ARRAY_DEPTH = 2

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True)
class GgufTensor:
    """`shape` is in the usual order (rows first; the file has it reversed); `start` counts from the file's
    start.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    start: int
    num_bytes: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class GgufHeader:
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


@dataclass(frozen=True)
class TypeSizes:
    """What the `gguf` package knows of the tensor types: name, numbers a block and bytes a block, by type
    number.
    """

    by_number: Mapping[int, tuple[str, int, int]]


def read_gguf_header(file: WeightFile, types: TypeSizes) -> GgufHeader:
    """Raises ModelFileError or UnsupportedModelError with one sentence that names the file."""
    return _HeadReader(file, types).read()


class _HeadReader:
    """A position in the head of a file. More of the file is read when it is needed."""

    def __init__(self, file: WeightFile, types: TypeSizes) -> None:
        self._file = file
        self._types = types
        self._head = b""
        self._position = 0

    def read(self) -> GgufHeader:
        if self._file.size < 24:
            raise self._damaged(f"it has only {self._file.size} bytes" if self._file.size else "it is empty")
        if self._take(4) != MAGIC:
            raise ModelFileError(
                f"{shown(self._file.path.name)} is not a GGUF file.", "Pick a GGUF file or a model folder."
            )
        self._check_version(self._scalar("I"))
        num_tensors = self._count(phrase("tensors"), MAX_TENSORS)
        num_keys = self._count(phrase("settings"), MAX_KEYS)
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string("a setting's name")
            if key in metadata:
                raise self._damaged(f"it has the setting {shown(key)} twice")
            metadata[key] = self._value(self._scalar("I"), key)
        entries = [self._tensor_entry() for _ in range(num_tensors)]
        return GgufHeader(metadata, self._placed(entries, self._alignment(metadata)))

    def _check_version(self, version: int) -> None:
        if version in VERSIONS:
            return
        what = f"GGUF version {version}"
        if version & 0xFFFF == 0:
            what = "GGUF in the byte order of another kind of computer"
        raise UnsupportedModelError(
            f"{shown(self._file.path.name)} is {what}; this engine reads versions 2 and 3.",
            "Download a newer file of this model.",
        )

    def _count(self, what: str, limit: int) -> int:
        count = int(self._scalar("Q"))
        if count > limit:
            raise self._damaged(f"it claims to have {count:,} {what}")
        return count

    def _value(self, kind: int, key: str, depth: int = 0) -> Any:
        if kind == _STRING:
            return self._string(key)
        if kind == _ARRAY and depth < MAX_ARRAY_DEPTH:
            return self._array(key, depth)
        if kind not in _SCALARS:
            raise self._damaged(f"the setting {shown(key)} has the unknown type {kind}")
        return self._scalar(_SCALARS[kind])

    def _array(self, key: str, depth: int) -> list[Any]:
        kind, length = self._scalar("I"), int(self._scalar("Q"))
        smallest = struct.calcsize(f"<{_SCALARS[kind]}") if kind in _SCALARS else 8
        if length * smallest > self._file.size - self._position:
            raise self._damaged(f"the setting {shown(key)} claims {length:,} entries")
        if kind == _STRING:
            return self._strings(key, length)
        if kind in _SCALARS:
            return list(struct.unpack(f"<{length}{_SCALARS[kind]}", self._take(length * smallest)))
        return [self._value(kind, key, depth + 1) for _ in range(length)]

    def _strings(self, key: str, length: int) -> list[str]:
        """Vocabularies: 100,000 and more strings, so the loop is kept short."""
        found: list[str] = []
        unpack = struct.Struct("<Q").unpack_from
        head, position = self._head, self._position
        try:
            for _ in range(length):
                if position + 8 > len(head):
                    head = self._load(position + 8)
                start = position + 8
                position = start + unpack(head, position)[0]
                if position > len(head):
                    head = self._load(position)
                found.append(head[start:position].decode("utf-8"))
        except UnicodeDecodeError as error:
            raise self._damaged(f"the setting {shown(key)} holds text that is not UTF-8") from error
        self._position = position
        return found

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string("a tensor's name")
        num_axes = self._scalar("I")
        if not 1 <= num_axes <= MAX_AXES:
            raise self._damaged(f"the tensor {shown(name)} has {num_axes:,} axes")
        sizes = struct.unpack(f"<{num_axes}Q", self._take(8 * num_axes))
        return name, tuple(reversed(sizes)), int(self._scalar("I")), int(self._scalar("Q"))

    def _alignment(self, metadata: Mapping[str, Any]) -> int:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1) or alignment > 2**20:
            raise self._damaged("its general.alignment is not a power of two")
        return alignment

    def _placed(
        self, entries: list[tuple[str, tuple[int, ...], int, int]], alignment: int
    ) -> dict[str, GgufTensor]:
        """Tensors with their places in the file, which must not overlap or reach past its end."""
        data_start = -(-self._position // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, number, offset in entries:
            if name in tensors:
                raise self._damaged(f"it has the tensor {shown(name)} twice")
            if offset % alignment:
                raise self._damaged(f"the tensor {shown(name)} doesn't start at a multiple of {alignment}")
            dtype, num_bytes = self._stored_size(name, shape, number)
            tensors[name] = GgufTensor(name, shape, dtype, data_start + offset, num_bytes)
        end = data_start
        for tensor in sorted(tensors.values(), key=lambda t: (t.start, t.num_bytes)):
            if tensor.start < end:
                raise self._damaged(f"the tensor {shown(tensor.name)} overlaps another one")
            end = tensor.start + tensor.num_bytes
            if end > self._file.size:
                raise self._damaged(
                    f"it ends {end - self._file.size:,} bytes before {shown(tensor.name)} does"
                )
        return tensors

    def _stored_size(self, name: str, shape: tuple[int, ...], number: int) -> tuple[str, int]:
        if number not in self._types.by_number:
            raise UnsupportedModelError(
                f"{shown(self._file.path.name)} stores {shown(name)} as type {number}, which the installed "
                "gguf package doesn't know.",
                "Update it (pip install --upgrade gguf), or pick a file with another quantization.",
            )
        dtype, block_size, block_bytes = self._types.by_number[number]
        if shape[-1] % block_size or not all(shape):
            raise self._damaged(
                f"the tensor {shown(name)} has rows of {shape[-1]:,}, not whole blocks of {dtype}"
            )
        return dtype, math.prod(shape) // block_size * block_bytes

    def _string(self, what: str) -> str:
        raw = self._take(int(self._scalar("Q")))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._damaged(f"{shown(what)} is not UTF-8 text") from error

    def _scalar(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self._take(struct.calcsize(f"<{code}")))[0]

    def _take(self, count: int) -> bytes:
        end = self._position + count
        if end > len(self._head):
            self._load(end)
        raw = self._head[self._position : end]
        self._position = end
        return raw

    def _load(self, end: int) -> bytes:
        """Makes at least the first `end` bytes of the file available."""
        if end > self._file.size:
            raise self._damaged("it ends in the middle of its settings")
        if end > MAX_HEAD_BYTES:
            raise self._damaged(f"its settings take more than {MAX_HEAD_BYTES:,} bytes")
        wanted = min(max(end, 2 * len(self._head), FIRST_CHUNK_BYTES), self._file.size)
        more = bytearray(wanted - len(self._head))
        self._file.read_into(memoryview(more), len(self._head))
        self._head += bytes(more)
        return self._head

    def _damaged(self, why: str) -> EngineError:
        return ModelFileError(
            f"{shown(self._file.path.name)} is damaged: {why}.",
            "The download was probably cut short; download that file again.",
        )
