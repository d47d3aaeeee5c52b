"""Reads the files that are named on the command line. Whatever is wrong with one is a SettingError that names
it. They may be pipes (`--text <(pandoc ...)`), so sizes are bounded while reading.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.checkpoints.foreign_files import MAX_JSON_BYTES, shown
from engine.errors import SettingError
from engine.templates.chat_template import ChatMessage

_MESSAGE_KEYS = {"role", "content", "thinking"}


def read_text(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_JSON_BYTES + 1)
        if len(raw) > MAX_JSON_BYTES:
            raise SettingError(f"{shown(path)} is larger than {MAX_JSON_BYTES:,} bytes.")
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise SettingError(f"{shown(path)} can't be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise SettingError(f"{shown(path)} is not UTF-8 text.", "Save it as UTF-8.") from error
    except ValueError as error:  # a NUL character in the name
        raise SettingError(f"{shown(path)} is no name of a file.") from error


def read_id_lists(path: Path) -> list[tuple[int, ...]]:
    """A JSON list of lists of token ids, none of them empty."""
    lists = _read_json(path)
    if not isinstance(lists, list) or not all(isinstance(ids, list) for ids in lists):
        raise SettingError(f"{shown(path)} should hold a list of lists of token ids, such as [[1, 2], [3]].")
    if not lists:
        raise SettingError(f"{shown(path)} holds no list of token ids.")
    for number, ids in enumerate(lists):
        if not ids:
            raise SettingError(f"List {number} in {shown(path)} is empty.")
        wrong = next((token_id for token_id in ids if type(token_id) is not int), None)
        if wrong is not None:
            raise SettingError(
                f"List {number} in {shown(path)} holds {_excerpt(wrong)}, which is not a token id."
            )
    return [tuple(ids) for ids in lists]


def read_messages(path: Path) -> list[ChatMessage]:
    """A JSON list of messages: {"role": ..., "content": ...}, and "thinking" where an answer has some."""
    messages = _read_json(path)
    if not isinstance(messages, list) or not messages:
        raise SettingError(
            f'{shown(path)} should hold a list of messages, such as [{{"role": "user", "content": "Hi"}}].'
        )
    return [
        _message(message, f"Message {number} in {shown(path)}") for number, message in enumerate(messages)
    ]


def _message(value: Any, where: str) -> ChatMessage:
    if not isinstance(value, dict) or not {"role", "content"} <= value.keys():
        raise SettingError(f'{where} should be an object with "role" and "content".')
    if unknown := sorted(value.keys() - _MESSAGE_KEYS):
        raise SettingError(f"{where} has the key {_excerpt(unknown[0])}, which has no meaning here.")
    if not all(isinstance(part, str) for part in value.values()):
        raise SettingError(f"{where} should hold texts only.")
    return ChatMessage(**value)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:  # ValueError: not JSON, or a number of thousands of digits
        raise SettingError(f"{shown(path)} is not valid JSON: {error}.") from error


def _excerpt(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
