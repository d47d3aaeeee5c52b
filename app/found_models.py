"""Models that stand on this computer already, where models usually are: a person who has one need not know
in which folder it lies. Only names are looked at; nothing is opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from engine.default_folders import cache_folder, default_cache_folder

MAX_FOUND = 8  # more than a glance takes in
MAX_ENTRIES = 20_000  # names that are read: a folder that was chosen may hold a whole disk
MAX_DEPTH = 4  # below a place: publisher / model / snapshots / revision
_NOT_ALONE = re.compile(r"-\d{5}-of-\d{5}\.gguf$|^mmproj", re.IGNORECASE)  # a part of a model


def usual_places(models_folder: Path | None = None) -> tuple[Path, ...]:
    """Where to look, in this order: the folder that was chosen for models, the one that the starter model is
    put into, and those into which LM Studio and Hugging Face's tools download. They need not exist.
    """
    environment = os.environ
    home = Path.home()
    cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    hub = environment.get("HF_HUB_CACHE") or Path(environment.get("HF_HOME") or cache / "huggingface") / "hub"
    places = (
        models_folder,
        cache_folder() / "models",
        default_cache_folder() / "models",
        home / ".lmstudio" / "models",
        Path(hub),
    )
    return tuple(dict.fromkeys(place for place in places if place is not None))


def find_models(places: Iterable[Path], *, most: int = MAX_FOUND) -> tuple[Path, ...]:
    """Folders with a configuration and weights, and GGUF files that are a whole model; each once, by place
    and then by name, `most` at most. What can't be read is left out. Touches the disk.
    """
    found: dict[Path, None] = {}
    entries_left = MAX_ENTRIES
    for place in places:
        waiting = [(place, 0)]
        while waiting and entries_left > 0:
            folder, depth = waiting.pop(0)
            entries = list(_entries(folder, entries_left))
            entries_left -= len(entries)
            names = {entry.name for entry in entries}
            if "config.json" in names and any(name.endswith(".safetensors") for name in names):
                found.setdefault(folder)
                continue  # what lies in it belongs to it
            for entry in sorted(entries, key=lambda one: one.name.casefold()):
                path = folder / entry.name
                if path.suffix.lower() == ".gguf" and not _NOT_ALONE.search(entry.name):
                    found.setdefault(path)
                elif depth < MAX_DEPTH and _is_folder(entry):
                    waiting.append((path, depth + 1))
            if len(found) >= most:
                return tuple(found)[:most]
    return tuple(found)


def _entries(folder: Path, most: int) -> Iterator[os.DirEntry[str]]:
    """Of a folder, without what is hidden; none where it is missing or may not be read."""
    try:
        with os.scandir(folder) as listing:
            for number, entry in enumerate(listing):
                if number >= most:
                    return
                if not entry.name.startswith("."):
                    yield entry
    except OSError:  # no such place is the usual case, and nobody asked for this one by name
        return


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Links are not followed: they may lead in circles."""
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:  # gone meanwhile, or a drive that fails
        return False
