"""A field to search with: a lens before the words, and a cross behind them that takes them away."""

from __future__ import annotations

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QLineEdit, QWidget

from app.ui.icons import icon
from app.ui.theme import Theme, current_theme, theme_manager

_CLEAR_ACTION = "_q_qlineeditclearaction"  # as Qt calls its own; its picture is not made for every scale


class SearchField(QLineEdit):
    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "search")
        self._lens = QAction(self)
        self.addAction(self._lens, QLineEdit.ActionPosition.LeadingPosition)
        self.setClearButtonEnabled(True)
        theme_manager().changed.connect(self._paint_icons)
        self._paint_icons(current_theme())

    def _paint_icons(self, theme: Theme) -> None:
        self._lens.setIcon(icon("search", theme.text_muted))
        clear = self.findChild(QAction, _CLEAR_ACTION)
        if clear is not None:
            clear.setIcon(icon("close", theme.text_muted))
