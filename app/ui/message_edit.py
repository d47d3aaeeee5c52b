"""The editor inside the composer: plain text, one to ten lines high, and careful with input methods."""

from __future__ import annotations

from math import ceil

from PySide6.QtCore import QMimeData, QSize, Qt, Signal
from PySide6.QtGui import (
    QFocusEvent,
    QInputMethodEvent,
    QKeyEvent,
    QPalette,
    QResizeEvent,
    QTextCursor,
    QTextLayout,
)
from PySide6.QtWidgets import QFrame, QPlainTextEdit, QSizePolicy, QWidget

from app.language import tr
from app.ui.composition import Composition
from app.ui.document_view import reading_font
from app.ui.theme import current_theme

MAX_LINES = 10
LONG_CHARACTERS = 20_000
LONG_LINES = 400
_PADDING = 6  # pixels above and below the text
# What a document has in place of line feeds; the last two stand for frames.
_LINE_ENDS = {0x2028: "\n", 0x2029: "\n", 0xFDD0: "\n", 0xFDD1: "\n"}


class MessageEdit(QPlainTextEdit):
    """Signals: send_pressed() for an Enter that means it; long_text_pasted(str) instead of inserting it;
    focus_changed().
    """

    send_pressed = Signal()
    long_text_pasted = Signal(str)
    focus_changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._composition = Composition(self)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setTabChangesFocus(True)
        self.setAccessibleName(tr("Message"))
        self.setAccessibleDescription(tr("Enter sends, Shift+Enter begins a new line"))
        self.setToolTip("")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.document().setDocumentMargin(0)
        self.setViewportMargins(0, _PADDING, 0, _PADDING)
        self.viewport().setAutoFillBackground(False)
        self.document().documentLayout().documentSizeChanged.connect(self._fit_height)
        self.textChanged.connect(self._fit_height)
        self.apply_theme()

    @property
    def text(self) -> str:
        """What stands in it. Qt's own toPlainText makes plain spaces of spaces that don't break."""
        return self.document().toRawText().translate(_LINE_ENDS)

    @property
    def is_blank(self) -> bool:
        """Nothing but white space. Looks no further than it must."""
        block = self.document().firstBlock()
        while block.isValid():
            if block.text().strip():
                return False
            block = block.next()
        return True

    @property
    def composing(self) -> bool:
        """An input method is at work on a word."""
        return self._composition.active

    def move_to_end(self) -> None:
        self.moveCursor(QTextCursor.MoveOperation.End)

    def apply_theme(self) -> None:
        theme = current_theme()
        self.setFont(reading_font())
        palette = QPalette(self.palette())
        palette.setColor(QPalette.ColorRole.Base, Qt.GlobalColor.transparent)
        palette.setColor(QPalette.ColorRole.Text, theme.color("text"))
        palette.setColor(QPalette.ColorRole.PlaceholderText, theme.color("text_muted"))
        palette.setColor(QPalette.ColorRole.Highlight, theme.color("selection"))
        palette.setColor(QPalette.ColorRole.HighlightedText, theme.color("text"))
        self.setPalette(palette)
        self._fit_height()

    def _fit_height(self, _size: object = None) -> None:
        """As high as the text, from one line to MAX_LINES; counts no further than that. A line of Chinese is
        higher than the font says, which another one stands in for.
        """
        lines, text_height = 0, 0.0
        block = self.document().firstBlock()
        while block.isValid() and lines < MAX_LINES:
            self.document().documentLayout().blockBoundingRect(block)  # lays the block out if it is not yet
            layout = block.layout()
            counted = min(layout.lineCount(), MAX_LINES - lines)
            text_height += sum(layout.lineAt(line).height() for line in range(counted))
            lines += max(1, layout.lineCount())
            block = block.next()
        if self.document().isEmpty():
            text_height = max(text_height, self._placeholder_height())
        height = ceil(text_height) + 2 * _PADDING
        if height != self.height() or height != self.minimumHeight():
            self.setFixedHeight(height)
        full = block.isValid()
        policy = Qt.ScrollBarPolicy.ScrollBarAsNeeded if full else Qt.ScrollBarPolicy.ScrollBarAlwaysOff
        self.setVerticalScrollBarPolicy(policy)

    def _placeholder_height(self) -> float:
        layout = QTextLayout(self.placeholderText() or " ", self.font())
        layout.beginLayout()
        line = layout.createLine()
        layout.endLayout()
        return line.height()

    def _enter_sends(self, event: QKeyEvent) -> bool:
        """Whether an Enter is the person's own, not the one that ends a word of an input method."""
        return not self._composition.owns_keys and not event.isAutoRepeat()

    # Qt overrides

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            if event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
                if not self.composing:
                    self.textCursor().insertBlock()
                    self.ensureCursorVisible()
            elif self._enter_sends(event):
                self.send_pressed.emit()
            event.accept()
            return
        if event.key() == Qt.Key.Key_Escape and self.composing:
            event.accept()  # it is the input method's
            return
        super().keyPressEvent(event)

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.focus_changed.emit()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.focus_changed.emit()

    def canInsertFromMimeData(self, source: QMimeData) -> bool:
        return source.hasText()

    def insertFromMimeData(self, source: QMimeData) -> None:
        """Only ever the plain text; a very long one goes to whoever listens."""
        text = source.text().replace("\r\n", "\n").replace("\r", "\n")
        if is_long(text):
            self.long_text_pasted.emit(text)
        else:
            self.insertPlainText(text)
            self.ensureCursorVisible()

    def inputMethodEvent(self, event: QInputMethodEvent) -> None:
        super().inputMethodEvent(event)
        self._fit_height()  # a word that is being composed has its lines already, but is no text yet

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_height()

    def sizeHint(self) -> QSize:
        return QSize(200, self.minimumHeight())


def is_long(text: str) -> bool:
    """Whether an editor would take noticeable time to lay a text out."""
    return len(text) > LONG_CHARACTERS or text.count("\n") > LONG_LINES
