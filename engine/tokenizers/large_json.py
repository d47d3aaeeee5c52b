"""Reads a large JSON document without keeping other threads waiting.

`json.loads` holds the interpreter's lock from beginning to end: 125 ms for the tokenizer.json of a vocabulary
of 152,000 tokens (11 MB). Here the two outer levels, and lists in them, are walked in Python, and only what
lies deeper is parsed in one go; an object of numbers can be left to the parser because it calls back for
every number. Both give the lock away every few milliseconds. Long lists can be handed over element by
element: 150,000 small lists kept alive set off collections of the whole heap, which hold the lock as long as
the parser did.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from engine.checkpoints.foreign_files import RepeatedKeyError, json_faults_told, require_json_object

_WALKED_LEVELS = 2  # the document and the objects in it, such as the "model" of a tokenizer
_SPACE = re.compile(r"[ \t\n\r]*")


Sink = Callable[[Any], None]


def parse_large_object(text: str, file: str, *, sinks: Mapping[str, Sink] | None = None) -> dict[str, Any]:
    """The JSON object that `text` is; `file` is its name for messages.

    A list in the two outer levels whose key is in `sinks` is given to that function one element at a time,
    and is empty in the result. No key of those levels may come twice: readers disagree on which counts.
    Raises ModelFileError with one sentence, and what a sink raises.
    """
    with json_faults_told(file):
        value, end = _Walker(text, sinks or {}).value(_skip(text, 0), 0)
        end = _skip(text, end)
        if end != len(text):
            raise json.JSONDecodeError("Extra data", text, end)
    return require_json_object(value, file)


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None  # it matches the empty string too
    return match.end()


def _integer(digits: str) -> int:
    """Not `int` itself: calling a function of ours is where another thread gets its turn."""
    return int(digits)


class _Walker:
    """Positions are offsets in `text`; each method returns a value and the position after it."""

    def __init__(self, text: str, sinks: Mapping[str, Sink]) -> None:
        self._text = text
        self._sinks = sinks
        self._parse = json.JSONDecoder(parse_int=_integer).raw_decode

    def value(self, position: int, level: int, key: str = "") -> tuple[Any, int]:
        first = self._text[position : position + 1]
        if level < _WALKED_LEVELS and first == "{":
            return self._dict(position + 1, level + 1)
        if level <= _WALKED_LEVELS and first == "[":
            return self._list(position + 1, self._sinks.get(key))
        return self._parse(self._text, position)

    def _list(self, position: int, sink: Sink | None) -> tuple[list[Any], int]:
        text, parse = self._text, self._parse
        result: list[Any] = []
        take = result.append if sink is None else sink
        position = _skip(text, position)
        if text[position : position + 1] == "]":
            return result, position + 1
        while True:
            item, position = parse(text, position)
            take(item)
            position = _skip(text, position)
            mark = text[position : position + 1]
            if mark == "]":
                return result, position + 1
            if mark != ",":
                raise json.JSONDecodeError("Expecting ',' delimiter", text, position)
            position = _skip(text, position + 1)

    def _dict(self, position: int, level: int) -> tuple[dict[str, Any], int]:
        text = self._text
        result: dict[str, Any] = {}
        position = _skip(text, position)
        if text[position : position + 1] == "}":
            return result, position + 1
        while True:
            if text[position : position + 1] != '"':
                raise json.JSONDecodeError(
                    "Expecting property name enclosed in double quotes", text, position
                )
            key, position = self._parse(text, position)
            if key in result:
                raise RepeatedKeyError(key)
            position = _skip(text, position)
            if text[position : position + 1] != ":":
                raise json.JSONDecodeError("Expecting ':' delimiter", text, position)
            result[key], position = self.value(_skip(text, position + 1), level, key)
            position = _skip(text, position)
            mark = text[position : position + 1]
            if mark == "}":
                return result, position + 1
            if mark != ",":
                raise json.JSONDecodeError("Expecting ',' delimiter", text, position)
            position = _skip(text, position + 1)
