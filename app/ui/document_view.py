"""A piece of rich text that is as tall as what it says, inside a column that someone else scrolls.

It fetches nothing: whatever a text may name, `loadResource` refuses. Its widths and heights are handed
out by the column it stands in (`arrange`), not by Qt's layouts, so a growing answer never makes Qt ask
the whole chat anew.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

from PySide6.QtCore import QEvent, QMimeData, Qt, QUrl
from PySide6.QtGui import (
    QColor,
    QContextMenuEvent,
    QFont,
    QFontDatabase,
    QPalette,
    QShowEvent,
    QTextCursor,
    QWheelEvent,
)
from PySide6.QtWidgets import QFrame, QTextBrowser, QWidget

from app.ui.theme import current_theme, scaled_font

SCALE_READING = 1.06  # a little larger than the interface: this is what is read for long
LINE_HEIGHT_PERCENT = 138.0
_MONOSPACE = ("Cascadia Mono", "SF Mono", "Menlo", "Consolas", "DejaVu Sans Mono")


def reading_font() -> QFont:
    return scaled_font(SCALE_READING)


def code_font(scale: float = 0.97) -> QFont:
    """The first good monospaced family there is: the one that Windows hands out by itself is thin and
    wide.
    """
    font = scaled_font(scale)
    font.setFamilies([*_MONOSPACE, QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont).family()])
    font.setStyleHint(QFont.StyleHint.Monospace)
    font.setFixedPitch(True)
    return font


# What would begin a new block or frame in a QTextDocument.
_ONE_BLOCK = {0x0A: "\u2028", 0x0D: "\u2028", 0x2029: "\u2028", 0xFDD0: None, 0xFDD1: None}
_SAME_FRAME = {0xFDD0: None, 0xFDD1: None}


def one_block(text: str) -> str:
    """Text that stays in one block when it is inserted; its line feeds become line separators."""
    return text.translate(_ONE_BLOCK)


def same_frame(text: str) -> str:
    """Text whose lines may be blocks, without the characters by which a QTextDocument marks its frames."""
    return text.translate(_SAME_FRAME)


class DocumentView(QTextBrowser):
    """Base of prose, code and tables. `anchorClicked` tells of links; it opens none."""

    def __init__(self, parent: QWidget | None = None, *, wraps: bool = True) -> None:
        super().__init__(parent)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setOpenLinks(False)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setHorizontalScrollBarPolicy(
            Qt.ScrollBarPolicy.ScrollBarAlwaysOff if wraps else Qt.ScrollBarPolicy.ScrollBarAsNeeded
        )
        self.setTabChangesFocus(True)
        # `arrange` sets the width; a resize of the widget lays out nothing.
        mode = QTextBrowser.LineWrapMode
        self.setLineWrapMode(mode.FixedPixelWidth if wraps else mode.NoWrap)
        self.document().setDocumentMargin(0)
        self.document().setUndoRedoEnabled(False)
        self.viewport().setAutoFillBackground(False)
        self._changes: QTextCursor | None = None
        self._never_shown = True
        self.copied_text: Callable[[], str] = self.selected_text  # what Copy takes
        self.apply_theme()

    def apply_theme(self) -> None:
        """Takes the colours of the theme that is on; children colour what they wrote as well."""
        theme = current_theme()
        palette = QPalette(self.palette())
        palette.setColor(QPalette.ColorRole.Base, QColor(Qt.GlobalColor.transparent))
        for role, name in (
            (QPalette.ColorRole.Text, "text"),
            (QPalette.ColorRole.Link, "accent"),
            (QPalette.ColorRole.Highlight, "selection"),
            (QPalette.ColorRole.HighlightedText, "text"),
        ):
            palette.setColor(role, theme.color(name))
        self.setPalette(palette)

    def arrange(self, width: int) -> int:
        """Lays the text out at a width in pixels and gives the height it needs. Sets no size."""
        if self.lineWrapColumnOrWidth() != width:
            self.setLineWrapColumnOrWidth(width)
        return ceil(self.document().size().height())

    def begin_changes(self) -> None:
        """What is written until `end_changes` is laid out once, not after every run of text."""
        self._changes = QTextCursor(self.document())
        self._changes.beginEditBlock()

    def end_changes(self) -> None:
        assert self._changes is not None, "begin_changes comes first"
        self._changes.endEditBlock()
        self._changes = None

    def clear_selection(self) -> None:
        cursor = self.textCursor()
        if cursor.hasSelection():
            cursor.clearSelection()
            self.setTextCursor(cursor)

    def selected_text(self) -> str:
        return plain_selection(self.textCursor())

    # Qt overrides

    def loadResource(self, kind: int, name: QUrl) -> Any:
        """Refuses everything: a text that a model wrote loads nothing, from the disk or from the
        network.
        """
        return None

    def createMimeDataFromSelection(self) -> QMimeData:
        data = QMimeData()
        data.setText(self.copied_text())
        return data

    def wheelEvent(self, event: QWheelEvent) -> None:
        delta = event.angleDelta()
        if abs(delta.x()) > abs(delta.y()) and self.horizontalScrollBar().maximum() > 0:
            super().wheelEvent(event)
            return
        event.ignore()  # the chat scrolls

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        event.ignore()  # the message has one menu for all its parts

    def showEvent(self, event: QShowEvent) -> None:
        """Qt scrolls to the cursor the first time, and what was written has pushed that to the end."""
        first, self._never_shown = self._never_shown, False
        super().showEvent(event)
        if first:
            self.horizontalScrollBar().setValue(0)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.FontChange:
            self.document().setDefaultFont(self.font())


def plain_selection(cursor: QTextCursor) -> str:
    """What is selected, with the line ends that people expect."""
    return cursor.selectedText().replace("\u2029", "\n").replace("\u2028", "\n").replace("\u00a0", " ")
