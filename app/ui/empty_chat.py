"""What a chat without messages says."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QLabel, QVBoxLayout, QWidget

from app.language import mark, tr
from app.ui.icon_label import IconLabel
from app.ui.style_sheet import set_role
from app.ui.theme import SPACE_L, SPACE_M, SPACE_S

_ICON = 44  # pixels
_READY = (
    mark("What would you like to talk about?"),
    mark("The model runs on this computer; what you write stays here."),
)
_NO_MODEL = (mark("No model yet"), mark("Open a model folder or a GGUF file, then begin to chat."))


class EmptyChat(QWidget):
    """Calm and in the middle; lets the mouse through."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self._icon = IconLabel("model", self, size=_ICON)
        self._title = QLabel(self)
        self._text = QLabel(self)
        set_role(self._title, "title")
        set_role(self._text, "muted")
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_L, SPACE_S, SPACE_L, SPACE_S)
        column.setSpacing(SPACE_S)
        column.addStretch(5)
        column.addWidget(self._icon, 0, Qt.AlignmentFlag.AlignHCenter)
        for label in (self._title, self._text):
            label.setAlignment(Qt.AlignmentFlag.AlignHCenter)
            label.setWordWrap(True)
            column.addWidget(label)
        column.insertSpacing(2, SPACE_M)
        column.addStretch(6)
        self.set_model_ready(False)

    @property
    def title(self) -> str:
        return self._title.text()

    def set_model_ready(self, ready: bool) -> None:
        title, text = _READY if ready else _NO_MODEL
        self._title.setText(tr(title))
        self._text.setText(tr(text))
        self._ready = ready
        self.apply_theme()

    def apply_theme(self) -> None:
        self._fit()
        self._icon.set_icon("chat" if self._ready else "model", "text_muted")

    def _fit(self) -> None:
        """The words come first where there is little room."""
        width = self.width() - 2 * SPACE_L
        words = sum(label.heightForWidth(width) for label in (self._title, self._text))
        self._icon.setVisible(words + self._icon.height() + 6 * SPACE_S <= self.height())

    # Qt overrides

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()
