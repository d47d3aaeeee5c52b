"""The line across the chat that says which messages the model no longer reads: those above it."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QWidget

from app.language import tr, tr_n
from app.ui.text_size import follow_text_size
from app.ui.theme import SCALE_SMALL, SPACE_L, SPACE_M, current_theme, scaled_font


def left_out_words(count: int) -> str:
    return tr_n(
        "{count:,} earlier message is no longer read by the model",
        "{count:,} earlier messages are no longer read by the model",
        count,
    )


class LeftOutNote(QWidget):
    """Words in the middle of a line."""

    def __init__(self, count: int, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._words = left_out_words(count)
        self.setAccessibleName(self._words)
        self.setToolTip(
            tr("They are kept and shown; the context has no room for them. See the context meter.")
        )
        follow_text_size(self, self._fit)

    @property
    def words(self) -> str:
        return self._words

    def _fit(self) -> None:
        self.setFont(scaled_font(SCALE_SMALL))
        self.setFixedHeight(self.fontMetrics().height() + 2 * SPACE_M)

    # Qt overrides

    def paintEvent(self, _event: QPaintEvent) -> None:
        theme = current_theme()
        painter = QPainter(self)
        room = self.width() - 4 * SPACE_L
        words = painter.fontMetrics().elidedText(self._words, Qt.TextElideMode.ElideRight, room)
        half = painter.fontMetrics().horizontalAdvance(words) // 2 + SPACE_M
        middle = self.rect().center()
        painter.setPen(QPen(theme.color("border"), 1))
        painter.drawLine(0, middle.y(), middle.x() - half, middle.y())
        painter.drawLine(middle.x() + half, middle.y(), self.width(), middle.y())
        painter.setPen(theme.color("warning"))
        painter.drawText(self.rect(), Qt.AlignmentFlag.AlignCenter, words)
        painter.end()
