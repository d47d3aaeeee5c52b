"""The rows of the slot table: what the engine keeps of each conversation. Knows no widget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PySide6.QtCore import QAbstractListModel, QModelIndex, QPersistentModelIndex, Qt

from app.language import mark, tr, tr_n
from app.ui.text_format import format_tokens
from engine.generation import SlotInfo

Index = QModelIndex | QPersistentModelIndex

SLOT_ROLE = Qt.ItemDataRole.UserRole + 1  # SlotInfo
DETAIL_ROLE = Qt.ItemDataRole.UserRole + 2  # list[str]: what stands below the title
PLACE_ROLE = Qt.ItemDataRole.UserRole + 3  # str: where it lives, in a word
_UNKNOWN = mark("A chat that is gone")


class SlotModel(QAbstractListModel):
    """Takes the whole table at a time; titles come by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self._slots: tuple[SlotInfo, ...] = ()
        self._titles: Mapping[str, str] = {}
        self._device = ""

    def set_slots(self, slots: Sequence[SlotInfo]) -> None:
        self.beginResetModel()
        self._slots = tuple(slots)
        self.endResetModel()

    def set_titles(self, titles: Mapping[str, str]) -> None:
        """By conversation id."""
        self._titles = titles
        self._all_changed()

    def set_device(self, device: str) -> None:
        """Where the pool is: "cpu" or "cuda"."""
        self._device = device
        self._all_changed()

    def _all_changed(self) -> None:
        if self._slots:
            self.dataChanged.emit(self.index(0), self.index(len(self._slots) - 1))

    def _place(self, slot: SlotInfo) -> str:
        pool = mark("Card") if self._device.startswith("cuda") else mark("Ready")
        names = {"pool": pool, "ram": mark("RAM"), "disk": mark("Disk"), "fallback": mark("CPU")}
        return tr(names[slot.place])

    # Qt overrides

    def rowCount(self, parent: Index | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(self._slots)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        slot = self._slots[index.row()]
        title = self._titles.get(slot.conversation, tr(_UNKNOWN))
        match role:
            case Qt.ItemDataRole.DisplayRole:
                return title
            case Qt.ItemDataRole.AccessibleTextRole:
                return tr(", ").join((title, self._place(slot), *slot_lines(slot)))
            case Qt.ItemDataRole.ToolTipRole:
                return slot_sentence(slot)
        if role == SLOT_ROLE:
            return slot
        if role == DETAIL_ROLE:
            return slot_lines(slot)
        return self._place(slot) if role == PLACE_ROLE else None


def slot_lines(slot: SlotInfo) -> list[str]:
    """What is kept, and what the last prompt had of it."""
    pages = tr_n("{count:,} page", "{count:,} pages", slot.pages)
    if slot.reused is not None and slot.total is not None:
        reuse = tr("Last reused {part:,} of {whole:,}", part=slot.reused, whole=slot.total)
    else:
        reuse = tr("Not used since the program began")
    return [f"{format_tokens(slot.tokens)} · {pages}", reuse]


def slot_sentence(slot: SlotInfo) -> str:
    sentences = {
        "pool": mark("Where the model computes: the next message begins at once."),
        "ram": mark("It made room for others; it comes back from memory without being read again."),
        "disk": mark("It made room for others; it comes back from disk without being read again."),
        "fallback": mark("There was no room on the card, so the processor computes it."),
    }
    return tr(sentences[slot.place])
