"""A part of a panel under a heading by which it is folded away."""

from __future__ import annotations

from PySide6.QtWidgets import QVBoxLayout, QWidget

from app.ui.disclosure import DisclosureButton
from app.ui.theme import SPACE_L, SPACE_XS, theme_manager


class PanelSection(QWidget):
    def __init__(self, title: str, content: QWidget, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.content = content
        self.heading = DisclosureButton(self, bold=True)
        self.heading.set_title(title)
        self.heading.setChecked(True)
        self.heading.toggled.connect(content.setVisible)
        theme_manager().changed.connect(self.heading.apply_theme)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, SPACE_L)
        column.setSpacing(SPACE_XS)
        column.addWidget(self.heading)
        column.addWidget(content)
