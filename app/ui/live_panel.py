"""What happens in the engine: the answer that is being written, memory, the model, and what is kept."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING

from PySide6.QtCore import QModelIndex, QTimer, Signal
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import (
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QListView,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.ui.elided_label import ElidedLabel
from app.ui.slot_delegate import SlotDelegate
from app.ui.slot_model import SLOT_ROLE, SlotModel
from app.ui.style_sheet import set_role
from app.ui.text_format import format_bytes, format_count
from app.ui.theme import SPACE_L, SPACE_M, SPACE_S, SPACE_XS, theme_manager
from app.ui.token_rate import TokenRate
from engine.wording import format_tokens

if TYPE_CHECKING:
    from app.controller import ModelState, SlotTable
    from engine.generation import PrefillStats
    from engine.model_summary import ModelSummary

_RATE_MS = 500
_NOTHING = "\N{EM DASH}"
_EMPTY = "Nothing is kept yet. What the model has read of a chat will be listed here."


class LivePanel(QWidget):
    """Shows what it is told. Signals: open_requested(conversation id), limits_requested."""

    open_requested = Signal(str)
    limits_requested = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName("What the engine keeps")
        self._titles: Mapping[str, str] = {}
        self._writing: str | None = None
        self._rate = TokenRate()
        self._timer = QTimer(self)
        self._timer.setInterval(_RATE_MS)
        self._timer.timeout.connect(self._show_rate)
        self.now = _Facts(("Answer", "Speed", "Reused", "Memory"), self)
        self.model = _Facts(("Name", "Kind", "Parameters", "Weights", "Layers", "Context", "Device"), self)
        self.slots = SlotModel()
        self.view = QListView(self)
        self._empty = QLabel(_EMPTY, self)
        self._build()
        self.view.clicked.connect(self._open)
        self.view.activated.connect(self._open)
        theme_manager().changed.connect(self.view.viewport().update)
        self.set_model_summary(None)

    # What is told

    def set_titles(self, titles: Mapping[str, str]) -> None:
        """Of conversations, by id."""
        self._titles = titles
        self.slots.set_titles(titles)
        self._show_answer()

    def set_slots(self, table: SlotTable) -> None:
        self.slots.set_slots(table.slots)
        self.now.show_fact("Memory", format_bytes(table.memory_bytes) if table.memory_bytes else _NOTHING)
        self._empty.setVisible(not table.slots)
        self.view.setVisible(bool(table.slots))

    def set_model_state(self, state: ModelState) -> None:
        self.set_model_summary(state.summary)

    def set_model_summary(self, summary: ModelSummary | None) -> None:
        for name, value in _model_facts(summary).items():
            self.model.show_fact(name, value)
        self.slots.set_device(summary.device if summary is not None else "")

    def begin_answer(self, conversation_id: str) -> None:
        self._writing = conversation_id
        self._show_answer()
        self.now.show_fact("Speed", "Reading")
        self.now.show_fact("Reused", _NOTHING)

    def show_prefill(self, stats: PrefillStats) -> None:
        self._rate.begin(monotonic())
        if self.isVisible():
            self._timer.start()
        self.now.show_fact("Reused", f"{stats.reused:,} of {format_tokens(stats.tokens)}")

    def count_tokens(self, num_tokens: int) -> None:
        self._rate.add(num_tokens, monotonic())

    def end_answer(self) -> None:
        if self._writing is not None:
            self._show_rate()
        self._writing = None
        self._timer.stop()
        self._show_answer()

    # Inside

    def _build(self) -> None:
        set_role(self._empty, "small")
        self._empty.setWordWrap(True)
        self.view.setModel(self.slots)
        self.view.setItemDelegate(SlotDelegate(self.view))
        self.view.setAccessibleName("Conversations that the engine keeps")
        self.view.setFrameShape(QFrame.Shape.NoFrame)
        self.view.setMouseTracking(True)
        self.view.setVerticalScrollMode(QListView.ScrollMode.ScrollPerPixel)
        self.view.setSelectionMode(QListView.SelectionMode.NoSelection)
        self.view.hide()
        column = QVBoxLayout(self)
        column.setContentsMargins(0, SPACE_L, 0, SPACE_S)
        column.setSpacing(SPACE_S)
        for title, part in (("Now", self.now), ("Model", self.model)):
            column.addLayout(_padded(_heading(title, self)))
            column.addLayout(_padded(part))
            column.addSpacing(SPACE_M)
        column.addLayout(self._kept_heading())
        column.addLayout(_padded(self._empty))
        column.addWidget(self.view, 1)
        column.addStretch(0)

    def _kept_heading(self) -> QHBoxLayout:
        limits = QToolButton(self)
        limits.setText("Limits…")
        limits.setAccessibleName("Limit or remove what is kept of conversations")
        limits.setToolTip("Limit or remove what is kept of conversations")
        limits.setProperty("role", "small")
        limits.clicked.connect(self.limits_requested)
        row = QHBoxLayout()
        row.setContentsMargins(SPACE_L, 0, SPACE_M, 0)
        row.addWidget(_heading("Kept of chats", self), 1)
        row.addWidget(limits)
        return row

    def _show_answer(self) -> None:
        title = self._titles.get(self._writing or "", "New chat") if self._writing else _NOTHING
        self.now.show_fact("Answer", title)

    def _show_rate(self) -> None:
        rate = self._rate.at(monotonic())
        if rate is not None:
            self.now.show_fact("Speed", f"{rate:.1f} tok/s")

    def _open(self, index: QModelIndex) -> None:
        slot = index.data(SLOT_ROLE)
        if slot is not None and slot.conversation in self._titles:
            self.open_requested.emit(slot.conversation)

    # Qt overrides

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._writing is not None:
            self._timer.start()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._timer.stop()


class _Facts(QWidget):
    """Names on the left, values on the right."""

    def __init__(self, names: tuple[str, ...], parent: QWidget) -> None:
        super().__init__(parent)
        self._values: dict[str, ElidedLabel] = {}
        grid = QGridLayout(self)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(SPACE_L)
        grid.setVerticalSpacing(SPACE_XS)
        grid.setColumnStretch(1, 1)
        for row, name in enumerate(names):
            label = QLabel(name, self)
            set_role(label, "small")
            value = self._values[name] = ElidedLabel(_NOTHING, self)
            grid.addWidget(label, row, 0)
            grid.addWidget(value, row, 1)

    def fact(self, name: str) -> str:
        return self._values[name].text()

    def show_fact(self, name: str, value: str) -> None:
        if self._values[name].text() != value:
            self._values[name].setText(value)


def _model_facts(summary: ModelSummary | None) -> dict[str, str]:
    if summary is None:
        return dict.fromkeys(
            ("Name", "Kind", "Parameters", "Weights", "Layers", "Context", "Device"), _NOTHING
        )
    weights = {"native": "as stored", "q8": "8 bits", "q4": "4 bits"}[summary.weights]
    return {
        "Name": summary.name,
        "Kind": summary.family,
        "Parameters": format_count(summary.parameters),
        "Weights": f"{format_bytes(summary.weight_bytes)}, {weights}",
        "Layers": f"{summary.layers:,}",
        "Context": format_tokens(summary.context_length),
        "Device": summary.device_description,
    }


def _heading(text: str, parent: QWidget) -> QLabel:
    label = QLabel(text, parent)
    set_role(label, "section")
    return label


def _padded(part: QWidget) -> QVBoxLayout:
    box = QVBoxLayout()
    box.setContentsMargins(SPACE_L, 0, SPACE_L, 0)
    box.addWidget(part)
    return box
