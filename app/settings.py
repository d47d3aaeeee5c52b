"""What the program remembers between two runs: one typed object, one JSON file."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

MAX_RECENT_MODELS = 10


class Theme(StrEnum):
    SYSTEM = "system"
    LIGHT = "light"
    DARK = "dark"


@dataclass(frozen=True)
class Settings:
    """Change it with `dataclasses.replace`, or through `ChatController.update_settings`, which also saves it."""

    window_geometry_base64: str = ""  # QWidget.saveGeometry
    splitter_state_base64: str = ""  # QSplitter.saveState
    recent_models: tuple[Path, ...] = ()  # newest first
    last_model: Path | None = None  # loaded again at the next start
    last_conversation_id: str | None = None
    theme: Theme = Theme.SYSTEM
    context_tokens: int | None = None  # None: the model's own length
    threads: int | None = None  # None: all cores
