"""An icon that stands beside text. Drawn when it is painted, so it is sharp on every screen and theme."""

from __future__ import annotations

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from app.ui.icons import pixmap
from app.ui.theme import ICON_SIZE, current_theme


class IconLabel(QWidget):
    """`color` names a colour of the theme; `size` is in device-independent pixels."""

    def __init__(
        self, name: str, parent: QWidget | None = None, *, color: str = "text_muted", size: int = ICON_SIZE
    ) -> None:
        super().__init__(parent)
        self._name = name
        self._color = color
        self._size = size
        self.setFixedSize(size, size)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)

    @property
    def shown(self) -> tuple[str, str]:
        """Name and colour of what is drawn."""
        return self._name, self._color

    def set_icon(self, name: str, color: str) -> None:
        if (name, color) != self.shown:
            self._name, self._color = name, color
            self.update()

    # Qt overrides

    def paintEvent(self, _event: QPaintEvent) -> None:
        color = getattr(current_theme(), self._color)
        picture = pixmap(self._name, self._size, color=color, device_pixel_ratio=self.devicePixelRatioF())
        painter = QPainter(self)
        painter.drawPixmap(QRect(0, 0, self._size, self._size), picture)
        painter.end()
