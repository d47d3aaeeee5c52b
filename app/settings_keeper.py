"""Holds the settings while the program runs and lets the file follow, off the GUI thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.operations import BackgroundRunner
from app.settings import Settings, save_changes
from engine.notices import Notice


class SettingsKeeper:
    """Changes show at once in `current`. Those made while the file is being written are written together
    after it. Only what was changed here is written: another window may have changed the rest.
    """

    def __init__(
        self, path: Path, settings: Settings, *, runner: BackgroundRunner, on_error: Callable[[Notice], None]
    ) -> None:
        self.current = settings
        self._path = path
        self._runner = runner
        self._on_error = on_error
        self._unsaved: set[str] = set()  # fields that are not known to be on disk as they are here
        self._writing = False
        self._failure_told = False  # until a write succeeds: every change would tell it anew
        self._closed = False

    def change(self, **changes: Any) -> None:
        """Change fields by name."""
        before, self.current = self.current, replace(self.current, **changes)
        self._unsaved |= {name for name in changes if getattr(before, name) != getattr(self.current, name)}
        if not self._writing:
            self._save()

    def close(self) -> None:
        """Queue the last changes, even while a write is under way. Later changes are not saved."""
        self._save()
        self._closed = True

    def _save(self) -> None:
        if self._closed or not self._unsaved:
            return
        settings, names = self.current, frozenset(self._unsaved)
        self._writing = True
        self._runner.run(
            lambda: save_changes(self._path, settings, names),
            lambda _: self._on_written(settings, names),
            self._on_failed,
            doing="saving the settings",
        )

    def _on_written(self, settings: Settings, names: frozenset[str]) -> None:
        self._unsaved -= {name for name in names if getattr(settings, name) == getattr(self.current, name)}
        self._writing = False
        self._failure_told = False
        self._save()

    def _on_failed(self, notice: Notice) -> None:
        # Tried again with the next change, not at once: a full disk stays full.
        self._writing = False
        if not self._failure_told:
            self._failure_told = True
            self._on_error(notice)
