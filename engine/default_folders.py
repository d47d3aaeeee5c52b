"""Where the engine keeps what outlives a load, in the folders that the system gives a program for this
person, or in the one that they chose for it. Nothing is made here.
"""

from __future__ import annotations

from pathlib import Path

APP_NAME = "kestrel-chat"


_chosen_cache: Path | None = None


def use_cache_folder(folder: Path | None) -> None:
    """Keep what can be made again in this folder; None: in the system's. To be said before the first load."""
    global _chosen_cache
    _chosen_cache = folder


def default_cache_folder() -> Path:
    """Of what can be made again."""
    import platformdirs

    return platformdirs.user_cache_path(APP_NAME, appauthor=False)


def cache_folder() -> Path:
    """The one that was chosen for it, or the system's."""
    return _chosen_cache or default_cache_folder()


def code_folder() -> Path:
    """Compiled kernels."""
    return cache_folder() / "kernels"


def strips_folder() -> Path:
    """Prepared weights."""
    return cache_folder() / "strips"


def states_folder() -> Path:
    """What was computed of conversations, where the program doesn't say otherwise."""
    import platformdirs

    return platformdirs.user_data_path(APP_NAME, appauthor=False) / "states"
