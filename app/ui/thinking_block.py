"""What a model thought before it answered: a line that says so, and the words when they are asked for."""

from __future__ import annotations

from PySide6.QtCore import QUrl, Signal
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from app.language import mark, tr
from app.ui.disclosure import DisclosureButton
from app.ui.document_view import DocumentView
from app.ui.message_body import MessageBody
from app.ui.sliced_work import SlicedWork
from app.ui.text_format import format_duration
from app.ui.theme import SPACE_M, SPACE_S, current_theme

_INDENT = 18  # pixels
THINKING = mark("Thinking…")
THOUGHT = mark("Thought for a while")  # where nobody knows how long


def thought_title(seconds: float) -> str:
    """What stands above thinking that is over; 0 where it isn't known how long it took."""
    return tr("Thought for {duration}", duration=format_duration(seconds)) if seconds > 0 else tr(THOUGHT)


class ThinkingBlock(QWidget):
    """Closed until a person opens it; while it is closed, more thinking costs nothing."""

    height_changed = Signal()
    link_activated = Signal(QUrl)
    document_added = Signal(DocumentView)

    def __init__(self, work: SlicedWork, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._work = work
        self._parts: list[str] = []
        self._body: MessageBody | None = None
        self._ended = False
        self._button = DisclosureButton(self)
        self._button.set_title(tr(THINKING))
        self._button.toggled.connect(self._on_toggled)

    @property
    def text(self) -> str:
        return "".join(self._parts)

    @property
    def button(self) -> DisclosureButton:
        return self._button

    @property
    def documents(self) -> tuple[DocumentView, ...]:
        return self._body.documents if self._body is not None and self._button.isChecked() else ()

    def append(self, text: str) -> None:
        self._parts.append(text)
        if self._body is not None:
            self._body.append(text)

    def finish(self, seconds: float = 0.0) -> None:
        """The thinking is over; the answer begins, or the whole has ended. It took so many seconds, as far as
        is known by now.
        """
        if seconds > 0 or not self._ended:
            self._button.set_title(thought_title(seconds))
        if self._ended:
            return
        self._ended = True
        if self._body is not None:
            self._body.finish()
        self.height_changed.emit()

    def arrange(self, width: int) -> int:
        self._button.move(0, 0)
        height = self._button.height()
        if self._body is None or not self._button.isChecked():
            return height
        inner = self._body.arrange(width - _INDENT)
        self._body.setGeometry(_INDENT, height + SPACE_S, width - _INDENT, inner)
        return height + SPACE_S + inner + SPACE_S

    def apply_theme(self) -> None:
        self._button.apply_theme()
        if self._body is not None:
            self._body.apply_theme()

    def _on_toggled(self, is_open: bool) -> None:
        if is_open and self._body is None:
            self._body = MessageBody(self._work, self, muted=True)
            self._body.height_changed.connect(self.height_changed)
            self._body.link_activated.connect(self.link_activated)
            self._body.document_added.connect(self.document_added)
            self._body.append(self.text)
            if self._ended:
                self._body.finish()
        if self._body is not None:
            self._body.setVisible(is_open)
        self.height_changed.emit()

    # Qt overrides

    def paintEvent(self, event: QPaintEvent) -> None:
        if self._body is None or not self._button.isChecked():
            return
        painter = QPainter(self)
        top = self._button.height() + SPACE_S
        painter.fillRect(SPACE_M - 5, top, 2, self.height() - top - SPACE_S, current_theme().color("border"))
