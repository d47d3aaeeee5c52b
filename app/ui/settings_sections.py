"""Which settings there are, by section. A new one is a row here; the dialog, its search and the presenter
follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from PySide6.QtWidgets import QWidget

from app.context_policy import ContextPolicy
from app.language import OWN_NAMES, Language, mark, tr
from app.paths import Folders
from app.settings import MAX_CONTEXT, MAX_THREADS, TEXT_SIZES, Settings, Theme
from app.ui.setting_rows import ButtonRow, ChoiceRow, FolderRow, NumberRow, SettingRow
from app.ui.text_format import parse_bytes

_TOKENS_WANTED = mark("“{text}” can't be used. Write a whole number of tokens, from 1 to {most:,}.")
_CORES_WANTED = mark("“{text}” can't be used. Write a whole number of cores, from 1 to {most:,}.")

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
        self._make_look(parent)
        self._make_models(parent)
        self._make_conversations(parent)
        self.folders = _folder_rows(parent)
        self.by_field: dict[str, ChoiceRow | NumberRow] = {
            "theme": self.theme,
            "language": self.language,
            "text_percent": self.text_size,
            "device": self.device,
            "vram_bytes": self.budget,
            "context_tokens": self.context,
            "threads": self.threads,
            "context_policy": self.policy,
        }
        self.all = (
            Section(tr("Look"), (self.theme, self.language, self.text_size)),
            Section(tr("Models"), (self.device, self.budget, self.context, self.threads)),
            Section(tr("Conversations"), (self.policy, self.limits)),
            Section(tr("Folders"), tuple(self.folders.values())),
            Section(tr("Reset"), (self.reset,)),
        )

    def show_settings(self, settings: Settings, folders: Folders) -> None:
        for field, row in self.by_field.items():
            row.show_value(getattr(settings, field))
        for name, folder in self.folders.items():
            chosen = getattr(settings, FOLDER_FIELDS[name]) if name in FOLDER_FIELDS else None
            folder.show_folder(getattr(folders, name), is_default=chosen is None)

    def _make_look(self, parent: QWidget) -> None:
        self.theme = ChoiceRow(
            tr("Theme"),
            tr("Light, dark, or as the system has it."),
            options=[
                (Theme.SYSTEM, tr("As the system")),
                (Theme.LIGHT, tr("Light")),
                (Theme.DARK, tr("Dark")),
            ],
            words=tr("appearance colours"),
            parent=parent,
        )
        self.language = ChoiceRow(
            tr("Language"),
            tr("Of the window. Models answer in the language they are asked in."),
            options=[
                (Language.SYSTEM, tr("As the system")),
                *((one, name) for one, name in OWN_NAMES.items()),
            ],
            words="language translation english chinese 语言 中文 英文",
            parent=parent,
        )
        self.text_size = ChoiceRow(
            tr("Size of text"),
            tr("Of all text in the window: Ctrl and +, −, 0, or Ctrl and the wheel over a chat."),
            options=[(percent, f"{percent} %") for percent in TEXT_SIZES],
            words=tr("font zoom larger smaller scale"),
            parent=parent,
        )

    def _make_models(self, parent: QWidget) -> None:
        self.device = _device_row(parent)
        self.budget = NumberRow(
            tr("At most of the card's memory"),
            tr("How much of the graphics card a model may take, from the next load on."),
            read=lambda text: parse_bytes(text, zero=""),
            write=lambda count: f"{count / 1e9:.9f}".rstrip("0").rstrip("."),
            unit="GB",
            empty=tr("all"),
            words=tr("vram gpu limit budget"),
            parent=parent,
        )
        self.context = NumberRow(
            tr("Length of the context"),
            tr("How many tokens of a conversation a model keeps in view, from the next load on."),
            read=_whole(_TOKENS_WANTED, MAX_CONTEXT),
            write=str,
            unit=tr("tokens"),
            empty=tr("the model's"),
            words=tr("context window size"),
            parent=parent,
        )
        self.threads = NumberRow(
            tr("Processor cores"),
            tr("How many cores a model may use where it runs on the processor, from the next load on."),
            read=_whole(_CORES_WANTED, MAX_THREADS),
            write=str,
            unit=tr("cores"),
            empty=tr("all"),
            words=tr("threads cpu"),
            parent=parent,
        )

    def _make_conversations(self, parent: QWidget) -> None:
        self.policy = ChoiceRow(
            tr("When the context is full"),
            tr("What happens when a conversation gets longer than the model keeps in view."),
            options=[
                (ContextPolicy.STOP, tr("Stop, and say so")),
                (ContextPolicy.DROP_OLDEST, tr("Go on without the oldest messages")),
            ],
            parent=parent,
        )
        self.limits = ButtonRow(
            tr("What is kept of conversations"),
            tr("What a model has read of a chat can be kept, so that it need not be read again."),
            button=tr("Limits…"),
            words=tr("memory disk states cache"),
            parent=parent,
        )
        self.reset = ButtonRow(
            tr("Reset"),
            tr("Puts all settings back as they were at the first start."),
            button=tr("Reset all settings…"),
            danger=True,
            words=tr("default factory restore"),
            parent=parent,
        )


def _device_row(parent: QWidget) -> ChoiceRow:
    return ChoiceRow(
        tr("Models run on"),
        tr(
            "Automatic takes the graphics card where there is one that will do. Counts from the next load on."
        ),
        options=[("auto", tr("Automatic")), ("cuda", tr("Graphics card")), ("cpu", tr("Processor"))],
        words=tr("device gpu cpu cuda"),
        parent=parent,
    )


def _folder_rows(parent: QWidget) -> dict[str, FolderRow]:
    rows = {
        "models": FolderRow(
            tr("Models"),
            tr("Where choosing a model begins."),
            changes=True,
            words=tr("download"),
            parent=parent,
        ),
        "chats": FolderRow(
            tr("Conversations"),
            tr("Another folder gets a copy of all conversations, or shows those that are in it already."),
            changes=True,
            words=tr("chats history database"),
            parent=parent,
        ),
        "cache": FolderRow(
            tr("Prepared weights"),
            tr("May be large, and is made again when it is gone. Counts from the next start on."),
            changes=True,
            words=tr("cache kernels disk space"),
            parent=parent,
        ),
        "settings": FolderRow(
            tr("Settings"), tr("Where these settings are kept."), changes=False, parent=parent
        ),
        "log": FolderRow(
            tr("Log"),
            tr("What went wrong stands here, for a report."),
            changes=False,
            words=tr("crash"),
            parent=parent,
        ),
    }
    assert rows.keys() == {field.name for field in fields(Folders)}
    return rows


def _whole(sentence: str, most: int) -> Callable[[str], int]:
    """sentence: what is wrong with any other text, in English."""

    def read(text: str) -> int:
        digits = "".join(text.replace(",", "").replace("\u202f", "").split())
        if not (digits.isascii() and digits.isdigit()) or not 1 <= int(digits) <= most:
            raise ValueError(tr(sentence, text=text, most=most))
        return int(digits)

    return read
