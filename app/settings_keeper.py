"""Holds the settings while the program runs and lets the file follow, off the GUI thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.operations import BackgroundRunner
from app.settings import Settings, save_settings
from engine.notices import Notice


class SettingsKeeper:
    """Changes show at once in `current`. Those made while the file is being written are written together
    after it.
    """

    def __init__(
        self, path: Path, settings: Settings, *, runner: BackgroundRunner, on_error: Callable[[Notice], None]
    ) -> None:
        self.current = settings
        self._path = path
        self._runner = runner
        self._on_error = on_error
        self._saved: Settings | None = settings  # on disk or on its way there; None: the last write failed
        self._writing = False
        self._failure_told = False  # until a write succeeds: every change would tell it anew
        self._closed = False

    def change(self, **changes: Any) -> None:
        """Change fields by name."""
        self.current = replace(self.current, **changes)
        if not self._writing:
            self._save()

    def close(self) -> None:
        """Queue the last changes, even while a write is under way. Later changes are not saved."""
        self._save()
        self._closed = True

    def _save(self) -> None:
        if self._closed or self.current == self._saved:
            return
        settings = self.current
        self._writing = True
        self._saved = settings
        self._runner.run(
            lambda: save_settings(self._path, settings),
            self._on_written,
            self._on_failed,
            doing="saving the settings",
        )

    def _on_written(self, _: None) -> None:
        self._writing = False
        self._failure_told = False
        self._save()

    def _on_failed(self, notice: Notice) -> None:
        # Tried again with the next change, not at once: a full disk stays full.
        self._writing = False
        self._saved = None
        if not self._failure_told:
            self._failure_told = True
            self._on_error(notice)
