"""Strict reading of a config that others wrote: a wrong value fails here, with the name of its key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine.checkpoints.foreign_files import json_type, shown
from engine.errors import ModelFileError
from engine.notices import Notice
from engine.wording import phrase

MAX_SIZE = 2**24  # larger than any hidden size, vocabulary or feed-forward layer


class ConfigReader:
    """Typed, range-checked access to one JSON object. A key that is null counts as absent.

    `path` stands before every key in messages. `notices` is shared by a reader and its sections: what had
    to be assumed is said there.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        file: str,
        *,
        path: str = "",
        notices: list[Notice] | None = None,
    ) -> None:
        self.values = values
        self.file = file
        self.notices: list[Notice] = [] if notices is None else notices
        self._path = path

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def given(self, key: str) -> bool:
        """Whether the key is there at all, be it null: null means something of its own for some keys."""
        return key in self.values

    def name_of(self, key: str) -> str:
        return f"{self._path}{key}"

    def integer(
        self, key: str, default: int | None = None, *, minimum: int = 1, maximum: int = MAX_SIZE
    ) -> int:
        """A whole number; required unless there is a `default`."""
        value = self._value(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, f"should be a whole number, not {_described(value)}")
        if not minimum <= value <= maximum:
            raise self.wrong(key, f"is {shown(value, 40)}, outside {minimum:,} to {maximum:,}")
        return value

    def number(
        self, key: str, default: float | None = None, *, above: float = -math.inf, at_most: float = math.inf
    ) -> float:
        """A finite number greater than `above`; required unless there is a `default`."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, f"should be a number, not {_described(value)}")
        try:
            result = float(value)
        except OverflowError:
            result = math.inf
        if not math.isfinite(result) or not above < result <= at_most:
            limits = phrase(f"above {above:g}")
            if at_most < math.inf:
                limits = f"above {above:g} and at most {at_most:g}"
            raise self.wrong(key, f"is {shown(value, 40)}; it should be a number {limits}")
        return result

    def boolean(self, key: str, default: bool | None = None) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, f"should be true or false, not {_described(value)}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, f"should be text, not {_described(value)}")
        return value

    def texts(self, key: str) -> list[str]:
        """A list of strings; empty when the key is absent."""
        value = self._value(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, f"should be a list of text, not {_described(value)}")
        return value

    def integers(self, key: str, *, minimum: int = 0, maximum: int = MAX_SIZE) -> list[int]:
        """A list of whole numbers; empty when the key is absent."""
        value = self._value(key, [])
        if not isinstance(value, list):
            raise self.wrong(key, f"should be a list of whole numbers, not {_described(value)}")
        for item in value:
            if isinstance(item, bool) or not isinstance(item, int) or not minimum <= item <= maximum:
                raise self.wrong(
                    key, f"holds {_described(item)}; whole numbers of at least {minimum} belong there"
                )
        return value

    def section(self, key: str) -> ConfigReader:
        """The object under `key`; an empty one when it is absent."""
        value = self._value(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, f"should be an object, not {_described(value)}")
        return ConfigReader(value, self.file, path=f"{self._path}{key}.", notices=self.notices)

    def wrong(self, key: str, what: str) -> ModelFileError:
        """An error about one key; `what` goes on after the key's name."""
        return ModelFileError(
            f"{shown(self.file)}: {shown(self.name_of(key))} {what}.",
            "Download that file again, or correct the value.",
        )

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is None:
            raise self.wrong(key, "is missing")
        return default


def _described(value: object) -> str:
    if isinstance(value, dict | list) or value is None:
        return json_type(value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{shown(value, 40)!r}" if isinstance(value, str) else shown(value, 40)
