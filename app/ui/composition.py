"""Knows whether an input method is at work on a word in a field, and which keys are then its own."""

from __future__ import annotations

from time import perf_counter

from PySide6.QtCore import QEvent, QObject
from PySide6.QtGui import QInputMethodEvent, QKeyEvent
from PySide6.QtWidgets import QPlainTextEdit, QWidget

# The key that commits a word can reach the field just after the word. Nobody presses one anew that quickly
# without letting go of a key first.
_SAME_KEY_SECONDS = 0.05


class Composition(QObject):
    """Of one field. Some input methods let keys through by which a word is chosen, ended or given up; whoever
    listens to keys of the field leaves them alone while `owns_keys`.

    The placeholder of a QPlainTextEdit is away meanwhile: Qt would draw it through the word.
    """

    def __init__(self, field: QWidget) -> None:
        super().__init__(field)
        self._active = False
        self._placeholder = ""  # while it is away
        self._committed_at: float | None = None  # until a key is let go
        field.installEventFilter(self)

    @property
    def active(self) -> bool:
        """A word is being composed."""
        return self._active

    @property
    def owns_keys(self) -> bool:
        """Whether a key that is pressed now may be the input method's."""
        if self._active:
            return True
        return self._committed_at is not None and perf_counter() - self._committed_at <= _SAME_KEY_SECONDS

    def _set_active(self, field: QObject, active: bool) -> None:
        if active == self._active:
            return
        self._active = active
        if isinstance(field, QPlainTextEdit):
            shown, self._placeholder = self._placeholder, field.placeholderText()
            field.setPlaceholderText(shown)

    # Qt overrides

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QInputMethodEvent):
            self._set_active(watched, bool(event.preeditString()))
            if event.commitString():
                self._committed_at = perf_counter()
        elif isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyRelease:
            if not event.isAutoRepeat():
                self._committed_at = None
        elif event.type() == QEvent.Type.FocusOut:
            self._set_active(watched, False)  # Qt commits or drops the word when the focus leaves
        return super().eventFilter(watched, event)
