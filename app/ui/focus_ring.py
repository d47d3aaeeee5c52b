"""The ring around a text that Tab has led to: it has no frame of its own that could show it."""

from __future__ import annotations

from collections.abc import Iterator

from PySide6.QtCore import QEvent, QObject, QPoint, QRect, QRectF, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QScrollArea, QWidget

from app.ui.theme import current_theme

_GAP = 5  # pixels between the text and the ring
_WIDTH = 1.5
_RADIUS = 5.0


class FocusRing(QWidget):
    """Follows a widget, a little outside it. Lies on what is scrolled, so that nothing in between cuts it."""

    def __init__(self, widget: QWidget) -> None:
        *self._between, host = _ancestors(widget)
        super().__init__(host)
        self._widget = widget
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        for one in (widget, *self._between):
            one.installEventFilter(self)
        self._place()
        self.raise_()
        self.show()

    def end(self) -> None:
        self.hide()
        self.deleteLater()

    def _place(self) -> None:
        corner = self._widget.mapTo(self.parentWidget(), QPoint(0, 0))
        self.setGeometry(QRect(corner, self._widget.size()).adjusted(-_GAP, -_GAP, _GAP, _GAP))

    # Qt overrides

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() in (QEvent.Type.Move, QEvent.Type.Resize):
            self._place()
        return super().eventFilter(watched, event)

    def paintEvent(self, _event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(current_theme().color("accent"), _WIDTH))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        inset = _WIDTH / 2
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(inset, inset, -inset, -inset), _RADIUS, _RADIUS)
        painter.end()


def _ancestors(widget: QWidget) -> Iterator[QWidget]:
    """Up to what a scroll area scrolls, or to the window."""
    above = widget.parentWidget()
    while above is not None:
        yield above
        beyond = above.parentWidget()
        scrolls = beyond is not None and isinstance(beyond.parentWidget(), QScrollArea)
        above = None if scrolls or above.isWindow() else beyond
