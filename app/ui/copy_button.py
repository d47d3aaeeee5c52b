"""A button that copies a text and says for a moment that it did."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QTimer
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QWidget

from app.language import tr
from app.ui.icons import icon
from app.ui.shy_button import ShyButton
from app.ui.theme import current_theme

_SAID_MS = 1600


class CopyButton(ShyButton):
    """`text` is asked for when the button is pressed, so it may still grow."""

    def __init__(
        self, text: Callable[[], str], name: str, parent: QWidget | None = None, *, shy: bool = False
    ) -> None:
        super().__init__("copy", name, parent, shy=shy)
        self._text = text
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(_SAID_MS)
        self._timer.timeout.connect(self._show_idle)
        self.clicked.connect(self._copy)

    @property
    def seen(self) -> bool:
        return super().seen or self._timer.isActive()

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self._text())
        self.setIcon(icon("check", current_theme().success))
        self.setToolTip(tr("Copied"))
        self.setAccessibleDescription(tr("Copied"))
        self._timer.start()

    def _show_idle(self) -> None:
        self.apply_theme()
        self.setToolTip(self.accessibleName())
        self.setAccessibleDescription("")
        self.update()
