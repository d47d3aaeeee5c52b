"""An icon that stands beside text. Drawn when it is painted, so it is sharp on every screen and theme."""

from __future__ import annotations

from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from app.ui.icons import pixmap
from app.ui.text_size import follow_text_size, scaled
from app.ui.theme import ICON_SIZE, current_theme


class IconLabel(QWidget):
    """`color` names a colour of the theme; `size` is in device-independent pixels, beside text of the
    usual size."""

    def __init__(
        self, name: str, parent: QWidget | None = None, *, color: str = "text_muted", size: int = ICON_SIZE
    ) -> None:
        super().__init__(parent)
        self._name = name
        self._color = color
        follow_text_size(self, lambda: self.setFixedSize(scaled(size), scaled(size)))
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
        size = self.width()
        picture = pixmap(self._name, size, color=color, device_pixel_ratio=self.devicePixelRatioF())
        painter = QPainter(self)
        painter.drawPixmap(QPoint(0, 0), picture)
        painter.end()
