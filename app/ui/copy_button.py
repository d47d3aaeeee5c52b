"""A button that copies a text and says for a moment that it did."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QSize, Qt, QTimer
from PySide6.QtGui import QGuiApplication, QPaintEvent
from PySide6.QtWidgets import QToolButton, QWidget

from app.ui.icons import icon
from app.ui.theme import current_theme

_SAID_MS = 1600
_ICON = 15  # pixels


class CopyButton(QToolButton):
    """`text` is asked for when the button is pressed, so it may still grow.

    A shy one shows itself only while it has the focus, or `reveal(True)` says that the mouse is near.
    """

    def __init__(
        self, text: Callable[[], str], name: str, parent: QWidget | None = None, *, shy: bool = False
    ) -> None:
        super().__init__(parent)
        self._shy = shy
        self._near = False
        self._text = text
        self._name = name
        self.setAccessibleName(name)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setIconSize(QSize(_ICON, _ICON))
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(_SAID_MS)
        self._timer.timeout.connect(self._show_idle)
        self.clicked.connect(self._copy)
        self._show_idle()
        self.setFixedSize(self.sizeHint())

    def apply_theme(self) -> None:
        self._show_idle()

    def reveal(self, near: bool) -> None:
        self._near = near
        self.update()

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self._text())
        self.setIcon(icon("check", current_theme().success))
        self.setToolTip("Copied")
        self.setAccessibleDescription("Copied")
        self._timer.start()

    def _show_idle(self) -> None:
        self._timer.stop()
        self.setIcon(icon("copy", current_theme().text_muted))
        self.setToolTip(self._name)
        self.setAccessibleDescription("")

    # Qt overrides

    def paintEvent(self, event: QPaintEvent) -> None:
        if not self._shy or self._near or self.hasFocus() or self._timer.isActive():
            super().paintEvent(event)
