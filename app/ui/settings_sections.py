"""Which settings there are, by section. A new one is a row here; the dialog, its search and the presenter
follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from PySide6.QtWidgets import QWidget

from app.context_policy import ContextPolicy
from app.paths import Folders
from app.settings import MAX_CONTEXT, MAX_THREADS, Settings, Theme
from app.ui.setting_rows import ButtonRow, ChoiceRow, FolderRow, NumberRow, SettingRow
from app.ui.text_format import parse_bytes

# The field of Settings that says which folder, by its name in Folders; others can't be changed.
FOLDER_FIELDS = {"models": "models_folder", "chats": "chats_folder", "cache": "cache_folder"}


@dataclass(frozen=True)
class Section:
    name: str
    rows: tuple[SettingRow, ...]


class SettingsSections:
    """The rows, made once for a dialog.

    by_field: those that show one field of Settings; folders: by their names in Folders.
    """

    def __init__(self, parent: QWidget) -> None:
        self.theme = ChoiceRow(
            "Theme",
            "Light, dark, or as the system has it.",
            options=[
                (Theme.SYSTEM, "As the system"),
                (Theme.LIGHT, "Light"),
                (Theme.DARK, "Dark"),
            ],
            words="appearance colours",
            parent=parent,
        )
        self.device = _device_row(parent)
        self.budget = NumberRow(
            "At most of the card's memory",
            "How much of the graphics card a model may take, from the next load on.",
            read=lambda text: parse_bytes(text, zero=""),
            write=lambda count: f"{count / 1e9:.9f}".rstrip("0").rstrip("."),
            unit="GB",
            empty="all",
            words="vram gpu limit budget",
            parent=parent,
        )
        self.context = NumberRow(
            "Length of the context",
            "How many tokens of a conversation a model keeps in view, from the next load on.",
            read=_whole("tokens", MAX_CONTEXT),
            write=str,
            unit="tokens",
            empty="the model's",
            words="context window size",
            parent=parent,
        )
        self.threads = NumberRow(
            "Processor cores",
            "How many cores a model may use where it runs on the processor, from the next load on.",
            read=_whole("cores", MAX_THREADS),
            write=str,
            unit="cores",
            empty="all",
            words="threads cpu",
            parent=parent,
        )
        self.policy = ChoiceRow(
            "When the context is full",
            "What happens when a conversation gets longer than the model keeps in view.",
            options=[
                (ContextPolicy.STOP, "Stop, and say so"),
                (ContextPolicy.DROP_OLDEST, "Go on without the oldest messages"),
            ],
            parent=parent,
        )
        self.limits = ButtonRow(
            "What is kept of conversations",
            "What a model has read of a chat can be kept, so that it need not be read again.",
            button="Limits…",
            words="memory disk states cache",
            parent=parent,
        )
        self.reset = ButtonRow(
            "Reset",
            "Puts all settings back as they were at the first start.",
            button="Reset all settings…",
            danger=True,
            words="default factory restore",
            parent=parent,
        )
        self.folders = _folder_rows(parent)
        self.by_field: dict[str, ChoiceRow | NumberRow] = {
            "theme": self.theme,
            "device": self.device,
            "vram_bytes": self.budget,
            "context_tokens": self.context,
            "threads": self.threads,
            "context_policy": self.policy,
        }
        self.all = (
            Section("Look", (self.theme,)),
            Section("Models", (self.device, self.budget, self.context, self.threads)),
            Section("Conversations", (self.policy, self.limits)),
            Section("Folders", tuple(self.folders.values())),
            Section("Reset", (self.reset,)),
        )

    def show_settings(self, settings: Settings, folders: Folders) -> None:
        for field, row in self.by_field.items():
            row.show_value(getattr(settings, field))
        for name, folder in self.folders.items():
            chosen = getattr(settings, FOLDER_FIELDS[name]) if name in FOLDER_FIELDS else None
            folder.show_folder(getattr(folders, name), is_default=chosen is None)


def _device_row(parent: QWidget) -> ChoiceRow:
    return ChoiceRow(
        "Models run on",
        "Automatic takes the graphics card where there is one that will do. Counts from the next load on.",
        options=[("auto", "Automatic"), ("cuda", "Graphics card"), ("cpu", "Processor")],
        words="device gpu cpu cuda",
        parent=parent,
    )


def _folder_rows(parent: QWidget) -> dict[str, FolderRow]:
    rows = {
        "models": FolderRow(
            "Models", "Where choosing a model begins.", changes=True, words="download", parent=parent
        ),
        "chats": FolderRow(
            "Conversations",
            "Another folder gets a copy of all conversations, or shows those that are in it already.",
            changes=True,
            words="chats history database",
            parent=parent,
        ),
        "cache": FolderRow(
            "Prepared weights",
            "May be large, and is made again when it is gone. Counts from the next start on.",
            changes=True,
            words="cache kernels disk space",
            parent=parent,
        ),
        "settings": FolderRow("Settings", "Where these settings are kept.", changes=False, parent=parent),
        "log": FolderRow(
            "Log", "What went wrong stands here, for a report.", changes=False, words="crash", parent=parent
        ),
    }
    assert rows.keys() == {field.name for field in fields(Folders)}
    return rows


def _whole(what: str, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        digits = "".join(text.replace(",", "").replace("\u202f", "").split())
        if not (digits.isascii() and digits.isdigit()) or not 1 <= int(digits) <= most:
            raise ValueError(f"“{text}” can't be used. Write a whole number of {what}, from 1 to {most:,}.")
        return int(digits)

    return read
