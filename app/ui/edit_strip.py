"""Says above the composer that an earlier message is being edited, and lets that be given up."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QHBoxLayout, QToolButton, QWidget

from app.language import tr
from app.ui.elided_label import ElidedLabel
from app.ui.icon_label import IconLabel
from app.ui.icons import icon
from app.ui.style_sheet import set_role
from app.ui.text_size import set_icon_size
from app.ui.theme import SPACE_S, current_theme


class EditStrip(QWidget):
    """Hidden unless something is edited. Signals: cancelled()."""

    cancelled = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._icon = IconLabel("pencil", self, size=14, color="accent")
        self._label = ElidedLabel(tr("Editing a message; the old one is kept as a version"), self)
        set_role(self._label, "small")
        self.cancel_button = QToolButton(self)
        self.cancel_button.setAccessibleName(tr("Give up the edit"))
        self.cancel_button.setToolTip(tr("Give up the edit (Esc)"))
        set_icon_size(self.cancel_button, 12)
        self.cancel_button.clicked.connect(self.cancelled)
        row = QHBoxLayout(self)
        row.setContentsMargins(SPACE_S + 2, 0, SPACE_S - 2, 0)  # above the middle of the buttons below
        row.setSpacing(SPACE_S)
        row.addWidget(self._icon)
        row.addWidget(self._label, 1)
        row.addWidget(self.cancel_button)
        self.hide()
        self.apply_theme()

    def apply_theme(self) -> None:
        self.cancel_button.setIcon(icon("close", current_theme().text_muted))
        self._icon.update()
