"""What happens in the engine: the answer that is being written, memory, the model, and what is kept."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QModelIndex, QObject, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QListView,
    QScrollArea,
    QSizePolicy,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.ui.card_memory import CardMemory
from app.ui.facts import NOTHING, Facts
from app.ui.metrics_words import copies_in_words, use_sentence, work_sentence
from app.ui.slot_delegate import SlotDelegate
from app.ui.slot_model import SLOT_ROLE, SlotModel
from app.ui.style_sheet import set_role
from app.ui.text_format import format_bytes, format_count, format_speed
from app.ui.theme import SPACE_L, SPACE_M, SPACE_S, theme_manager
from app.ui.token_rate import TokenRate
from engine.wording import format_tokens

if TYPE_CHECKING:
    from app.controller import ModelState, SlotTable
    from engine.generation import PrefillStats
    from engine.metrics import Metrics
    from engine.model_summary import ModelSummary

_RATE_MS = 500
_MODEL_FACTS = ("Name", "Kind", "Parameters", "Weights", "Layers", "Context", "Device")
_LEAST_KEPT = 96  # pixels of the list's height
_EMPTY = "Nothing is kept yet. What the model has read of a chat will be listed here."


class LivePanel(QWidget):
    """Shows what it is told. Signals: open_requested(conversation id), limits_requested, look_requested when
    it is opened: what other programs take of a card may have changed.
    """

    open_requested = Signal(str)
    limits_requested = Signal()
    look_requested = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName("What the engine keeps")
        self._titles: Mapping[str, str] = {}
        self._writing: str | None = None
        self._rate = TokenRate()
        self._timer = QTimer(self)
        self._timer.setInterval(_RATE_MS)
        self._timer.timeout.connect(self._show_rate)
        self._facts = QWidget(self)
        self.now = Facts(("Answer", "Speed", "Copies", "Prompt", "Reused", "Memory"), self._facts)
        self.card = CardMemory(self._facts)
        self.model = Facts(
            ("Name", "Kind", "Parameters", "Weights", "Layers", "Context", "Device"), self._facts
        )
        self.slots = SlotModel()
        self.view = QListView(self)
        self._kept = _heading("Kept of chats", self)
        self._empty = QLabel(_EMPTY, self)
        self._build()
        self.view.clicked.connect(self._open)
        self.view.activated.connect(self._open)
        theme_manager().changed.connect(self.view.viewport().update)
        self.now.explain("Memory", "What the whole program takes of this computer's memory")
        self.now.explain("Prompt", "How fast the model read what was new of the prompt")
        self.set_model_summary(None)
        self._show_metrics(None)

    # What is told

    def set_titles(self, titles: Mapping[str, str]) -> None:
        """Of conversations, by id."""
        self._titles = titles
        self.slots.set_titles(titles)
        self._show_answer()

    def set_slots(self, table: SlotTable) -> None:
        self.slots.set_slots(table.slots)
        self.now.show_fact("Memory", format_bytes(table.memory_bytes) if table.memory_bytes else NOTHING)
        self._show_metrics(table.metrics)
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
        self.now.show_fact("Reused", NOTHING)
        self.now.show_fact("Prompt", NOTHING)

    def show_prefill(self, stats: PrefillStats) -> None:
        self._rate.begin(monotonic())
        if self.isVisible():
            self._timer.start()
        self.now.show_fact("Reused", f"{stats.reused:,} of {format_tokens(stats.tokens)}")
        self.now.show_fact("Prompt", format_speed(stats.tokens - stats.reused, stats.seconds) or NOTHING)

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
        self.view.setMinimumHeight(_LEAST_KEPT)
        self.view.hide()
        column = QVBoxLayout(self)
        column.setContentsMargins(0, SPACE_S, 0, SPACE_S)
        column.setSpacing(SPACE_S)
        column.addWidget(self._facts_above())
        column.addLayout(self._kept_heading())
        column.addLayout(_padded(self._empty))
        column.addWidget(self.view, 1)
        column.addStretch(0)

    def _facts_above(self) -> QScrollArea:
        """All that isn't the list. Where the panel is too low for it, it is scrolled."""
        sections = (("Now", self.now), ("", self.card), ("Model", self.model))
        column = QVBoxLayout(self._facts)
        inside = SPACE_L - 1  # of the frame that shows the focus
        column.setContentsMargins(inside, SPACE_S, inside, 0)
        column.setSpacing(0)
        for title, part in sections:
            section = QWidget(self._facts)
            inner = QVBoxLayout(section)
            inner.setContentsMargins(0, 0, 0, SPACE_L)
            inner.setSpacing(SPACE_S)
            if title:
                inner.addWidget(_heading(title, section))
            inner.addWidget(part)
            column.addWidget(section)
        column.addStretch(1)
        scroll = _FittedScroll(self._facts, self)
        scroll.setAccessibleName("Answer, memory and model")
        set_role(scroll, "focusable")
        return scroll

    def _kept_heading(self) -> QHBoxLayout:
        limits = QToolButton(self)
        limits.setText("Limits…")
        limits.setAccessibleName("Limit or remove what is kept of conversations")
        limits.setToolTip("Limit or remove what is kept of conversations")
        limits.setProperty("role", "small")
        limits.clicked.connect(self.limits_requested)
        row = QHBoxLayout()
        row.setContentsMargins(SPACE_L, 0, SPACE_M, 0)
        row.addWidget(self._kept, 1)
        row.addWidget(limits)
        return row

    def _show_metrics(self, metrics: Metrics | None) -> None:
        """What only a card has is left out without one."""
        memory = metrics.memory if metrics is not None else None
        on_card = memory is not None and memory.card is not None
        self.card.show_memory(memory)
        self.card.parentWidget().setVisible(on_card)
        last = metrics.last_answer if metrics is not None else None
        self.now.leave_out("Prompt", not on_card)
        self.now.leave_out("Copies", last is None or max(last.h2d_per_token, last.d2h_per_token) <= 1)
        self.now.show_fact("Copies", copies_in_words(last) if last is not None else NOTHING)
        self.now.explain("Copies", "For each token, to the card and back: one each is what it should be")
        self.now.explain("Speed", work_sentence(last) if on_card and last is not None else "")
        self._kept.setToolTip(use_sentence(metrics) if metrics is not None else "")

    def _show_answer(self) -> None:
        title = self._titles.get(self._writing or "", "New chat") if self._writing else NOTHING
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
        elif not event.spontaneous():
            self.look_requested.emit()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._timer.stop()


class _FittedScroll(QScrollArea):
    """As high as what is in it, where there is room."""

    def __init__(self, content: QWidget, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
        self.setWidget(content)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.verticalScrollBar().rangeChanged.connect(self._take_focus_to_scroll)

    def _take_focus_to_scroll(self, _least: int, most: int) -> None:
        """Only where there is something to scroll, so that nobody tabs to it in vain."""
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus if most > 0 else Qt.FocusPolicy.NoFocus)

    # Qt overrides

    def sizeHint(self) -> QSize:
        frame = 2 * self.frameWidth()
        return QSize(super().sizeHint().width(), self.widget().sizeHint().height() + frame)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.LayoutRequest:
            self.updateGeometry()
        return super().eventFilter(watched, event)


def _model_facts(summary: ModelSummary | None) -> dict[str, str]:
    if summary is None:
        return dict.fromkeys(_MODEL_FACTS, NOTHING)
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
