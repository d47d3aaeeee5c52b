"""Where the program's files live."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from engine.default_folders import APP_NAME


@dataclass(frozen=True)
class AppPaths:
    """Folders of the program; they are made when something is first written into them."""

    data_folder: Path  # conversations
    config_folder: Path  # settings
    log_folder: Path
    chats_folder: Path | None = None  # that a person chose for the conversations; None: the data folder

    @classmethod
    def default(cls) -> AppPaths:
        """The folders that the system gives a program for this person."""
        import platformdirs  # only needed here; tests use `under`

        return cls(
            data_folder=platformdirs.user_data_path(APP_NAME, appauthor=False),
            config_folder=platformdirs.user_config_path(APP_NAME, appauthor=False),
            log_folder=platformdirs.user_log_path(APP_NAME, appauthor=False),
        )

    def with_chats_in(self, folder: Path | None) -> AppPaths:
        """Conversations in a folder that a person chose; what is computed of them stays where it is."""
        return replace(self, chats_folder=folder)

    @classmethod
    def under(cls, folder: Path) -> AppPaths:
        """Everything under one folder: a portable installation, or a test."""
        return cls(data_folder=folder / "data", config_folder=folder / "config", log_folder=folder / "log")

    @property
    def conversations_file(self) -> Path:
        return (self.chats_folder or self.data_folder) / "conversations.sqlite3"

    @property
    def states_folder(self) -> Path:
        """What the engine keeps of these conversations."""
        return self.data_folder / "states"

    @property
    def notices_file(self) -> Path:
        """What was told."""
        return self.data_folder / "notices.jsonl"

    @property
    def settings_file(self) -> Path:
        return self.config_folder / "settings.json"

    @property
    def load_marker_file(self) -> Path:
        """Stands on disk only while a model is being loaded without having been asked for (see
        app/settings.py).
        """
        return self.data_folder / "loading-model.json"

    @property
    def log_file(self) -> Path:
        return self.log_folder / "kestrel-chat.log"


@dataclass(frozen=True)
class Folders:
    """Where things are now, to be shown to the person."""

    models: Path  # where models are looked for first
    chats: Path
    cache: Path  # prepared weights and kernels
    settings: Path
    log: Path
