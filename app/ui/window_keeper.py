"""The window that stands now. Another language is spoken by another window, which takes its place.

Widgets ask for their texts when they are built, so a new language needs new widgets; conversations, answers
that are being written and the model are the controller's, and go on. What only the old window knows is
handed over.
"""

from __future__ import annotations

import shiboken6
from PySide6.QtCore import QObject, QTimer, Signal

from app.controller import ChatController
from app.ui.hand_over import hand_over
from app.ui.main_window import MainWindow
from app.ui.spoken_language import speak
from engine.notices import Notice


class WindowKeeper(QObject):
    """Signals: first_shown, once, when a window is on the screen."""

    first_shown = Signal()

    def __init__(self, controller: ChatController, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._controller = controller
        self._left_cleanly = True
        problem = speak(controller.settings.language)
        self.window = self._build()
        self.window.first_shown.connect(self.first_shown)
        if problem is not None:
            self.window.show_notice(problem)

    @property
    def closed_cleanly(self) -> bool:
        """False after the end: a thread of one of its windows did not end in time."""
        return self._left_cleanly and self.window.closed_cleanly

    def show(self) -> None:
        self.window.show()

    def close(self) -> None:
        self.window.close()

    def show_fault(self, notice: Notice, details: str) -> None:
        self.window.show_fault(notice, details)

    def _build(self) -> MainWindow:
        window = MainWindow(self._controller)
        # Not from inside the dialog in which it was chosen, which goes with its window.
        window.language_chosen.connect(lambda: QTimer.singleShot(0, self, self._change))
        return window

    def _change(self) -> None:
        old = self.window
        if old.has_ended or old.language is self._controller.settings.language:
            return
        old.keep_layout()
        problem = speak(self._controller.settings.language)
        new = self._build()  # a fault in here leaves the old one as it is
        hand_over(old, new)
        self.window = new
        self._left_cleanly = self._left_cleanly and old.closed_cleanly
        new.show()
        old.hide()
        shiboken6.delete(old)  # at once: what is told from now on would be told by both
        self._controller.tell_again()
        if problem is not None:
            new.show_notice(problem)
        new.settings.open(at="language")
