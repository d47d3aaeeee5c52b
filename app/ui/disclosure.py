"""A quiet line that opens and closes what stands below it."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QWidget

from app.language import tr
from app.ui.icons import icon
from app.ui.push_button import PushButton
from app.ui.text_size import scaled, set_icon_size
from app.ui.theme import SCALE_SMALL, current_theme, scaled_font

_ICON = 14
_EMPTY = 4  # pixels of the icon before its chevron, which begins where what stands below does


class DisclosureButton(PushButton):
    """`toggled(bool)` says whether it is open now. Space and Enter toggle it as a click does."""

    def __init__(self, parent: QWidget | None = None, *, bold: bool = False) -> None:
        super().__init__(parent=parent)
        self._bold = bold
        self.setCheckable(True)
        self.setProperty("role", "disclosure")
        self.setFlat(True)
        set_icon_size(self, _ICON)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.toggled.connect(self.apply_theme)
        self.apply_theme()

    def set_title(self, title: str) -> None:
        self.setText(title)
        self.setAccessibleName(title)
        self.adjustSize()

    def apply_theme(self) -> None:
        theme = current_theme()
        self.setFont(scaled_font(SCALE_SMALL, bold=self._bold))
        self.setStyleSheet(
            f"QPushButton {{ color: {theme.text_muted}; background: transparent; text-align: left;"
            f" border: 1px solid transparent; border-radius: 5px;"
            f" padding: 2px 4px 2px -{scaled(_EMPTY)}px; }}"
            f"QPushButton:hover, QPushButton:focus {{ color: {theme.text}; }}"
            f"QPushButton:focus {{ border-color: {theme.accent}; }}"
        )
        self.setIcon(icon("chevron-down" if self.isChecked() else "chevron-right", theme.text_muted))
        self.setToolTip(tr("Hide") if self.isChecked() else tr("Show"))
        self.adjustSize()
