"""A long pasted text that waits to be sent, shown as one line."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtGui import QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QHBoxLayout, QLabel, QToolButton, QWidget

from app.language import tr, tr_n
from app.ui.icons import icon
from app.ui.text_format import format_bytes
from app.ui.text_size import set_icon_size
from app.ui.theme import SPACE_M, SPACE_S, SPACE_XS, current_theme


class PasteChip(QWidget):
    """Hidden while it holds nothing. Signals: removed() when the person took the text away."""

    removed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._texts: list[str] = []
        self._label = QLabel(self)
        self._remove = QToolButton(self)
        self._remove.setAccessibleName(tr("Remove the pasted text"))
        self._remove.setToolTip(tr("Remove the pasted text"))
        set_icon_size(self._remove, 12)
        self._remove.clicked.connect(self._on_removed)
        row = QHBoxLayout(self)
        row.setContentsMargins(SPACE_M, SPACE_XS, SPACE_XS, SPACE_XS)
        row.setSpacing(SPACE_S)
        row.addWidget(self._label)
        row.addWidget(self._remove)
        self.hide()
        self.apply_theme()

    @property
    def text(self) -> str:
        return "\n\n".join(self._texts)

    def add(self, text: str) -> None:
        self._texts.append(text)
        lines = sum(part.count("\n") + 1 for part in self._texts)
        size = sum(len(part.encode("utf-8", "replace")) for part in self._texts)
        words = tr_n(
            "Pasted text: {count:,} line, {size}",
            "Pasted text: {count:,} lines, {size}",
            lines,
            size=format_bytes(size),
        )
        self._label.setText(words)
        self.show()

    def clear(self) -> None:
        self._texts.clear()
        self.hide()

    def apply_theme(self) -> None:
        self._remove.setIcon(icon("close", current_theme().text_muted))

    def _on_removed(self) -> None:
        self.clear()
        self.removed.emit()

    # Qt overrides

    def paintEvent(self, event: QPaintEvent) -> None:
        theme = current_theme()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(theme.color("border"), 1))
        painter.setBrush(theme.color("code_background"))
        painter.drawRoundedRect(self.rect().toRectF().adjusted(0.5, 0.5, -0.5, -0.5), 8, 8)
