"""The live panel's frame: beside the chat, on either side or below it, or in a window of its own.

Signals: closed, the person has put it away.
"""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import QDockWidget, QHBoxLayout, QLabel, QMainWindow, QToolButton, QWidget

from app.language import mark, tr
from app.ui.icons import icon
from app.ui.style_sheet import set_role
from app.ui.text_size import set_icon_size
from app.ui.theme import SPACE_L, SPACE_S, SPACE_XS, Theme, current_theme, theme_manager

_ICON = 14
_FLOAT, _DOCK = mark("Show in a window of its own"), mark("Put back beside the chat")


class LiveDock(QDockWidget):
    closed = Signal()

    def __init__(self, panel: QWidget, parent: QMainWindow) -> None:
        super().__init__(tr("Engine"), parent)
        self.setObjectName("live-panel")  # by which its place is remembered
        areas = Qt.DockWidgetArea
        self.setAllowedAreas(
            areas.LeftDockWidgetArea | areas.RightDockWidgetArea | areas.BottomDockWidgetArea
        )
        self._frame = parent
        self.setWidget(panel)
        self.float_button = self._button()
        self.close_button = self._button()
        self.close_button.setAccessibleName(tr("Hide the engine's panel"))
        self.close_button.setToolTip(tr("Hide (Ctrl+J)"))
        self.setTitleBarWidget(self._title_bar())
        self.float_button.clicked.connect(lambda: self.setFloating(not self.isFloating()))
        self.close_button.clicked.connect(self.close)
        self.topLevelChanged.connect(self._dress)
        theme_manager().changed.connect(self._paint)
        self._dress()
        self._paint(current_theme())

    @property
    def taken_width(self) -> int:
        """Of the window, at least, with the line beside it; 0 while it stands below or by itself."""
        area = self._frame.dockWidgetArea(self)
        if self.isFloating() or area is Qt.DockWidgetArea.BottomDockWidgetArea:
            return 0
        return self.minimumWidth() + 1

    def move_to(self, area: Qt.DockWidgetArea) -> None:
        """As dragging it there does."""
        self.setFloating(False)
        self._frame.addDockWidget(area, self)

    def _button(self) -> QToolButton:
        button = QToolButton(self)
        set_icon_size(button, _ICON)
        button.setProperty("role", "small")
        return button

    def _title_bar(self) -> QWidget:
        bar = QWidget(self)
        bar.setToolTip(tr("Drag to dock it elsewhere"))
        title = QLabel(tr("Engine"), bar)
        set_role(title, "header-title")
        row = QHBoxLayout(bar)
        row.setContentsMargins(SPACE_L, SPACE_S, SPACE_S, 0)
        row.setSpacing(SPACE_XS)
        row.addWidget(title, 1)
        row.addWidget(self.float_button)
        row.addWidget(self.close_button)
        return bar

    def _dress(self) -> None:
        words = tr(_DOCK if self.isFloating() else _FLOAT)
        self.float_button.setAccessibleName(words)
        self.float_button.setToolTip(words)

    def _paint(self, theme: Theme) -> None:
        self.float_button.setIcon(icon("float", theme.text_muted))
        self.close_button.setIcon(icon("close", theme.text_muted))

    # Qt overrides

    def closeEvent(self, event: QCloseEvent) -> None:
        super().closeEvent(event)
        self.closed.emit()
