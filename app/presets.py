"""Instructions that a person keeps under a name, to choose them for any conversation.

A conversation has the words, not the name: changing or deleting a preset changes no chat that goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.chat_settings import MAX_INSTRUCTIONS
from app.titles import one_line

MAX_PRESETS = 200
MAX_NAME_LENGTH = 60  # characters


@dataclass(frozen=True)
class Preset:
    name: str
    text: str


def preset_of(presets: Sequence[Preset], text: str) -> Preset | None:
    """The one that says just this."""
    return next((preset for preset in presets if preset.text.strip() == text.strip()), None)


def named(presets: Sequence[Preset], name: str) -> Preset | None:
    return next((preset for preset in presets if _same(preset.name, name)), None)


def with_preset(presets: Sequence[Preset], name: str, text: str) -> tuple[Preset, ...]:
    """With one more, or with another text under a name that is there; by name. Raises ValueError with a
    sentence.
    """
    name = _checked_name(name)
    if not text.strip():
        raise ValueError("A preset needs some instructions. Write them first.")
    if len(text) > MAX_INSTRUCTIONS:
        raise ValueError(f"Instructions have at most {MAX_INSTRUCTIONS:,} characters; these have more.")
    others = without(presets, name)
    if len(others) >= MAX_PRESETS:
        raise ValueError(f"There are {MAX_PRESETS} presets already. Delete one first.")
    return _sorted((*others, Preset(name, text.strip())))


def renamed(presets: Sequence[Preset], old: str, new: str) -> tuple[Preset, ...]:
    """Raises ValueError with a sentence."""
    new = _checked_name(new)
    preset = named(presets, old)
    if preset is None:
        raise ValueError(f"There is no preset “{old}” any more.")
    others = without(presets, old)
    if named(others, new) is not None:
        raise ValueError(f"There is a preset “{new}” already. Choose another name.")
    return _sorted((*others, Preset(new, preset.text)))


def without(presets: Sequence[Preset], name: str) -> tuple[Preset, ...]:
    return tuple(preset for preset in presets if not _same(preset.name, name))


def presets_from(value: Any) -> tuple[Preset, ...]:
    """From JSON. One that `with_preset` could not have made is left out; the others stay. Raises TypeError
    for what is no list.
    """
    if not isinstance(value, list):
        raise TypeError
    presets: tuple[Preset, ...] = ()
    for one in value:
        name, text = (one.get("name"), one.get("text")) if isinstance(one, dict) else (None, None)
        if isinstance(name, str) and isinstance(text, str):
            try:
                text.encode()  # half a surrogate pair, which no file takes, raises UnicodeEncodeError
                presets = with_preset(presets, name, text)
            except ValueError:
                continue
    return presets


def _checked_name(name: str) -> str:
    name = one_line(name)
    if not name:
        raise ValueError("A preset needs a name. Write one first.")
    if len(name) > MAX_NAME_LENGTH:
        raise ValueError(f"A name has at most {MAX_NAME_LENGTH} characters; this one has {len(name)}.")
    return name


def _same(first: str, second: str) -> bool:
    return one_line(first).casefold() == one_line(second).casefold()


def _sorted(presets: tuple[Preset, ...]) -> tuple[Preset, ...]:
    return tuple(sorted(presets, key=lambda preset: preset.name.casefold()))
