"""Reading JSON that others wrote: a value or a list of values, one after the other, within bounds.

A list is read value by value, so an export of thousands of conversations is never in memory twice, and no
call holds up the window's thread for longer than one conversation takes.
"""

from __future__ import annotations

import codecs
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from app.conversation_database import StoreError
from app.record_times import time_from_seconds

MAX_BYTES = 1 << 29  # of a file, unpacked: 512 MB
MAX_VALUE_CHARACTERS = 1 << 26  # of one conversation
_CHUNK = 1 << 20  # bytes
_BEHIND_VALUES = frozenset(",]} \t\r\n")
_SPACES = re.compile(r"[ \t\r\n]*")
_EXPORT_IN_ZIP = re.compile(r"(^|/)conversations[^/]*\.json$")
_MILLISECONDS_FROM = 1e11  # seconds would be in the year 5138


class ImportRefusedError(StoreError):
    """A file is not what it says. `message` is one sentence."""

    def __init__(self, name: str, reason: str, hint: str = "") -> None:
        super().__init__(
            code="import-refused",
            message=f"{name} is not imported: {reason}.",
            hint=hint or "Choose a file that Kestrel Chat, ChatGPT or LM Studio has exported.",
        )


def values_of(path: Path) -> Iterator[Any]:
    """The values of the list that a JSON file holds, or else its one value; of a ZIP archive those of the
    conversations*.json in it. Raises ImportRefusedError and OSError.
    """
    if not path.is_file():
        raise ImportRefusedError(path.name, "it is not a file")
    with path.open("rb") as file:
        is_archive = file.read(4) == b"PK\x03\x04"
    if not is_archive:
        with path.open("rb") as file:
            yield from _JsonReader(path.name, file).values()
        return
    try:
        with zipfile.ZipFile(path) as archive:
            names = sorted(one for one in archive.namelist() if _EXPORT_IN_ZIP.search(one))
            if not names:
                raise ImportRefusedError(path.name, "the archive holds no conversations.json")
            for name in names:
                with archive.open(name) as file:
                    yield from _JsonReader(path.name, file).values()
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise ImportRefusedError(path.name, "the archive is damaged or encrypted") from error


class _JsonReader:
    """Text of a file comes as it is needed; what was read is let go."""

    def __init__(self, name: str, file: IO[bytes]) -> None:
        self._name = name
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._at = 0
        self._num_bytes = 0
        self._ended = False
        self._json = json.JSONDecoder(parse_constant=_no_number)

    def values(self) -> Iterator[Any]:
        if self._next() != "[":
            yield self._value()
        else:
            self._at += 1
            if self._next() != "]":
                yield self._value()
                while (char := self._next()) == ",":
                    self._at += 1
                    yield self._value()
                if char != "]":
                    raise self._no_json()
            self._at += 1
        if self._next():
            raise self._no_json()

    def _next(self) -> str:
        """The next character that is no space, not taken yet; "" at the end."""
        while True:
            spaces = _SPACES.match(self._text, self._at)
            self._at = spaces.end() if spaces else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._fill(_CHUNK):
                return ""

    def _value(self) -> Any:
        """A value that ends with the text may go on behind it, and so may a number before a point. What is
        read on doubles each time, so that a long one is not read anew for every chunk.
        """
        self._next()
        while True:
            problem: ValueError | None = None
            try:
                value, end = self._json.raw_decode(self._text, self._at)
            except RecursionError as error:
                raise ImportRefusedError(self._name, "it is nested beyond reason") from error
            except ValueError as error:
                problem = error
            else:
                if end < len(self._text) and self._text[end] in _BEHIND_VALUES:
                    self._at = end
                    return value
            length = len(self._text) - self._at
            if length > MAX_VALUE_CHARACTERS:
                raise ImportRefusedError(self._name, "one conversation in it is too large") from problem
            if not self._fill(max(_CHUNK, length)):
                if problem is not None:
                    raise self._no_json() from problem
                self._at = end
                return value

    def _fill(self, num_bytes: int) -> bool:
        """More text. False: there is none."""
        if self._ended:
            return False
        data = self._file.read(num_bytes)
        self._num_bytes += len(data)
        if self._num_bytes > MAX_BYTES:
            raise ImportRefusedError(self._name, f"it has more than {MAX_BYTES >> 20} MB")
        self._ended = not data
        try:
            more = self._decode.decode(data, final=self._ended)
        except UnicodeDecodeError as error:
            raise ImportRefusedError(self._name, "it is not text in UTF-8") from error
        self._text = self._text[self._at :] + more
        self._at = 0
        return bool(more) or self._fill(num_bytes)

    def _no_json(self) -> ImportRefusedError:
        return ImportRefusedError(self._name, "it is not JSON, or it breaks off")


def _no_number(name: str) -> float:
    raise ValueError(name)


# Fields of values that others wrote. What is missing has its default; what is of another type is refused.


class WrongFieldError(ValueError):
    """A value has not the type that it needs; says which."""


@contextmanager
def naming_fields(name: str, what: str) -> Iterator[None]:
    """Makes a refusal of a file's wrong field."""
    try:
        yield
    except WrongFieldError as error:
        raise ImportRefusedError(name, f"in {what}, {error}") from error


def text_field(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise WrongFieldError(f"“{key}” is not a text")
    return value


def list_field(values: Mapping[str, Any], key: str) -> list[Any]:
    value = values.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise WrongFieldError(f"“{key}” is not a list")
    return value


def object_field(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = values.get(key)
    if value is None:
        return {}
    return as_object(value, key)


def as_object(value: Any, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise WrongFieldError(f"“{key}” is not an object")
    return value


def time_field(values: Mapping[str, Any], key: str) -> datetime | None:
    """A moment in seconds or milliseconds since 1970; None for what is none."""
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return time_from_seconds(value / 1_000 if value > _MILLISECONDS_FROM else value)
    except OverflowError:  # a whole number beyond any float
        return None
