"""A layout that puts its widgets beside one another, and goes on in the next line where the room ends."""

from __future__ import annotations

from PySide6.QtCore import QPoint, QRect, QSize, Qt
from PySide6.QtWidgets import QLayout, QLayoutItem, QWidget


class FlowLayout(QLayout):
    """Hidden widgets take no room. `gap` is in pixels, between neighbours and between lines."""

    def __init__(self, parent: QWidget | None = None, *, gap: int) -> None:
        super().__init__(parent)
        self._gap = gap
        self._items: list[QLayoutItem] = []
        self.setContentsMargins(0, 0, 0, 0)

    def _arrange(self, area: QRect, *, place: bool) -> int:
        """Gives the height. An item that is wider than the area gets all of it."""
        left, top, line_height = area.left(), area.top(), 0
        for item in self._items:
            if item.isEmpty():
                continue
            size = item.sizeHint().boundedTo(QSize(max(1, area.width()), 10_000))
            if left > area.left() and left + size.width() > area.right() + 1:
                left, top, line_height = area.left(), top + line_height + self._gap, 0
            if place:
                item.setGeometry(QRect(QPoint(left, top), size))
            left += size.width() + self._gap
            line_height = max(line_height, size.height())
        return top + line_height - area.top()

    # Qt overrides

    def addItem(self, item: QLayoutItem) -> None:
        self._items.append(item)

    def count(self) -> int:
        return len(self._items)

    def itemAt(self, index: int) -> QLayoutItem | None:
        return self._items[index] if 0 <= index < len(self._items) else None

    def takeAt(self, index: int) -> QLayoutItem | None:
        return self._items.pop(index) if 0 <= index < len(self._items) else None

    def expandingDirections(self) -> Qt.Orientation:
        return Qt.Orientation(0)

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        return self._arrange(QRect(0, 0, width, 0), place=False)

    def setGeometry(self, area: QRect) -> None:
        super().setGeometry(area)
        self._arrange(area, place=True)

    def sizeHint(self) -> QSize:
        return self.minimumSize()

    def minimumSize(self) -> QSize:
        heights = [item.sizeHint().height() for item in self._items if not item.isEmpty()]
        return QSize(1 if heights else 0, max(heights, default=0))
