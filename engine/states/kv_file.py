"""One state in one safetensors file: its ids, its pages, and whose they are.

The header's metadata says everything but the pages: format and version, conversation, ids, what computed them
(`KvKey`), and a CRC-32 of each page. So an index needs headers only. The pages follow as `page.0`, `page.1`,
…; the last tensor, `header_checksum`, holds the CRC-32 of the header with its length. CRC-32 finds every
change of up to 32 neighbouring bits: these files guard against decay, not against forgery.

A file that was written appears under its name whole, or not at all. What is read of one is checked before
anything is done with it: the header against its checksum, every size against the file's, every page against
its checksum.
"""

from __future__ import annotations

import base64
import binascii
import json
import sys
import threading
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.checkpoints.foreign_files import parse_json_object
from engine.errors import ModelFileError
from engine.kv_geometry import KvGeometry, pages_for
from engine.weights.part_file import PartFile, lock_for_reading
from engine.weights.safetensors_header import StoredTensor, read_header
from engine.weights.weight_file import WeightFile, new_buffer
from engine.wording import format_tokens

if TYPE_CHECKING:
    import torch

FORMAT = "kestrel-state"
FORMAT_VERSION = 1

_HEADER_CHECKSUM = "header_checksum"
_CHECKSUM_BYTES = 4
_ALIGNMENT = 64  # of the first page
_MAX_HEADER_BYTES = 32 * 2**20  # ids of a million tokens take 6; what is larger is not ours
_CHUNK_BYTES = 2**20  # read, then checked, while it is in the processor's cache


class KvFileError(Exception):
    """The file can't be used; the text is a clause that says why. `outdated`: another version wrote it."""

    def __init__(self, why: str, *, outdated: bool = False) -> None:
        super().__init__(why)
        self.outdated = outdated


class KvFileReplaced(KvFileError):  # noqa: N818  (nothing is wrong with it)
    """The file is sound, but holds other ids: another process has put it there."""


class WritingStopped(Exception):  # noqa: N818  (it is no error: somebody wanted it)
    """Raised in the middle of a write once that is wanted."""


@dataclass(frozen=True)
class KvKey:
    """What pages were computed with. A file is used only where all of it is the same.

    model: see `engine/checkpoints/model_identity.py`. numerics: in what form weights and activations are, and
    by which version of the quantiser; in any words, as long as they change when the numbers do.
    """

    model: str
    numerics: str
    geometry: KvGeometry

    def as_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True)
class KvHeader:
    """What a file says of itself, checked."""

    conversation: str
    ids: array[int]
    checksums: tuple[int, ...]  # CRC-32 of each page
    start: int  # of the first page, in bytes from the start of the file


def write_kv_file(
    path: Path,
    key: KvKey,
    *,
    conversation: str,
    ids: array[int],
    pages: Sequence[torch.Tensor],
    stop: threading.Event,
) -> PartFile:
    """Everything is on disk then, under a temporary name: `finish` of what is returned puts it at its place,
    `abort` removes it. Raises OSError, and WritingStopped once `stop` is set; nothing is left then.
    """
    assert len(pages) == pages_for(len(ids))
    views = [_bytes_of(page) for page in pages]
    header = _header(key, conversation, ids, [zlib.crc32(view) for view in views])
    file = PartFile(path)
    try:
        offset = len(header)
        file.write(memoryview(header), 0)
        for view in views:
            if stop.is_set():
                raise WritingStopped
            file.write(view, offset)
            offset += len(view)
        file.write(memoryview(_as_checksum(header)), offset)
        file.sync()
        if stop.is_set():
            raise WritingStopped
    except BaseException:
        file.abort()
        raise
    return file


def file_bytes(key: KvKey, num_tokens: int) -> int:
    """About how large a file gets; never less than it will be."""
    per_page = key.geometry.page_bytes + 160  # with its entry in the header
    return pages_for(num_tokens) * per_page + 6 * num_tokens + 8192 + 64 * len(key.geometry.layers)


def read_kv_header(path: Path, key: KvKey, *, context: int) -> KvHeader:
    """What the file holds, when it belongs to `key` and to no more than `context` tokens. Reads no page.

    Raises KvFileError.
    """
    with _opened(path) as file:
        return _read_header(file, key, context)


def read_kv_pages(path: Path, key: KvKey, *, context: int, ids: array[int], count: int) -> list[torch.Tensor]:
    """The first `count` pages of the file, uint8 (page_bytes,) each. It must still hold exactly `ids`: a
    second process may have replaced it. Raises KvFileError, KvFileReplaced for that.
    """
    with _opened(path) as file:
        header = _read_header(file, key, context)
        if header.ids != ids:
            raise KvFileReplaced("it holds something else by now")
        size = key.geometry.page_bytes
        return [
            _read_page(file, header.start + index * size, size, header.checksums[index])
            for index in range(count)
        ]


def too_long(num_tokens: int, context: int) -> KvFileError:
    """Why a file of so many tokens can't be used."""
    return KvFileError(f"it holds {format_tokens(num_tokens)}, and the context {context:,}")


def _header(key: KvKey, conversation: str, ids: array[int], checksums: Sequence[int]) -> bytes:
    """The header with its length, filled with spaces up to where the first page begins."""
    metadata = {
        "format": FORMAT,
        "version": str(FORMAT_VERSION),
        "key": key.as_json(),
        "conversation": conversation,
        "ids": base64.b64encode(_little_endian(ids).tobytes()).decode("ascii"),
        "page_checksums": "".join(f"{checksum:08x}" for checksum in checksums),
    }
    entries: dict[str, Any] = {"__metadata__": metadata}
    size, end = key.geometry.page_bytes, 0
    for index in range(len(checksums)):
        entries[_page_name(index)] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    entries[_HEADER_CHECKSUM] = {
        "dtype": "U8",
        "shape": [_CHECKSUM_BYTES],
        "data_offsets": [end, end + _CHECKSUM_BYTES],
    }
    text = json.dumps(entries, separators=(",", ":")).encode("ascii")
    length = -(-(8 + len(text)) // _ALIGNMENT) * _ALIGNMENT - 8
    return length.to_bytes(8, "little") + text.ljust(length)


class _opened:  # noqa: N801  (used as a function)
    """The file, open for reading, safe from being removed by other processes; faults become KvFileErrors."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> WeightFile:
        try:
            self._file = WeightFile(self._path)
        except ModelFileError as error:
            raise KvFileError(_clause(error)) from error
        lock_for_reading(self._file.handle)
        return self._file

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._file.close()
        if isinstance(error, ModelFileError):
            raise KvFileError(_clause(error)) from error


def _read_header(file: WeightFile, key: KvKey, context: int) -> KvHeader:
    header = _checked_bytes(file)
    entries = read_header(file.handle, file.path)
    metadata = parse_json_object(header[8:].decode("utf-8"), file.path.name).get("__metadata__")
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise KvFileError("it holds no state of a conversation")
    if metadata.get("version") != str(FORMAT_VERSION):
        raise KvFileError("another version of the program wrote it", outdated=True)
    _check_key(str(metadata.get("key")), key, file.path.name)
    ids = _ids(metadata.get("ids"))
    if len(ids) > context:
        raise too_long(len(ids), context)
    checksums = _page_checksums(metadata.get("page_checksums"), pages_for(len(ids)))
    _check_entries(entries, key.geometry, len(checksums), start=len(header))
    return KvHeader(str(metadata.get("conversation")), ids, checksums, start=len(header))


def _checked_bytes(file: WeightFile) -> bytes:
    """The header with its length, as it was written."""
    length = bytearray(8)
    file.read_into(memoryview(length), 0)
    size = 8 + int.from_bytes(length, "little")
    if size > min(file.size - _CHECKSUM_BYTES, _MAX_HEADER_BYTES):
        raise KvFileError("it is cut short, or its header is damaged")
    header, stored = bytearray(size), bytearray(_CHECKSUM_BYTES)
    file.read_into(memoryview(header), 0)
    file.read_into(memoryview(stored), file.size - _CHECKSUM_BYTES)
    if bytes(stored) != _as_checksum(header):
        raise KvFileError("it is cut short, or its header is damaged")
    return bytes(header)


def _check_key(found: str, key: KvKey, file: str) -> None:
    stored, wanted = parse_json_object(found, file), json.loads(key.as_json())
    if stored == wanted:
        return
    for name, why in (
        ("model", "it belongs to another model"),
        ("geometry", "its pages are of another shape"),
        ("numerics", "it was computed with other settings"),
    ):
        if stored.get(name) != wanted[name]:
            raise KvFileError(why)
    raise KvFileError("another version of the program wrote it", outdated=True)


def _ids(encoded: object) -> array[int]:
    ids: array[int] = array("I")
    try:
        ids.frombytes(base64.b64decode(str(encoded), validate=True))
    except (ValueError, binascii.Error) as error:
        raise KvFileError("its token ids are damaged") from error
    return _little_endian(ids)


def _page_checksums(text: object, count: int) -> tuple[int, ...]:
    if not isinstance(text, str) or len(text) != 8 * count:
        raise KvFileError("its ids and pages don't belong together")
    try:
        return tuple(int(text[at : at + 8], 16) for at in range(0, len(text), 8))
    except ValueError as error:
        raise KvFileError("its checksums are damaged") from error


def _check_entries(entries: Any, geometry: KvGeometry, count: int, *, start: int) -> None:
    """Exactly the pages and the checksum, one after the other."""
    size = geometry.page_bytes
    expected = {
        _page_name(index): StoredTensor((size,), "U8", start + index * size, size) for index in range(count)
    }
    expected[_HEADER_CHECKSUM] = StoredTensor((_CHECKSUM_BYTES,), "U8", start + count * size, _CHECKSUM_BYTES)
    if entries != expected:
        raise KvFileError("its ids and pages don't belong together")


def _read_page(file: WeightFile, start: int, size: int, checksum: int) -> torch.Tensor:
    page = new_buffer(size, "a page")
    view = _bytes_of(page)
    found = 0
    for done in range(0, size, _CHUNK_BYTES):
        chunk = view[done : done + _CHUNK_BYTES]
        file.read_into(chunk, start + done)
        found = zlib.crc32(chunk, found)
    if found != checksum:
        raise KvFileError("the checksum of a page is wrong")
    return page


def _bytes_of(page: torch.Tensor) -> memoryview:
    view: Any = page.numpy()  # shares its memory
    return memoryview(view)


def _little_endian(ids: array[int]) -> array[int]:
    if sys.byteorder == "little":
        return ids
    swapped = ids[:]
    swapped.byteswap()
    return swapped


def _as_checksum(header: bytes | bytearray) -> bytes:
    return zlib.crc32(header).to_bytes(_CHECKSUM_BYTES, "little")


def _page_name(index: int) -> str:
    return f"page.{index}"


def _clause(error: ModelFileError) -> str:
    """The sentence of an error as a part of another sentence."""
    return error.message.rstrip(".")
