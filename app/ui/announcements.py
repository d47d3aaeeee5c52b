"""Says things to screen readers that nobody asked for: an answer has ended, something has to be told.

What has the focus is read by itself; this is for what happens elsewhere in the window.
"""

from __future__ import annotations

from PySide6 import QtGui
from PySide6.QtGui import QAccessible, QAccessibleEvent
from PySide6.QtWidgets import QWidget


def announce(widget: QWidget, sentence: str, *, urgent: bool = False) -> None:
    """Where no screen reader listens, nothing happens.

    widget: what it is about. urgent: said at once, whatever is being read; else when that has ended.
    """
    if sentence:
        QAccessible.updateAccessibility(_event(widget, sentence, urgent=urgent))


def _event(widget: QWidget, sentence: str, *, urgent: bool) -> QAccessibleEvent:
    if not hasattr(QtGui, "QAccessibleAnnouncementEvent"):  # before Qt 6.8: the name of the widget is read
        return QAccessibleEvent(widget, QAccessible.Event.Alert)
    event = QtGui.QAccessibleAnnouncementEvent(widget, sentence)
    politeness = QAccessible.AnnouncementPoliteness
    event.setPoliteness(politeness.Assertive if urgent else politeness.Polite)
    return event
