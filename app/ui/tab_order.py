"""In which order Tab goes: as one reads, from left to right and from the top down.

Qt's own order is the one in which widgets were made. Here messages come and go while one reads, panels are
moved, parts are shown and hidden; so the order is found anew at each Tab, from where things stand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QAbstractItemView,
    QAbstractSpinBox,
    QComboBox,
    QLineEdit,
    QScrollArea,
    QWidget,
)

_WHOLE = (QAbstractItemView, QAbstractSpinBox, QComboBox, QLineEdit)  # what is inside is a part of them


class ReadingOrder:
    """Mixed into a window or dialog, before Qt's class: Tab goes through it as one reads."""

    def focusNextPrevChild(self, forward: bool) -> bool:
        assert isinstance(self, QWidget)
        return focus_neighbour(self, forward=forward)


def reading_order(root: QWidget) -> list[QWidget]:
    """All that takes the focus by Tab now in a window or a part of one. What belongs together stays together:
    no part is left before its last control.
    """
    return list(_walk(root))


def focus_neighbour(window: QWidget, *, forward: bool) -> bool:
    """Gives the focus to what comes next, or before, after the last the first; whether there was any."""
    order = reading_order(window)
    if not order:
        return False
    at = window.focusWidget()
    place = order.index(at) if at in order else (-1 if forward else 0)
    place = (place + (1 if forward else -1)) % len(order)
    reason = Qt.FocusReason.TabFocusReason if forward else Qt.FocusReason.BacktabFocusReason
    window.setAttribute(Qt.WidgetAttribute.WA_KeyboardFocusChange)  # lists then show in which row it is
    order[place].setFocus(reason)
    _scroll_to(order[place])
    return True


def _walk(widget: QWidget) -> Iterator[QWidget]:
    takes_tab = bool(widget.focusPolicy().value & Qt.FocusPolicy.TabFocus.value)
    if takes_tab and widget.focusProxy() is None and widget.isEnabled():
        yield widget
    if isinstance(widget, _WHOLE):
        return
    parts = (child for child in widget.children() if isinstance(child, QWidget))
    for part in _sorted(part for part in parts if part.isVisible() and not _lies_over(part)):
        yield from _walk(part)


def _lies_over(part: QWidget) -> bool:
    """It is a window of its own, or only drawn over others."""
    return part.isWindow() or part.testAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)


def _sorted(parts: Iterable[QWidget]) -> Iterator[QWidget]:
    """By rows, and from left to right in each. What stands beside something for most of its height is in the
    same row.
    """
    row: list[QWidget] = []
    bottom = 0  # of the row
    for part in sorted(parts, key=QWidget.y):
        shared = bottom - part.y()
        if row and shared < min(part.height(), bottom - row[0].y()) / 2:
            yield from sorted(row, key=QWidget.x)
            row, bottom = [], 0
        row.append(part)
        bottom = max(bottom, part.y() + part.height())
    yield from sorted(row, key=QWidget.x)


def _scroll_to(widget: QWidget) -> None:
    above = widget.parentWidget()
    while above is not None:
        if isinstance(above, QScrollArea):
            above.ensureWidgetVisible(widget)
        above = above.parentWidget()
