"""A list to choose one of, and a box to tick, with the marks that a style sheet can't draw in a theme's
colours.
"""

from __future__ import annotations

from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QWheelEvent
from PySide6.QtWidgets import QCheckBox, QComboBox, QStyle, QStyleOptionButton

from app.ui.icons import pixmap
from app.ui.text_size import scaled
from app.ui.theme import SPACE_S, current_theme

_ARROW = 14
_TICK = 12


class ChoiceBox(QComboBox):
    """The wheel scrolls what is around it; turning it over a box by accident chooses nothing."""

    # Qt overrides

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        theme = current_theme()
        ratio = self.devicePixelRatioF()
        size = scaled(_ARROW)
        arrow = pixmap("chevron-down", size, color=theme.text_muted, device_pixel_ratio=ratio)
        painter = QPainter(self)
        painter.setOpacity(1.0 if self.isEnabled() else 0.5)
        painter.drawPixmap(QPoint(self.width() - size - SPACE_S, (self.height() - size) // 2), arrow)
        painter.end()

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()


class TickBox(QCheckBox):
    # Qt overrides

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        if self.checkState() is not Qt.CheckState.Checked:
            return
        option = QStyleOptionButton()
        self.initStyleOption(option)
        box = self.style().subElementRect(QStyle.SubElement.SE_CheckBoxIndicator, option, self)
        theme = current_theme()
        size, ratio = scaled(_TICK), self.devicePixelRatioF()
        tick = pixmap("check", size, color=theme.accent_text, device_pixel_ratio=ratio)
        painter = QPainter(self)
        painter.drawPixmap(box.center() - QPoint(size // 2 - 1, size // 2 - 1), tick)
        painter.end()
