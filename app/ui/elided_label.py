"""A one-line label that shortens its text with "…" instead of forcing the window wider."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QPalette, QResizeEvent
from PySide6.QtWidgets import QFrame, QLabel, QWidget

from app.ui.tooltips import plain_tooltip


class ElidedLabel(QLabel):
    """Like QLabel with plain text; the tooltip holds the whole text while it is shortened."""

    def __init__(
        self,
        text: str = "",
        parent: QWidget | None = None,
        *,
        mode: Qt.TextElideMode = Qt.TextElideMode.ElideRight,
    ) -> None:
        super().__init__(parent)
        self._mode = mode
        self._explanation = ""
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setText(text)

    def explain(self, explanation: str) -> None:
        """What it is: for the tooltip and for screen readers."""
        if explanation != self._explanation:
            self._explanation = explanation
            self.setAccessibleDescription(explanation)
            self._update_tooltip()

    @property
    def shown_text(self) -> str:
        """What fits now."""
        return self.fontMetrics().elidedText(self._one_line(), self._mode, self.contentsRect().width())

    def _one_line(self) -> str:
        return " ".join(self.text().split())

    # Qt overrides

    def setText(self, text: str) -> None:
        super().setText(text)
        self.setAccessibleName(text)
        self._update_tooltip()

    def minimumSizeHint(self) -> QSize:
        return QSize(self.fontMetrics().horizontalAdvance("…" * 3), super().minimumSizeHint().height())

    def sizeHint(self) -> QSize:
        return QSize(self.fontMetrics().horizontalAdvance(self._one_line()) + 2, super().sizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._update_tooltip()

    def paintEvent(self, _event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.style().drawItemText(
            painter,
            self.contentsRect(),
            int(self.alignment()) | Qt.TextFlag.TextSingleLine,
            self.palette(),
            self.isEnabled(),
            self.shown_text,
            QPalette.ColorRole.WindowText,
        )
        painter.end()

    def _update_tooltip(self) -> None:
        full = self._one_line()
        lines = ([full] if self.shown_text != full else []) + (
            [self._explanation] if self._explanation else []
        )
        self.setToolTip(plain_tooltip("\n".join(lines)))
