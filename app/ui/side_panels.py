"""What stands beside the chat: as much of what was asked for as leaves the chat room to be read."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtWidgets import QWidget

from app.ui.live_dock import LiveDock
from app.ui.text_size import scaled

LEAST_CHAT = 400  # pixels: lines of some 45 characters
_LINE = 1  # pixel between two


class SidePanels:
    """Where not all panels that are wanted find room, those that were asked for last are shown. The others
    come back when there is room again, or something else is put away. One that finds no room at all is shown
    nevertheless where it is asked for, until the window gets another width.
    """

    def __init__(self, *panels: QWidget, grow: Callable[[int], None]) -> None:
        """The panels have their minimum widths. Those that matter most come last. grow: makes the window as
        wide as that, if it can; `fit` then says how wide it is.
        """
        self._grow = grow
        self._panels = panels
        self._wanted: list[QWidget] = []  # what was asked for last comes last
        self._width = 0
        self._insisted: QWidget | None = None  # asked for, with whatever room there is

    def is_wanted(self, panel: QWidget) -> bool:
        """Whether it is shown, or would be if there were room."""
        return panel in self._wanted

    def show(self, panel: QWidget) -> None:
        self._insisted = panel
        self._wanted = [*(other for other in self._wanted if other is not panel), panel]
        self._arrange()

    def hide(self, panel: QWidget) -> None:
        self._wanted = [other for other in self._wanted if other is not panel]
        self._arrange()

    def toggle(self, panel: QWidget) -> None:
        """By what is seen: one that is wanted and finds no room is shown."""
        if panel.isHidden():
            self.show(panel)
        else:
            self.hide(panel)

    def fit(self, width: int) -> None:
        """The window has this width now."""
        if width != self._width:
            self._insisted = None
        self._width = width
        self._arrange()

    def _arrange(self) -> None:
        left = self._width - scaled(LEAST_CHAT)
        lacking = 0
        shown = set()
        for panel in reversed(self._wanted):
            left -= panel.taken_width if isinstance(panel, LiveDock) else panel.minimumWidth() + _LINE
            if left < 0 and (shown or panel is not self._insisted):
                break
            lacking = max(0, -left)
            shown.add(panel)
        for panel in self._panels:  # those that go first, so that the chat is never squeezed between
            if panel not in shown:
                panel.hide()
        for panel in shown:
            panel.show()
        if lacking and self._width:
            self._grow(self._width + lacking)
