"""Where things stand in the window: the list, the pages and the panel side by side, the status line below.

What a person moves or draws wider comes back at the next start.
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QByteArray, QObject, QSize, Qt
from PySide6.QtWidgets import QMainWindow, QSplitter, QStackedWidget, QVBoxLayout, QWidget

from app.settings import Settings
from app.ui.live_dock import LiveDock
from app.ui.live_panel import LivePanel
from app.ui.side_panels import LEAST_CHAT, SidePanels
from app.ui.text_size import follow_text_size, scaled, text_size

_SIZE = QSize(1180, 760)
_MIN_SIZE = QSize(640, 460)
_SIDEBAR_WIDTH = 250
_SIDEBAR_MIN = 170
_PANEL_WIDTH = 320
_PANEL_MIN = 220


class WindowLayout(QObject):
    """Of one window. pages: in the middle, one at a time; dock: has the panel; sides: which of what stands
    beside the pages finds room.
    """

    def __init__(
        self,
        window: QMainWindow,
        *,
        conversations: QWidget,
        above: Sequence[QWidget],
        pages: Sequence[QWidget],
        panel: LivePanel,
        status: QWidget,
    ) -> None:
        """above: over the pages."""
        super().__init__(window)
        self._window = window
        self._conversations = conversations
        self._panel = panel
        self.pages = QStackedWidget(window)
        for page in pages:
            self.pages.addWidget(page)
        self._middle = QWidget(window)
        self._middle.setProperty("role", "surface")
        self._middle.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        _in_column(self._middle, *above, self.pages)
        self.splitter = QSplitter(Qt.Orientation.Horizontal, window)
        self.splitter.setHandleWidth(1)
        self.splitter.setChildrenCollapsible(False)
        self.splitter.addWidget(conversations)
        self.splitter.addWidget(self._middle)
        self.splitter.setStretchFactor(1, 1)
        self.splitter.setSizes([_SIDEBAR_WIDTH, _SIZE.width() - _SIDEBAR_WIDTH - _PANEL_WIDTH])
        self.frame = QMainWindow(window, Qt.WindowType.Widget)  # in which the panel can be moved
        self.dock = LiveDock(panel, self.frame)
        window.setMinimumSize(_MIN_SIZE)
        follow_text_size(self, self._set_least_widths)
        self.frame.setCentralWidget(self.splitter)
        self.frame.addDockWidget(Qt.DockWidgetArea.RightDockWidgetArea, self.dock)
        self.frame.resizeDocks([self.dock], [_PANEL_WIDTH], Qt.Orientation.Horizontal)
        self.sides = SidePanels(self.dock, conversations, grow=self._grow_to)
        text_size().changed.connect(self.fit)
        self.dock.topLevelChanged.connect(self.fit)
        self.dock.dockLocationChanged.connect(self.fit)
        centre = QWidget(window)
        _in_column(centre, self.frame, status, stretched=self.frame)
        window.setCentralWidget(centre)

    def fit(self) -> None:
        """The window, its text or a side has another size or place."""
        self.sides.fit(self._window.width())

    def restore(self, settings: Settings) -> None:
        """As it was left, or as it is at the first start."""
        self._window.resize(_SIZE)
        if settings.window_geometry_base64:
            self._window.restoreGeometry(_as_bytes(settings.window_geometry_base64))
        if settings.splitter_state_base64:
            self.splitter.restoreState(_as_bytes(settings.splitter_state_base64))
        if settings.dock_state_base64:
            self.frame.restoreState(_as_bytes(settings.dock_state_base64))
        if settings.live_panel:
            self.sides.show(self.dock)
        else:
            self.sides.hide(self.dock)
        self.sides.show(self._conversations)
        self.fit()

    def as_settings(self) -> dict[str, str]:
        """What `restore` reads, by the names of the settings."""
        return {
            "window_geometry_base64": _as_text(self._window.saveGeometry()),
            "splitter_state_base64": _as_text(self.splitter.saveState()),
            "dock_state_base64": _as_text(self.frame.saveState()),
        }

    def _set_least_widths(self) -> None:
        """The smallest window has room for one panel beside what is left for the chat."""
        self._conversations.setMinimumWidth(min(scaled(_SIDEBAR_MIN), _MIN_SIZE.width() // 2))
        panel = min(scaled(_PANEL_MIN), _MIN_SIZE.width() // 2)
        for part in (self._panel, self.dock):
            part.setMinimumWidth(panel)
        self._middle.setMinimumWidth(min(LEAST_CHAT, _MIN_SIZE.width() - panel - 1))

    def _grow_to(self, width: int) -> None:
        window = self._window
        if not window.isMaximized() and not window.isFullScreen():
            window.resize(min(width, window.screen().availableSize().width()), window.height())


def _in_column(holder: QWidget, *parts: QWidget, stretched: QWidget | None = None) -> None:
    """One below the other, with nothing between. stretched: takes what is left; None: the last one."""
    column = QVBoxLayout(holder)
    column.setContentsMargins(0, 0, 0, 0)
    column.setSpacing(0)
    for part in parts:
        column.addWidget(part, int(part is (stretched or parts[-1])))


def _as_text(data: QByteArray) -> str:
    return bytes(data.toBase64().data()).decode("ascii")


def _as_bytes(text: str) -> QByteArray:
    return QByteArray.fromBase64(text.encode())
