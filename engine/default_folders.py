"""Where the engine keeps what outlives a load, in the folders that the system gives a program for this
person. Nothing is made here.
"""

from __future__ import annotations

from pathlib import Path

APP_NAME = "kestrel-chat"


def code_folder() -> Path:
    """Compiled kernels."""
    import platformdirs

    return platformdirs.user_cache_path(APP_NAME, appauthor=False) / "kernels"


def strips_folder() -> Path:
    """Prepared weights."""
    import platformdirs

    return platformdirs.user_cache_path(APP_NAME, appauthor=False) / "strips"


def states_folder() -> Path:
    """What was computed of conversations, where the program doesn't say otherwise."""
    import platformdirs

    return platformdirs.user_data_path(APP_NAME, appauthor=False) / "states"
