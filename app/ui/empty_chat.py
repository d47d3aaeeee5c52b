"""What a chat without messages says."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QVBoxLayout, QWidget

from app.language import mark, tr
from app.ui.icons import pixmap
from app.ui.style_sheet import set_role
from app.ui.theme import SPACE_M, SPACE_S, current_theme

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
        self._icon = QLabel(self)
        self._title = QLabel(self)
        self._text = QLabel(self)
        set_role(self._title, "title")
        set_role(self._text, "muted")
        column = QVBoxLayout(self)
        column.setSpacing(SPACE_S)
        column.addStretch(5)
        for label in (self._icon, self._title, self._text):
            label.setAlignment(Qt.AlignmentFlag.AlignHCenter)
            label.setWordWrap(label is self._text)
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
        name = "chat" if self._ready else "model"
        ratio = self.devicePixelRatioF()
        color = current_theme().text_muted
        self._icon.setPixmap(pixmap(name, _ICON, color=color, device_pixel_ratio=ratio))
