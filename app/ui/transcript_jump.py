"""Going to a message that was searched for, and marking the words in it.

A view near to the message may have to be built first, and the words of a long one are written in slices: the
place is looked for again when they are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QPoint
from PySide6.QtGui import QTextCursor

from app.search_text import folded
from app.ui.document_view import DocumentView

if TYPE_CHECKING:
    from app.ui.message_view import MessageView
    from app.ui.transcript import Transcript

_SHARE = 3  # the place stands a third down from the top


class TranscriptJump(QObject):
    def __init__(self, transcript: Transcript) -> None:
        super().__init__(transcript)
        self._transcript = transcript
        self._wish: tuple[str, tuple[str, ...]] | None = None
        transcript.work.finished.connect(self._go_on)

    def begin(self, message_id: str, terms: Sequence[str]) -> None:
        self._wish = (message_id, tuple(sorted(terms, key=len, reverse=True)))
        self._go_on()

    def forget(self) -> None:
        self._wish = None

    def _go_on(self) -> None:
        if self._wish is None:
            return
        message_id, terms = self._wish
        view = self._transcript.view(message_id)
        if view is None or self._mark(view, terms) or not self._transcript.work.busy:
            self._wish = None

    def _mark(self, view: MessageView, terms: Sequence[str]) -> bool:
        """Whether one of the words was found where it can be seen."""
        for term in terms:
            for document in view.documents:
                text = document.toPlainText()
                place = folded(text).find(term)
                if place >= 0 and document.isVisibleTo(view):
                    start = _units(text[:place])
                    self._transcript.select(document, start, start + _units(text[place : place + len(term)]))
                    self._scroll_to(document, start)
                    return True
        return False

    def _scroll_to(self, document: DocumentView, position: int) -> None:
        cursor = QTextCursor(document.document())
        cursor.setPosition(position)
        content = self._transcript.widget()
        top = document.viewport().mapTo(content, QPoint(0, document.cursorRect(cursor).top())).y()
        height = self._transcript.viewport().height()
        bar = self._transcript.verticalScrollBar()
        if not bar.value() <= top <= bar.value() + height - height // _SHARE:
            bar.setValue(top - height // _SHARE)


def _units(text: str) -> int:
    """Its length as Qt counts: in units of UTF-16."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
