"""What happens in the engine: the answer that is being written, memory, the model, and what is kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from time import monotonic
from typing import TYPE_CHECKING

from PySide6.QtCore import QModelIndex, QTimer, Signal
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QListView,
    QScrollArea,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.language import mark, tr
from app.ui.card_memory import CardMemory
from app.ui.device_words import device_words
from app.ui.elided_label import ElidedLabel
from app.ui.facts import NOTHING, Facts
from app.ui.fitted_scroll import FittedScroll
from app.ui.metrics_words import (
    copies_in_words,
    layers_in_words,
    moves_in_words,
    shown_work,
    use_sentence,
    work_sentence,
)
from app.ui.panel_section import PanelSection
from app.ui.slot_delegate import SlotDelegate
from app.ui.slot_model import SLOT_ROLE, SlotModel
from app.ui.speed_history import STEP_SECONDS, SpeedHistory
from app.ui.speed_plot import SpeedPlot
from app.ui.style_sheet import set_role
from app.ui.text_format import format_bytes, format_count, format_speed, format_tokens
from app.ui.theme import SPACE_L, SPACE_M, SPACE_S, theme_manager
from app.ui.token_rate import TokenRate

if TYPE_CHECKING:
    from app.controller import ModelState, SlotTable
    from engine.generation import PrefillStats
    from engine.metrics import LayerUse, Metrics
    from engine.model_summary import ModelSummary

_STEP_MS = round(STEP_SECONDS * 1000)  # nothing here is brought up to date more often
_NOW_FACTS = {
    mark("Answer"): mark("The chat in which an answer is being written"),
    mark("Speed"): "",  # what the card was asked to do for a token, once there is an answer
    mark("Copies"): mark("For each token, to the card and back: one each is what it should be"),
    mark("Prompt"): mark("How fast the model read what was new of the prompt"),
    mark("Reused"): mark("How much of the prompt was in memory already and needed not be read"),
    mark("Context"): mark("How much of the open chat the model keeps in view, of what it can"),
    mark("Memory"): mark("What the whole program takes of this computer's memory"),
    mark("Layers"): mark("How many of the model's layers are in the card's memory at once"),
    mark("Brought"): mark(
        "Layers that were brought to the card since the model was loaded: each one is read anew"
    ),
}
_MODEL_FACTS = {
    mark("Name"): mark("The model that answers"),
    mark("Kind"): mark("The family that it belongs to"),
    mark("Parameters"): mark("How many numbers the model is made of"),
    mark("Weights"): mark("What these take of memory, and how many bits each has"),
    mark("Layers"): mark("How deep the model is"),
    mark("Context"): mark("The longest chat that it keeps in view, as it was loaded"),
    mark("Device"): mark("What computes"),
}
_LEAST_KEPT = 96  # pixels of the list's height
_CARD = mark("Memory of the card")
_EMPTY = mark("Nothing is kept yet. What the model has read of a chat will be listed here.")
_PRECISIONS = {"native": mark("as stored"), "q8": mark("8 bits"), "q4": mark("4 bits")}


class LivePanel(QWidget):
    """Shows what it is told, four times a second at most, and nothing while it is hidden. Signals:
    open_requested(conversation id), limits_requested, look_requested when it is opened: what other programs
    take of a card may have changed; watch_changed(bool), whether somebody sees it; folded_changed.
    """

    open_requested = Signal(str)
    limits_requested = Signal()
    look_requested = Signal()
    watch_changed = Signal(bool)
    folded_changed = Signal(tuple)  # names of the sections that are folded away by now

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName(tr("What the engine keeps"))
        self._titles: Mapping[str, str] = {}
        self._writing: str | None = None
        self._prefill: PrefillStats | None = None  # of the answer that is being written
        self._rate = TokenRate()
        self._history = SpeedHistory()
        self._moves: tuple[float, int] | None = None  # when layers were counted, and how many came by then
        self._used, self._limit = 0, 0  # tokens of the context
        self._table: SlotTable | None = None  # as it is shown
        self._timer = QTimer(self)
        self._timer.setInterval(_STEP_MS)
        self._timer.timeout.connect(self._step)
        self._facts = QWidget(self)
        self.now = Facts(tuple(_NOW_FACTS), self._facts)
        self.plot = SpeedPlot(self._history, self._facts)
        self.card = CardMemory(self._facts)
        self.model = Facts(tuple(_MODEL_FACTS), self._facts)
        self.slots = SlotModel()
        self.view = QListView(self)
        self._kept = _heading(tr("Kept of chats"), self)
        self._empty = QLabel(tr(_EMPTY), self)
        self._build()
        self.view.clicked.connect(self._open)
        self.view.activated.connect(self._open)
        theme_manager().changed.connect(self.view.viewport().update)
        for facts, explanations in ((self.now, _NOW_FACTS), (self.model, _MODEL_FACTS)):
            for name, explanation in explanations.items():
                facts.explain(name, tr(explanation) if explanation else "")
        self.set_model_summary(None)
        self._show_metrics(None)

    # What is told

    def take_over(self, other: LivePanel) -> None:
        """The last minute, and the answer that is being written."""
        self._history.written.extend(other._history.written)
        self._history.read.extend(other._history.read)
        self._rate = other._rate
        if other._writing is not None:
            self.begin_answer(other._writing)
            if other._prefill is not None:
                self._show_prefill(other._prefill)

    def fold(self, names: Collection[str]) -> None:
        """The sections that are folded away; a name that there is no section for is left out."""
        for name, section in self.sections.items():
            section.heading.setChecked(name not in names)

    def set_titles(self, titles: Mapping[str, str]) -> None:
        """Of conversations, by id."""
        self._titles = titles
        self.slots.set_titles(titles)
        self._show_answer()

    def set_slots(self, table: SlotTable) -> None:
        if self._table is None or table.slots != self._table.slots:
            self.slots.set_slots(table.slots)
        self._table = table
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
        self._limit = summary.context_length if summary is not None else 0
        self._moves = None
        self._show_context()

    def set_context_used(self, tokens: int) -> None:
        """Of the open chat. The panel follows with its next step."""
        self._used = tokens
        if self.isVisible() and not self._timer.isActive():
            self._show_context()

    def begin_answer(self, conversation_id: str) -> None:
        self._writing, self._prefill = conversation_id, None
        self._show_answer()
        self.now.show_fact("Speed", tr("Reading"))
        self.now.show_fact("Reused", NOTHING)
        self.now.show_fact("Prompt", NOTHING)
        self._go_on()

    def show_prefill(self, stats: PrefillStats) -> None:
        self._rate.begin(monotonic())
        read = stats.tokens - stats.reused
        if read > 0 and stats.seconds > 0:
            self._history.add_reading(read / stats.seconds, stats.seconds)
        self._go_on()
        self._show_prefill(stats)

    def count_tokens(self, num_tokens: int) -> None:
        self._rate.add(num_tokens, monotonic())

    def end_answer(self) -> None:
        """The plot goes on until its last minute has gone by."""
        if self._writing is not None:
            self._show_rate()
        self._writing = None
        self._show_answer()
        self._show_context()

    # Inside

    def _build(self) -> None:
        set_role(self._empty, "small")
        self._empty.setWordWrap(True)
        self.view.setModel(self.slots)
        self.view.setItemDelegate(SlotDelegate(self.view))
        self.view.setAccessibleName(tr("Conversations that the engine keeps"))
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
        now = QWidget(self._facts)
        figures = QVBoxLayout(now)
        figures.setContentsMargins(0, 0, 0, 0)
        figures.setSpacing(SPACE_M)
        figures.addWidget(self.now)
        figures.addWidget(self.plot)
        self.sections = {
            title: PanelSection(tr(title), part, self._facts)
            for title, part in (
                (mark("Now"), now),
                (_CARD, self.card),
                (mark("Model"), self.model),
            )
        }
        column = QVBoxLayout(self._facts)
        inside = SPACE_L - 1  # of the frame that shows the focus
        column.setContentsMargins(inside, SPACE_S, inside, 0)
        column.setSpacing(0)
        for section in self.sections.values():
            column.addWidget(section)
            section.heading.clicked.connect(self._tell_folded)
        column.addStretch(1)
        scroll = FittedScroll(self._facts, self)
        scroll.setAccessibleName(tr("Answer, memory and model"))
        set_role(scroll, "focusable")
        return scroll

    def _tell_folded(self) -> None:
        names = tuple(name for name, section in self.sections.items() if not section.heading.isChecked())
        self.folded_changed.emit(names)

    def _kept_heading(self) -> QHBoxLayout:
        limits = QToolButton(self)
        limits.setText(tr("Limits…"))
        limits.setAccessibleName(tr("Limit or remove what is kept of conversations"))
        limits.setToolTip(tr("Limit or remove what is kept of conversations"))
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
        self.sections[_CARD].setVisible(on_card)
        self._show_layers(memory.layers if memory is not None else None)
        work = shown_work(metrics)
        self.now.leave_out("Prompt", not on_card)
        self.now.leave_out("Copies", not on_card or work is None)
        self.now.show_fact("Copies", copies_in_words(work) if work is not None else NOTHING)
        self.now.explain("Speed", work_sentence(work) if on_card and work is not None else "")
        self._kept.explain(use_sentence(metrics) if metrics is not None else "")

    def _show_prefill(self, stats: PrefillStats) -> None:
        self._prefill = stats
        self.now.show_fact("Reused", _share_of(stats.reused, stats.tokens))
        self.now.show_fact("Prompt", format_speed(stats.tokens - stats.reused, stats.seconds) or NOTHING)

    def _show_answer(self) -> None:
        title = self._titles.get(self._writing or "", tr("New chat")) if self._writing else NOTHING
        self.now.show_fact("Answer", title)

    def _show_layers(self, use: LayerUse | None) -> None:
        self.now.leave_out("Layers", use is None)
        self.now.leave_out("Brought", use is None or not use.is_window)
        if use is None:
            return
        now, rate = monotonic(), 0.0
        if self._moves is not None and now > self._moves[0]:
            rate = max(0.0, (use.brought - self._moves[1]) / (now - self._moves[0]))
        self._moves = (now, use.brought)
        self.now.show_fact("Layers", layers_in_words(use))
        self.now.show_fact("Brought", moves_in_words(use, rate))

    def _show_context(self) -> None:
        words = _share_of(self._used, self._limit) if self._limit else NOTHING
        self.now.show_fact("Context", words)

    def _step(self) -> None:
        """One more of the plot; what is counted meanwhile is shown with it."""
        writing = self._writing is not None
        self._history.step((self._rate.at(monotonic()) or 0.0) if writing else 0.0)
        self.plot.refresh()
        if writing:
            self._show_rate()
        self._show_context()
        if not writing and self._history.is_empty:
            self._timer.stop()

    def _go_on(self) -> None:
        """Where somebody sees it, and there is anything to see."""
        if self.isVisible() and (self._writing is not None or not self._history.is_empty):
            self._timer.start()

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
        self.watch_changed.emit(True)
        self._show_context()
        self._go_on()
        if self._writing is None and not event.spontaneous():
            self.look_requested.emit()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self.watch_changed.emit(False)
        self._timer.stop()


def _model_facts(summary: ModelSummary | None) -> dict[str, str]:
    if summary is None:
        return dict.fromkeys(_MODEL_FACTS, NOTHING)
    return {
        "Name": summary.name,
        "Kind": summary.family,
        "Parameters": format_count(summary.parameters),
        "Weights": tr(
            "{size}, {precision}",
            size=format_bytes(summary.weight_bytes),
            precision=tr(_PRECISIONS[summary.weights]),
        ),
        "Layers": f"{summary.layers:,}",
        "Context": format_tokens(summary.context_length),
        "Device": device_words(summary),
    }


def _share_of(part: int, whole: int) -> str:
    """Both in tokens."""
    return tr("{part:,} of {whole}", part=part, whole=format_tokens(whole))


def _heading(text: str, parent: QWidget) -> QLabel:
    label = ElidedLabel(text, parent)
    set_role(label, "section")
    return label


def _padded(part: QWidget) -> QVBoxLayout:
    box = QVBoxLayout()
    box.setContentsMargins(SPACE_L, 0, SPACE_L, 0)
    box.addWidget(part)
    return box
