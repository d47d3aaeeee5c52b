"""Reading files that others wrote: regular files only, bounded sizes, every failure a sentence.

The sentence names the file. What others wrote (names, values) is shown on one line and cut short.
"""

from __future__ import annotations

import errno
import io
import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.errors import ModelFileError
from engine.wording import phrase

MAX_JSON_BYTES = 256 * 2**20  # tokenizer.json of the largest vocabularies is about 20 MB
MAX_SHOWN_CHARACTERS = 160

_JSON_HINT = "Download that file again."

_REASONS = {
    errno.ENOENT: ("does not exist", "Check the path, or pick the model again."),
    errno.ENOTDIR: ("does not exist", "Check the path, or pick the model again."),
    errno.EACCES: (
        "can't be read: permission denied",
        "Change its permissions, or copy it to a place of your own.",
    ),
    errno.EPERM: (
        "can't be read: permission denied",
        "Change its permissions, or copy it to a place of your own.",
    ),
    errno.ELOOP: (
        "is a symbolic link that leads back to itself",
        "Download the model again, or repair the link.",
    ),
    errno.ENAMETOOLONG: ("has a name that is too long for this system", "Move the model to a shorter path."),
    errno.EISDIR: ("is a folder where a file was expected", "Download the model again."),
    errno.EMFILE: ("can't be opened: too many files are open", "Close other programs and try again."),
    errno.EIO: (
        "can't be read: the disk reports an error",
        "Check the disk, or copy the model to another one.",
    ),
}


def shown(value: object, limit: int = MAX_SHOWN_CHARACTERS) -> str:
    """`value` for a message: what can't be printed is escaped and the end is cut, so it stays one line."""
    text = value if isinstance(value, str) else str(value)
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)


def some_names(names: Iterable[str], limit: int = 3) -> str:
    """The first few names and how many more there are: "a, b, c and 4 more"."""
    listed = [shown(name) for name in names]
    if len(listed) <= limit:
        return ", ".join(listed)
    return f"{', '.join(listed[:limit])} and {len(listed) - limit} more"


def file_error(path: Path, error: OSError) -> ModelFileError:
    """What the operating system reported of `path`, as a sentence."""
    reason, hint = _REASONS.get(
        error.errno or 0, (f"can't be read: {error.strerror or error}", "Check the disk.")
    )
    return ModelFileError(f"{shown(path)} {reason}.", hint)


def path_kind(path: Path) -> str:
    """What is there: "file", "folder", "other" (a device, a pipe), or "" for nothing."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return ""
        raise file_error(path, error) from error
    except ValueError as error:  # a NUL character in the name
        raise ModelFileError(
            f"{shown(path)} is not a name that this system can open.", "Check the path."
        ) from error
    if stat.S_ISREG(mode):
        return "file"
    return "folder" if stat.S_ISDIR(mode) else "other"


def open_binary(path: Path) -> io.FileIO:
    """An unbuffered handle on a regular file.

    A pipe or a device is refused unopened: opening one can wait for ever.
    """
    kind = path_kind(path)
    if kind == "":
        raise file_error(path, FileNotFoundError(errno.ENOENT, "missing"))
    if kind == "folder":
        raise file_error(path, IsADirectoryError(errno.EISDIR, "folder"))
    if kind == "other":
        raise ModelFileError(
            f"{shown(path)} is a device or a pipe, not a file.", "Pick a model folder or a GGUF file."
        )
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise file_error(path, error) from error


def read_bytes(path: Path, *, limit: int = MAX_JSON_BYTES) -> bytes:
    """The whole file, refused when it is larger than `limit` bytes."""
    with open_binary(path) as handle:
        try:
            size = os.fstat(handle.fileno()).st_size
            if size > limit:
                raise ModelFileError(
                    f"{shown(path.name)} is far too large for what its name says ({size:,} bytes).",
                    "Download the model again.",
                )
            return handle.read(size)
        except OSError as error:
            raise file_error(path, error) from error


def read_text(path: Path, *, limit: int = MAX_JSON_BYTES) -> str:
    """The whole file as UTF-8, with or without a byte order mark."""
    try:
        return read_bytes(path, limit=limit).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ModelFileError(
            f"{shown(path.name)} is not UTF-8 text (byte {error.start:,}).", "Download that file again."
        ) from error


def read_json_object(path: Path, *, limit: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """The JSON object in a file.

    No key may come twice in one object: readers disagree on which of the two counts.
    """
    return parse_json_object(read_text(path, limit=limit), path.name)


def parse_json_object(text: str, file: str) -> dict[str, Any]:
    """`read_json_object` for text that came from `file`."""
    with json_faults_told(file):
        value = json.loads(text, object_pairs_hook=_unique_keys)
    return require_json_object(value, file)


@contextmanager
def json_faults_told(file: str) -> Iterator[None]:
    """Raises ModelFileError with one sentence for whatever parsing the JSON of `file` raises."""
    try:
        yield
    except RepeatedKeyError as error:
        raise ModelFileError(f"{shown(file)} has the key {shown(error.key)!r} twice.", _JSON_HINT) from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ModelFileError(
            f"{shown(file)} is not valid JSON ({error.msg} at {where}).", _JSON_HINT
        ) from error
    except RecursionError as error:
        raise ModelFileError(f"{shown(file)} is nested too deeply to be read.", _JSON_HINT) from error
    except ValueError as error:  # a number with thousands of digits
        raise ModelFileError(f"{shown(file)} is not valid JSON ({shown(error)}).", _JSON_HINT) from error


def require_json_object(value: object, file: str) -> dict[str, Any]:
    """`value`, which was parsed from `file`. Raises ModelFileError when it is no object."""
    if not isinstance(value, dict):
        raise ModelFileError(f"{shown(file)} should hold a JSON object, not {json_type(value)}.", _JSON_HINT)
    return value


def json_type(value: object) -> str:
    """What a parsed value is, in JSON's words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    names = {dict: "an object", list: "a list", str: phrase("text"), int: "a whole number", float: "a number"}
    return names.get(type(value), type(value).__name__)


class RepeatedKeyError(ValueError):
    """A JSON object has the key twice: readers disagree on which counts."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise RepeatedKeyError(key)
            seen.add(key)
    return result
