"""Three dots that breathe while an answer has no word yet."""

from __future__ import annotations

import math

from PySide6.QtCore import QRectF, Qt, QTimer
from PySide6.QtGui import QHideEvent, QPainter, QPaintEvent, QShowEvent
from PySide6.QtWidgets import QWidget

from app.language import tr
from app.ui.theme import current_theme

_SIZE = 7  # pixels
_STEP_MS = 60
_STEPS = 22  # of one breath


class WaitingDots(QWidget):
    """Moves only while it is seen."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName(tr("Waiting for the answer"))
        self.setFixedSize(3 * _SIZE + 2 * _SIZE, 3 * _SIZE)
        self._step = 0
        self._timer = QTimer(self)
        self._timer.setInterval(_STEP_MS)
        self._timer.timeout.connect(self._advance)

    def _advance(self) -> None:
        self._step = (self._step + 1) % _STEPS
        self.update()

    # Qt overrides

    def showEvent(self, event: QShowEvent) -> None:
        self._timer.start()

    def hideEvent(self, event: QHideEvent) -> None:
        self._timer.stop()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(current_theme().color("text_muted"))
        for dot in range(3):
            phase = 2 * math.pi * (self._step / _STEPS - dot / 5)
            painter.setOpacity(0.35 + 0.5 * (0.5 + 0.5 * math.cos(phase)))
            painter.drawEllipse(QRectF(dot * 2 * _SIZE, _SIZE, _SIZE, _SIZE))
