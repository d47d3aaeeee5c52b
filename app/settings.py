"""What the program remembers between two runs: one typed object, one JSON file.

A file that can't be read as settings is kept under another name and the defaults are used; a single value
that can't be used gives way to its default. Both are told. Keys that this version doesn't know are kept as
they are, so that going back to an older version for a day loses nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from app.files import free_name, write_whole
from engine.notices import Notice

SETTINGS_VERSION = 1
MAX_RECENT_MODELS = 10


class Theme(StrEnum):
    SYSTEM = "system"
    LIGHT = "light"
    DARK = "dark"


@dataclass(frozen=True)
class Settings:
    """Change it with `dataclasses.replace`, or through `ChatController.update_settings`, which also saves."""

    window_geometry_base64: str = ""  # QWidget.saveGeometry
    splitter_state_base64: str = ""  # QSplitter.saveState
    recent_models: tuple[Path, ...] = ()  # newest first
    last_model: Path | None = None  # loaded again at the next start
    last_conversation_id: str | None = None
    theme: Theme = Theme.SYSTEM
    context_tokens: int | None = None  # None: the model's own length
    threads: int | None = None  # None: all cores
    unknown: Mapping[str, Any] = field(default_factory=dict, repr=False)  # keys of other versions


@dataclass(frozen=True)
class LoadedSettings:
    settings: Settings
    notices: tuple[Notice, ...] = ()


def with_recent_model(settings: Settings, model_path: Path) -> tuple[Path, ...]:
    """The recent models with `model_path` in front, each once."""
    others = (path for path in settings.recent_models if path != model_path)
    return (model_path, *others)[:MAX_RECENT_MODELS]


def load_settings(path: Path) -> LoadedSettings:
    """Settings from `path`, whatever is there. Never raises for what a file or a disk can cause."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return LoadedSettings(Settings())
    except OSError as error:
        return LoadedSettings(Settings(), (_unreadable(path, error),))
    except (ValueError, RecursionError):  # no UTF-8, no JSON, or nested beyond reason
        return LoadedSettings(Settings(), (_keep_damaged(path),))
    if not isinstance(data, dict):
        return LoadedSettings(Settings(), (_keep_damaged(path),))

    values: dict[str, Any] = {}
    bad: list[str] = []
    for name, read in _READERS.items():
        if name in data:
            try:
                values[name] = read(data[name])
            except (ValueError, TypeError):
                bad.append(name)
    known = {*_READERS, "version"}
    values["unknown"] = {name: value for name, value in data.items() if name not in known}
    return LoadedSettings(Settings(**values), (_bad_values(path, bad),) if bad else ())


def save_settings(path: Path, settings: Settings) -> None:
    """Write the file whole. Raises OSError."""
    values = {
        **settings.unknown,
        "version": SETTINGS_VERSION,
        "window_geometry_base64": settings.window_geometry_base64,
        "splitter_state_base64": settings.splitter_state_base64,
        "recent_models": [str(model) for model in settings.recent_models],
        "last_model": str(settings.last_model) if settings.last_model else None,
        "last_conversation_id": settings.last_conversation_id,
        "theme": settings.theme,
        "context_tokens": settings.context_tokens,
        "threads": settings.threads,
    }
    write_whole(path, json.dumps(values, indent=2) + "\n")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _path(value: Any) -> Path:
    if not _text(value):
        raise ValueError
    return Path(value)


def _paths(value: Any) -> tuple[Path, ...]:
    if not isinstance(value, list):
        raise TypeError
    return tuple(map(_path, value))[:MAX_RECENT_MODELS]


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError
    return value


_READERS: dict[str, Callable[[Any], Any]] = {
    "window_geometry_base64": _text,
    "splitter_state_base64": _text,
    "recent_models": _paths,
    "last_model": _optional(_path),
    "last_conversation_id": _optional(_text),
    "theme": Theme,
    "context_tokens": _optional(_count),
    "threads": _optional(_count),
}


def _unreadable(path: Path, error: OSError) -> Notice:
    return Notice(
        "settings-unreadable",
        f"The settings in {path} can't be read ({error.strerror or error}), so the defaults are used.",
        "Make the file readable, then start the program again.",
    )


def _keep_damaged(path: Path) -> Notice:
    message = f"The settings in {path} are damaged, so the defaults are used."
    try:
        kept = path.rename(free_name(path, "damaged"))
    except OSError as error:
        return Notice("settings-damaged", message, f"The file could not be kept: {error.strerror or error}.")
    return Notice("settings-damaged", message, f"The damaged file is kept as {kept}.")


def _bad_values(path: Path, names: list[str]) -> Notice:
    return Notice(
        "settings-value",
        f"The default is used for {', '.join(names)}, because the value in {path} can't be used.",
        "Choose it again in the settings.",
    )
