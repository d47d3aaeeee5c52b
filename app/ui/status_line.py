"""The line at the bottom: which device works, how full the context is, how fast the last answer was."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QWidget

from app.controller import ModelPhase, ModelState
from app.conversations import AnswerStats
from app.language import tr
from app.ui.context_meter import ContextMeter
from app.ui.device_words import device_sentence
from app.ui.elided_label import ElidedLabel
from app.ui.icon_label import IconLabel
from app.ui.text_format import format_speed
from app.ui.text_size import follow_text_size, scaled, text_size
from app.ui.theme import SPACE_L, SPACE_M, SPACE_S, SPACE_XS

_ICON = 14
_LEAST_DEVICE = 120  # pixels of its name
# Notices that this line says for as long as they hold, so that no banner has to repeat them at every load.
STANDING_CODES = frozenset(
    {"card-driver-missing", "card-missing", "card-too-old", "vram-budget-unused", "weights-packed"}
)


class StatusLine(QWidget):
    """Never claims a device that isn't at work: it repeats what the engine's summary says."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName(tr("Status"))
        self.setProperty("role", "status")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self._used = 0  # tokens
        self._limit = 0
        self._icon = IconLabel("chip", self, size=_ICON)
        self.device = ElidedLabel(tr("No model is loaded"), self)
        self.context = ContextMeter(self)
        self.speed = QLabel(self)
        for label in (self.device, self.speed):
            label.setProperty("role", "small")
        self.speed.setToolTip(tr("Speed of the last answer"))
        layout = QHBoxLayout(self)
        layout.setContentsMargins(SPACE_M, SPACE_XS + 1, SPACE_M, SPACE_XS + 2)
        layout.setSpacing(SPACE_L)
        device = QHBoxLayout()
        device.setSpacing(SPACE_S)
        device.addWidget(self._icon)
        device.addWidget(self.device, 1)
        layout.addLayout(device, 1)
        layout.addWidget(self.context)
        layout.addWidget(self.speed)
        self.speed.hide()
        follow_text_size(self, self._fit_height)
        text_size().changed.connect(self._fit)

    def set_model_state(self, state: ModelState) -> None:
        summary = state.summary
        if summary is not None:
            self.device.setText(device_sentence(summary))
            self._limit = summary.context_length
        else:
            loading = state.phase is ModelPhase.LOADING
            self.device.setText(tr("A model is being loaded") if loading else tr("No model is loaded"))
            self._limit = 0
            self._show_speed("")

        self.context.set_use(self._used, self._limit)
        self._fit()

    def set_context_used(self, tokens: int) -> None:
        """Of the open conversation: prompt and answer of its last turn."""
        self._used = tokens
        self.context.set_use(tokens, self._limit)
        self._fit()

    def set_last_answer(self, stats: AnswerStats | None) -> None:
        speed = format_speed(stats.decode_tokens, stats.decode_seconds) if stats is not None else ""
        self._show_speed(tr("Last answer {speed}", speed=speed) if speed else "")

    def _show_speed(self, words: str) -> None:
        self.speed.setText(words)
        self._fit()

    def _fit_height(self) -> None:
        """It is as high without a model, too."""
        highest = self.context.button
        highest.ensurePolished()
        margins = self.layout().contentsMargins()
        self.setMinimumHeight(highest.sizeHint().height() + margins.top() + margins.bottom())

    def _fit(self) -> None:
        """Where the device's name would be left with next to nothing, the meter says less, and the speed,
        which stands under the answer as well, goes.
        """
        speed = self.speed.sizeHint().width() + SPACE_L if self.speed.text() else 0
        room = self.width() - 2 * SPACE_M - self._icon.width() - SPACE_S
        room -= min(self.device.sizeHint().width(), scaled(_LEAST_DEVICE)) + SPACE_L
        self.context.set_short(False)
        self.context.set_short(self.context.sizeHint().width() + speed > room)
        self.speed.setVisible(bool(speed) and self.context.sizeHint().width() + speed <= room)

    # Qt overrides

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()
