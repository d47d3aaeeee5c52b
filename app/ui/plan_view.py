"""What a load would take and where the model would run, with sliders that change it before anything is read.

Signals: changed, something else is chosen: `choice` says what.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QGridLayout, QLabel, QSlider, QVBoxLayout, QWidget

from app.language import mark, tr
from app.model_runs import RunChoice
from app.ui.choice_box import ChoiceBox
from app.ui.plan_words import (
    EXPLANATIONS,
    KV,
    WEIGHTS,
    context_stops,
    leaving_words,
    nearest_stop,
    plan_shares,
    where_words,
)
from app.ui.share_bar import ShareBar, Swatch, amount_words
from app.ui.style_sheet import set_role
from app.ui.text_format import format_tokens
from app.ui.text_size import follow_text_size
from app.ui.theme import SPACE_L, SPACE_M, SPACE_S, SPACE_XS
from app.ui.wrapped_label import WrappedLabel
from engine.config import EngineConfig, WeightsChoice

if TYPE_CHECKING:
    from app.making_room import RoomPlan

_KINDS = tuple(WEIGHTS)
_FOUND = {"q4": mark("4 bits"), "q8": mark("8 bits"), "native": mark("as stored")}
_COLUMNS = 3  # of the legend


class PlanView(QWidget):
    """Shows the plan that it is told, and asks for another one by `changed`."""

    changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName(tr("What will fit"))
        self._stops: tuple[int, ...] = (1,)
        self._has_own_context = False
        self.context = QSlider(Qt.Orientation.Horizontal, self)
        self.weights = QSlider(Qt.Orientation.Horizontal, self)
        self.kv = ChoiceBox(self)
        self.context_words = QLabel(self)
        self.weights_words = QLabel(self)
        self.where = WrappedLabel(parent=self)
        self.leaving = WrappedLabel(parent=self)
        self.bar = ShareBar(self)
        self._legend: dict[str, tuple[Swatch, QLabel]] = {}
        self._build()
        self.context.valueChanged.connect(self._on_context_moved)
        self.weights.valueChanged.connect(self._on_changed)
        self.kv.activated.connect(self._on_changed)
        self.hide()

    @property
    def choice(self) -> RunChoice:
        """As long as nobody moves its slider, the context is left to the settings."""
        context = self._stops[self.context.value()] if self._has_own_context else None
        return RunChoice(context, self._weights, self.kv.currentData())

    def slider(self, part: str) -> QSlider:
        """Of the "context" or the "weights"."""
        return {"context": self.context, "weights": self.weights}[part]

    def legend(self, kind: str) -> QLabel:
        """What stands beside its colour."""
        return self._legend[kind][1]

    def begin(self, config: EngineConfig, longest: int) -> None:
        """longest: context of the model. Sends nothing."""
        context = min(config.context or longest, longest)
        self._has_own_context = config.context is not None
        stops = context_stops(longest)
        self._stops = tuple(sorted({*stops, context}))
        widgets = (self.context, self.weights, self.kv)
        for widget in widgets:
            widget.blockSignals(True)
        self.context.setRange(0, len(self._stops) - 1)
        self.context.setValue(nearest_stop(self._stops, context))
        self.weights.setValue(_KINDS.index(config.weights))
        self.kv.setCurrentIndex(self.kv.findData("native" if config.kv == "native" else "auto"))
        for widget in widgets:
            widget.blockSignals(False)

    def show_plan(self, room: RoomPlan) -> None:
        plan = room.plan
        words = format_tokens(self._stops[self.context.value()])
        self.context_words.setText(words)
        self._tell(self.context, tr("Context"), words)
        words = tr(WEIGHTS[self._weights])
        if self._weights == "auto":
            words = tr("{name}: {value}", name=words, value=tr(_FOUND[plan.weights]))
        self.weights_words.setText(words)
        self._tell(self.weights, tr("Weights"), words)
        self.where.setText(where_words(room))
        self.leaving.setText(leaving_words(room))
        self.leaving.setVisible(bool(self.leaving.text()))
        self.bar.set_shares(plan_shares(room))
        self._show_legend(room)

    @property
    def _weights(self) -> WeightsChoice:
        return _KINDS[self.weights.value()]

    @staticmethod
    def _tell(slider: QSlider, name: str, words: str) -> None:
        slider.setAccessibleName(tr("{name}: {value}", name=name, value=words))

    def _on_context_moved(self) -> None:
        self._has_own_context = True
        self.changed.emit()

    def _on_changed(self) -> None:
        self.changed.emit()

    def _show_legend(self, room: RoomPlan) -> None:
        shares = {share.kind: share.num_bytes for share in plan_shares(room)}
        for kind, (swatch, label) in self._legend.items():
            label.setText(amount_words(tr(kind), shares[kind]))
            for part in (swatch, label):
                part.setVisible(bool(shares[kind]))
        listed = tr(", ").join(
            amount_words(tr(kind).lower(), num_bytes) for kind, num_bytes in shares.items() if num_bytes
        )
        self.bar.setAccessibleName(tr("{name}: {value}", name=self.where.text(), value=listed))

    def _build(self) -> None:
        self.context.setToolTip(tr("The longest chat that the model is to keep in view: it takes memory"))
        self.weights.setRange(0, len(_KINDS) - 1)
        self.weights.setToolTip(tr("Fewer bits take less memory and answer faster; answers lose a little"))
        for slider in (self.context, self.weights):
            slider.setPageStep(1)
        for kind, name in KV.items():
            self.kv.addItem(tr(name), kind)
        for part in (self.kv, self.kv.view()):
            part.setAccessibleName(tr("Precision of what is kept of a chat"))
        self.kv.setToolTip(tr("8 bits take a quarter of the memory; 32 bits are for comparing"))
        grid = QGridLayout()
        grid.setHorizontalSpacing(SPACE_L)
        grid.setVerticalSpacing(SPACE_S)
        grid.setColumnStretch(1, 1)
        for row, (name, widget, words) in enumerate(
            (
                (tr("Context"), self.context, self.context_words),
                (tr("Weights"), self.weights, self.weights_words),
                (tr("Chat memory"), self.kv, None),
            )
        ):
            label = QLabel(name, self)
            set_role(label, "small")
            label.setBuddy(widget)
            grid.addWidget(label, row, 0)
            if words is None:
                grid.addWidget(widget, row, 1, 1, 2, Qt.AlignmentFlag.AlignLeft)
                continue
            follow_text_size(words, lambda words=words: words.setMinimumWidth(self._longest()))
            grid.addWidget(widget, row, 1)
            grid.addWidget(words, row, 2)
        set_role(self.where, "small")
        set_role(self.leaving, "small")
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_S)
        column.addLayout(grid)
        column.addSpacing(SPACE_XS)
        column.addWidget(self.where)
        column.addWidget(self.bar)
        column.addLayout(self._legend_of_kinds())
        column.addWidget(self.leaving)

    def _longest(self) -> int:
        """Pixels of the longest words beside a slider."""
        longest = tr("{name}: {value}", name=tr(WEIGHTS["auto"]), value=tr(_FOUND["native"]))
        return self.fontMetrics().horizontalAdvance(longest)

    def _legend_of_kinds(self) -> QGridLayout:
        """Each has its place, whatever a slider does to it."""
        grid = QGridLayout()
        grid.setHorizontalSpacing(SPACE_S)
        grid.setVerticalSpacing(SPACE_XS)
        grid.setColumnStretch(2 * _COLUMNS, 1)
        for place, (kind, explanation) in enumerate(EXPLANATIONS.items()):
            row, column = divmod(place, _COLUMNS)
            swatch, label = self._legend[kind] = Swatch(kind, self), QLabel(self)
            set_role(label, "warning-small" if kind == "Missing" else "small")
            label.setContentsMargins(0, 0, SPACE_M, 0)
            for part in (swatch, label):
                part.setToolTip(tr(explanation))
            grid.addWidget(swatch, row, 2 * column)
            grid.addWidget(label, row, 2 * column + 1)
        return grid
