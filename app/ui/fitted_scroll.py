"""An area that is as high as what is in it, and scrolls where that is more than there is room for."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, QSize, Qt
from PySide6.QtWidgets import QFrame, QScrollArea, QSizePolicy, QWidget

_BESIDE = 140  # pixels of a screen that stay for what stands above and below


class FittedScroll(QScrollArea):
    """Takes the focus only where there is something to scroll, so that nobody tabs to it in vain."""

    def __init__(self, content: QWidget, parent: QWidget, *, as_wide: bool = False) -> None:
        """as_wide: it wants the width of its content, too."""
        super().__init__(parent)
        self._as_wide = as_wide
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
        self.setWidget(content)
        content.setAutoFillBackground(False)
        self.viewport().setAutoFillBackground(False)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.verticalScrollBar().rangeChanged.connect(self._take_focus_to_scroll)

    def _take_focus_to_scroll(self, _least: int, most: int) -> None:
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus if most > 0 else Qt.FocusPolicy.NoFocus)

    # Qt overrides

    def sizeHint(self) -> QSize:
        frame = 2 * self.frameWidth()
        content = self.widget().sizeHint()
        most = self.screen().availableSize().height() - _BESIDE
        width = super().sizeHint().width()
        if self._as_wide:
            bar = self.verticalScrollBar().sizeHint().width() if content.height() > most else 0
            width = content.width() + frame + bar
        return QSize(width, min(content.height(), most) + frame)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.LayoutRequest:
            self.updateGeometry()
        return super().eventFilter(watched, event)
