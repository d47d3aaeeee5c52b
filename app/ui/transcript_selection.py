"""Selecting with the mouse across messages, code blocks and tables, as if the chat were one document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QObject, QPoint, Qt
from PySide6.QtGui import QMouseEvent, QTextCursor
from PySide6.QtWidgets import QScrollArea, QWidget

from app.ui.document_view import DocumentView

if TYPE_CHECKING:
    from app.ui.transcript import Transcript

_EDGE = 24  # pixels from the viewport's edge where dragging scrolls
_SCROLL = 18  # pixels a move


class TranscriptSelection(QObject):
    """Inside one document Qt selects by itself; this takes over when the mouse leaves it with the button
    down.
    """

    def __init__(self, transcript: Transcript) -> None:
        super().__init__(transcript)
        self._transcript = transcript
        self._origin: DocumentView | None = None  # where the button went down
        self._origin_position = 0
        self._extended = False
        self._selected: list[DocumentView] = []  # in reading order

    def watch(self, document: DocumentView) -> None:
        document.viewport().installEventFilter(self)
        document.copied_text = self.text

    def forget(self) -> None:
        self._origin = None
        self._selected = []
        self._extended = False

    def touches(self, widget: QWidget) -> bool:
        """Whether something in a widget is selected."""
        return any(widget.isAncestorOf(document) for document in self._selected)

    def select(self, document: DocumentView, start: int, stop: int) -> None:
        for other in self._selected:
            if other is not document:
                other.clear_selection()
        self._selected = [document]
        _select(document, start, stop)

    def text(self) -> str:
        """What is selected, the parts apart by an empty line."""
        parts = [document.selected_text() for document in self._selected]
        return "\n\n".join(part for part in parts if part)

    def _press(self, document: DocumentView, event: QMouseEvent) -> None:
        if not event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            for other in self._selected:
                if other is not document:
                    other.clear_selection()
        self._origin = document
        self._origin_position = document.cursorForPosition(event.position().toPoint()).position()
        self._extended = False
        self._selected = [document]

    def _move(self, event: QMouseEvent) -> bool:
        """Whether the event is used up."""
        origin = self._origin
        assert origin is not None
        where = event.globalPosition().toPoint()
        self._scroll_at_edge(where)
        local = origin.viewport().mapFromGlobal(where)
        if 0 <= local.y() < origin.viewport().height():
            if self._extended:
                self._shrink(origin)
            return False
        self._extend(origin, where)
        return True

    def _shrink(self, origin: DocumentView) -> None:
        self._extended = False
        for document in self._selected:
            if document is not origin:
                document.clear_selection()
        self._selected = [origin]

    def _extend(self, origin: DocumentView, where: QPoint) -> None:
        self._extended = True
        documents = list(self._transcript.documents)
        first = documents.index(origin)
        target = min(documents, key=lambda document: _distance(document, where))
        last = documents.index(target)
        downwards = where.y() > origin.viewport().mapToGlobal(QPoint(0, 0)).y()
        chosen = documents[first : last + 1] if downwards else documents[last : first + 1]
        for document in self._selected:
            if document not in chosen:
                document.clear_selection()
        for document in chosen:
            end = _end(document)
            if document is origin:
                start, stop = self._origin_position, end if downwards else 0
            elif document is target:
                position = document.cursorForPosition(document.viewport().mapFromGlobal(where)).position()
                start, stop = (0, position) if downwards else (end, position)
            else:
                start, stop = 0, end
            _select(document, start, stop)
        self._selected = chosen

    def _scroll_at_edge(self, where: QPoint) -> None:
        area: QScrollArea = self._transcript
        y = area.viewport().mapFromGlobal(where).y()
        bar = area.verticalScrollBar()
        if y < _EDGE:
            bar.setValue(bar.value() - _SCROLL)
        elif y > area.viewport().height() - _EDGE:
            bar.setValue(bar.value() + _SCROLL)

    # Qt overrides

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.MouseButtonPress and isinstance(event, QMouseEvent):
            document = watched.parent()
            if event.button() == Qt.MouseButton.LeftButton and isinstance(document, DocumentView):
                self._press(document, event)
        elif event.type() == QEvent.Type.MouseMove and isinstance(event, QMouseEvent):
            dragging = self._origin is not None and bool(event.buttons() & Qt.MouseButton.LeftButton)
            return dragging and self._move(event)
        return False


def _distance(document: DocumentView, where: QPoint) -> int:
    """Pixels from a point up or down to a document; 0 beside or in it."""
    y = document.viewport().mapFromGlobal(where).y()
    return max(0, -y, y - document.viewport().height())


def _end(document: DocumentView) -> int:
    return document.document().characterCount() - 1


def _select(document: DocumentView, start: int, stop: int) -> None:
    cursor = QTextCursor(document.document())
    cursor.setPosition(start)
    cursor.setPosition(stop, QTextCursor.MoveMode.KeepAnchor)
    document.setTextCursor(cursor)
