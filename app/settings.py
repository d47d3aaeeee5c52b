"""What the program remembers between two runs: one typed object, one JSON file.

A file that can't be read as settings is kept under another name and the defaults are used; a single value
that can't be used gives way to its default. Both are told. Keys that this version doesn't know are kept as
they are, so that going back to an older version for a day loses nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args

from app.chat_sampling import SamplingChoice
from app.context_policy import ContextPolicy
from app.files import free_name, write_whole
from app.language import Language
from app.model_runs import MAX_REMEMBERED_RUNS, RunChoice
from app.presets import Preset, presets_from
from engine.config import DeviceChoice
from engine.notices import Notice

SETTINGS_VERSION = 1
MAX_RECENT_MODELS = 10
MAX_REMEMBERED_MODELS = 100  # whose sampling is remembered
MAX_BYTES = 10**15  # more than any computer has
MAX_CONTEXT = 2**31 - 1  # tokens
TEXT_SIZES = (80, 90, 100, 110, 125, 150, 175, 200)  # percent of the system's
MAX_NAMES, MAX_NAME = 50, 100  # of parts of the window, and characters of one
MAX_THREADS = 1024  # a system runs out of something beyond that, and takes the program down


class Theme(StrEnum):
    SYSTEM = "system"
    LIGHT = "light"
    DARK = "dark"


@dataclass(frozen=True)
class Settings:
    """Change it with `dataclasses.replace`, or through `ChatController.update_settings`, which also saves."""

    window_geometry_base64: str = ""  # QWidget.saveGeometry
    splitter_state_base64: str = ""  # QSplitter.saveState
    dock_state_base64: str = ""  # of the live panel: QMainWindow.saveState
    recent_models: tuple[Path, ...] = ()  # newest first
    last_model: Path | None = None  # loaded again at the next start
    last_conversation_id: str | None = None
    theme: Theme = Theme.SYSTEM
    language: Language = Language.SYSTEM
    text_percent: int = 100  # one of TEXT_SIZES
    device: DeviceChoice = "auto"  # what models run on, from the next load on
    vram_bytes: int | None = None  # that a model may take of a card's memory; None: all of it
    context_tokens: int | None = None  # None: the model's own length
    threads: int | None = None  # None: as many as `default_threads` says
    context_policy: ContextPolicy = ContextPolicy.STOP
    live_panel: bool = False  # shown
    folded_sections: tuple[str, ...] = ()  # of the live panel
    state_ram_bytes: int | None = None  # for what is computed of conversations; None: chosen by itself,
    state_disk_bytes: int | None = None  # 0: nothing is kept
    presets: tuple[Preset, ...] = ()  # by name
    model_sampling: Mapping[Path, SamplingChoice] = field(default_factory=dict)  # what new chats begin with
    model_runs: Mapping[Path, RunChoice] = field(default_factory=dict)  # how they are loaded
    models_folder: Path | None = None  # where models are looked for first
    chats_folder: Path | None = None  # where conversations are kept; None: where the system has such things
    cache_folder: Path | None = None  # prepared weights and kernels; likewise, and from the next start on
    unknown: Mapping[str, Any] = field(default_factory=dict, repr=False)  # keys of other versions


@dataclass(frozen=True)
class LoadedSettings:
    settings: Settings
    notices: tuple[Notice, ...] = ()


def with_recent_model(settings: Settings, model_path: Path) -> tuple[Path, ...]:
    """The recent models with `model_path` in front, each once."""
    others = (path for path in settings.recent_models if path != model_path)
    return (model_path, *others)[:MAX_RECENT_MODELS]


def with_model_sampling(
    settings: Settings, model_path: Path, choice: SamplingChoice
) -> dict[Path, SamplingChoice]:
    """What is remembered of models, with this. A choice of nothing is forgotten; beyond the most that are
    kept, so is the one that was chosen longest ago.
    """
    remembered = {path: one for path, one in settings.model_sampling.items() if path != model_path}
    if choice != SamplingChoice():
        remembered[model_path] = choice
    return dict(list(remembered.items())[-MAX_REMEMBERED_MODELS:])


def reset(settings: Settings) -> dict[str, Any]:
    """The fields that a reset changes, with their defaults. What a person has made or where they are stays:
    presets, the place of the conversations, recent models, the window.
    """
    kept = {
        "window_geometry_base64",
        "splitter_state_base64",
        "dock_state_base64",
        "folded_sections",
        "recent_models",
        "last_model",
        "last_conversation_id",
        "presets",
        "chats_folder",
        "unknown",
    }
    defaults = Settings()
    names = {one.name for one in fields(Settings)} - kept
    return {name: getattr(defaults, name) for name in sorted(names)}


def load_settings(path: Path) -> LoadedSettings:
    """Settings from `path`, whatever is there. Never raises for what a file or a disk can cause."""
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))  # editors on Windows add a mark
    except FileNotFoundError:
        return LoadedSettings(Settings())
    except OSError as error:
        return _defaults(_unreadable(path, error))
    except (ValueError, RecursionError):  # no UTF-8, no JSON, or nested beyond reason
        return _defaults(_damaged(path))
    if not isinstance(data, dict):
        return _defaults(_damaged(path))

    values, bad = _read(data)
    return LoadedSettings(Settings(**values), (_bad_values(path, bad),) if bad else ())


def save_changes(path: Path, settings: Settings, names: Collection[str]) -> None:
    """Write the fields with these names; what another window has written into others meanwhile stays. Where
    no settings can be read any more, all are written. Raises OSError.
    """
    latest = settings
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        data = None
    if isinstance(data, dict):
        values, _ = _read(data)
        latest = replace(settings, **values)
    save_settings(path, replace(latest, **{name: getattr(settings, name) for name in names}))


def save_settings(path: Path, settings: Settings) -> None:
    """Write the file whole. Raises OSError."""
    values = {
        **settings.unknown,
        "version": SETTINGS_VERSION,
        "window_geometry_base64": settings.window_geometry_base64,
        "splitter_state_base64": settings.splitter_state_base64,
        "dock_state_base64": settings.dock_state_base64,
        "recent_models": [str(model) for model in settings.recent_models],
        "last_model": _written(settings.last_model),
        "last_conversation_id": settings.last_conversation_id,
        "theme": settings.theme,
        "language": settings.language,
        "text_percent": settings.text_percent,
        "device": settings.device,
        "vram_bytes": settings.vram_bytes,
        "context_tokens": settings.context_tokens,
        "threads": settings.threads,
        "context_policy": settings.context_policy,
        "live_panel": settings.live_panel,
        "folded_sections": list(settings.folded_sections),
        "state_ram_bytes": settings.state_ram_bytes,
        "state_disk_bytes": settings.state_disk_bytes,
        "presets": [{"name": one.name, "text": one.text} for one in settings.presets],
        "model_sampling": {str(path): one.as_values() for path, one in settings.model_sampling.items()},
        "model_runs": {str(path): one.as_values() for path, one in settings.model_runs.items()},
        "models_folder": _written(settings.models_folder),
        "chats_folder": _written(settings.chats_folder),
        "cache_folder": _written(settings.cache_folder),
    }
    write_whole(path, json.dumps(values, indent=2) + "\n")


def _read(data: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The fields that can be used, and the names of those that can't."""
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
    return values, bad


def _written(path: Path | None) -> str | None:
    return str(path) if path is not None else None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # half a surrogate pair, which JSON can hold, raises UnicodeEncodeError (a ValueError)
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _names(value: Any) -> tuple[str, ...]:
    """Few and short, each once."""
    if not isinstance(value, list):
        raise TypeError
    return tuple(dict.fromkeys(_text(name)[:MAX_NAME] for name in value[:MAX_NAMES]))


def _text_size(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value not in TEXT_SIZES:
        raise ValueError
    return value


def _device(value: Any) -> DeviceChoice:
    for device in get_args(DeviceChoice):
        if value == device:
            return device
    raise ValueError


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _path(value: Any) -> Path:
    if not isinstance(value, str):
        raise TypeError
    if not value or "\0" in value:
        raise ValueError
    return Path(value)  # with halves of surrogate pairs where a name is not UTF-8


def _paths(value: Any) -> tuple[Path, ...]:
    if not isinstance(value, list):
        raise TypeError
    return tuple(map(_path, value))[:MAX_RECENT_MODELS]


def _folder(value: Any) -> Path:
    path = _path(value)
    if not path.is_absolute():  # it would be another one with every working directory
        raise ValueError
    return path


def _samplings(value: Any) -> dict[Path, SamplingChoice]:
    if not isinstance(value, dict):
        raise TypeError
    read = {
        _path(path): SamplingChoice.from_values(one) for path, one in value.items() if isinstance(one, dict)
    }
    return dict(list(read.items())[-MAX_REMEMBERED_MODELS:])


def _runs(value: Any) -> dict[Path, RunChoice]:
    if not isinstance(value, dict):
        raise TypeError
    read = {_path(path): RunChoice.from_values(one) for path, one in value.items() if isinstance(one, dict)}
    return dict(list(read.items())[-MAX_REMEMBERED_RUNS:])


def _count(maximum: int, *, least: int = 1) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= maximum:
            raise ValueError
        return value

    return read


_READERS: dict[str, Callable[[Any], Any]] = {
    "window_geometry_base64": _text,
    "splitter_state_base64": _text,
    "dock_state_base64": _text,
    "recent_models": _paths,
    "last_model": _optional(_path),
    "last_conversation_id": _optional(_text),
    "theme": Theme,
    "language": Language,
    "text_percent": _text_size,
    "device": _device,
    "vram_bytes": _optional(_count(MAX_BYTES)),
    "context_tokens": _optional(_count(MAX_CONTEXT)),
    "threads": _optional(_count(MAX_THREADS)),
    "context_policy": ContextPolicy,
    "live_panel": _flag,
    "folded_sections": _names,
    "state_ram_bytes": _optional(_count(MAX_BYTES, least=0)),
    "state_disk_bytes": _optional(_count(MAX_BYTES, least=0)),
    "presets": presets_from,
    "model_sampling": _samplings,
    "model_runs": _runs,
    "models_folder": _optional(_folder),
    "chats_folder": _optional(_folder),
    "cache_folder": _optional(_folder),
}


def _defaults(notice: Notice) -> LoadedSettings:
    return LoadedSettings(Settings(), (notice,))


def _unreadable(path: Path, error: OSError) -> Notice:
    return Notice(
        "settings-unreadable",
        f"The settings in {path} can't be read ({error.strerror or error}), so the defaults are used.",
        _keep(path, "unreadable"),
    )


def _damaged(path: Path) -> Notice:
    return Notice(
        "settings-damaged",
        f"The settings in {path} are damaged, so the defaults are used.",
        _keep(path, "damaged"),
    )


def _keep(path: Path, reason: str) -> str:
    """Puts the file out of the way of the next save; says how that went."""
    try:
        kept = path.rename(free_name(path, reason))
    except OSError as error:
        return f"The file could not be kept: {error.strerror or error}."
    return f"The {reason} file is kept as {kept}."


def _bad_values(path: Path, names: list[str]) -> Notice:
    return Notice(
        "settings-value",
        f"The default is used for {', '.join(names)}, because the value in {path} can't be used.",
        "Choose it again in the settings.",
    )
