"""Says what was just deleted, and takes it back as long as it stands there."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QTimer, Signal
from PySide6.QtGui import QEnterEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QToolButton, QWidget

from app.language import tr, tr_n
from app.ui.icons import icon
from app.ui.push_button import PushButton
from app.ui.text_size import set_icon_size
from app.ui.theme import SPACE_M, SPACE_S, SPACE_XS, Theme, current_theme, theme_manager
from app.ui.wrapped_label import WrappedLabel

_CLOSE = 16
_STAYS_MS = (
    30_000  # long enough for who reads with a screen reader; it waits while the mouse or focus is on it
)


class UndoBar(QFrame):
    """Signals: undone(); gone(), when it goes by itself or is closed."""

    undone = Signal()
    gone = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "card")
        self._words = WrappedLabel(parent=self)
        self.undo_button = PushButton(tr("Undo"), self)
        self.undo_button.setProperty("role", "quiet")
        self.undo_button.setToolTip(tr("Bring back what was deleted (Ctrl+Shift+Z)"))
        self.undo_button.setAccessibleName(tr("Undo the deletion"))
        self.close_button = QToolButton(self)
        set_icon_size(self.close_button, _CLOSE)
        self.close_button.setToolTip(tr("Delete for good"))
        self.close_button.setAccessibleName(tr("Delete for good"))
        row = QHBoxLayout(self)
        row.setContentsMargins(SPACE_M, SPACE_XS, SPACE_XS, SPACE_XS)
        row.setSpacing(SPACE_S)
        row.addWidget(self._words, 1)
        row.addWidget(self.undo_button)
        row.addWidget(self.close_button)
        self.timer = QTimer(self, interval=_STAYS_MS, singleShot=True)
        self.timer.timeout.connect(self._on_timeout)
        self.undo_button.clicked.connect(self.undone)
        self.close_button.clicked.connect(self._end)
        theme_manager().changed.connect(self._paint_icons)
        self._paint_icons(current_theme())
        self.hide()

    def show_deleted(self, count: int) -> None:
        """So many conversations; 0: nothing can be undone."""
        self.timer.stop()
        if count:
            words = tr_n("Chat deleted", "{count:,} chats deleted", count)
            self._words.setText(words)
            self.setAccessibleName(words)
            self.timer.start()
        self.setVisible(bool(count))

    def _on_timeout(self) -> None:
        if self.undo_button.hasFocus() or self.close_button.hasFocus():
            self.timer.start()
        else:
            self._end()

    def _end(self) -> None:
        self.timer.stop()
        self.hide()
        self.gone.emit()

    def _paint_icons(self, theme: Theme) -> None:
        self.close_button.setIcon(icon("close", theme.text_muted))

    # Qt overrides

    def enterEvent(self, event: QEnterEvent) -> None:
        self.timer.stop()
        super().enterEvent(event)

    def leaveEvent(self, event: QEvent) -> None:
        if not self.isHidden():
            self.timer.start()
        super().leaveEvent(event)
