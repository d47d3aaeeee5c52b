"""Key combinations drawn as the caps of keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.ui.shortcut_list import Keys
from app.ui.text_size import follow_text_size
from app.ui.theme import SCALE_SMALL, current_theme, mixed, scaled_font, theme_manager

_PADDING = 6.0  # pixels beside the words on a cap
_HEIGHT_ADDED = 7.0
_DEPTH = 2.0  # how far a cap stands out
_GAP = 3.0  # between keys that are pressed together
_WAY_GAP = 12.0  # between combinations
_RADIUS = 4.0


class KeyCaps(QWidget):
    """Combinations beside one another."""

    def __init__(self, ways: Sequence[Keys], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._ways = tuple(ways)
        follow_text_size(self, lambda: self.setFont(scaled_font(SCALE_SMALL)))
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        theme_manager().changed.connect(self.update)

    def _caps(self) -> Iterator[tuple[QRectF, str]]:
        metrics = QFontMetricsF(self.font())
        height = metrics.height() + _HEIGHT_ADDED
        left = 0.5
        for keys in self._ways:
            for key in keys:
                width = max(height, metrics.horizontalAdvance(key) + 2 * _PADDING)
                yield QRectF(left, 0.5, width, height), key
                left += width + _GAP
            left += _WAY_GAP - _GAP

    # Qt overrides

    def sizeHint(self) -> QSize:
        last = [cap for cap, _ in self._caps()][-1]
        return QSize(round(last.right() + 1), round(last.bottom() + _DEPTH + 1))

    def paintEvent(self, _event: QPaintEvent) -> None:
        theme = current_theme()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        edge = QColor(mixed(theme.text, theme.border, 0.25))
        for cap, key in self._caps():
            painter.setPen(QPen(edge, 1))
            painter.setBrush(edge)
            painter.drawRoundedRect(cap.translated(0, _DEPTH), _RADIUS, _RADIUS)
            painter.setBrush(theme.color("surface"))
            painter.drawRoundedRect(cap, _RADIUS, _RADIUS)
            painter.setPen(theme.color("text"))
            painter.drawText(cap, Qt.AlignmentFlag.AlignCenter, key)
        painter.end()
