"""A piece of rich text that is as tall as what it says, inside a column that someone else scrolls.

It fetches nothing: whatever a text may name, `loadResource` refuses. Its widths and heights are handed
out by the column it stands in (`arrange`), not by Qt's layouts, so a growing answer never makes Qt ask
the whole chat anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil
from typing import Any

from PySide6.QtCore import QEvent, QMimeData, Qt, QUrl, Signal
from PySide6.QtGui import (
    QColor,
    QContextMenuEvent,
    QFocusEvent,
    QFont,
    QFontDatabase,
    QPalette,
    QShowEvent,
    QTextBlock,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
    QTextFragment,
    QWheelEvent,
)
from PySide6.QtWidgets import QFrame, QTextBrowser, QWidget

from app.ui.focus_ring import FocusRing
from app.ui.formula_object import (
    OBJECT,
    draw_formulas,
    fitted,
    insert_formula,
    is_formula,
    key_of,
    written_as,
)
from app.ui.formulas import FormulaKey, formula_store
from app.ui.theme import current_theme, han_families, scaled_font

SCALE_READING = 1.06  # a little larger than the interface: this is what is read for long
LINE_HEIGHT_PERCENT = 138.0
_FIRST_WIDTH = 640  # pixels, until it is arranged; at Qt's own, 0, each letter would have a line
_MONOSPACE = ("Cascadia Mono", "SF Mono", "Menlo", "Consolas", "DejaVu Sans Mono")


def reading_font() -> QFont:
    return scaled_font(SCALE_READING)


def code_font(scale: float = 0.97) -> QFont:
    """The first good monospaced family there is: the one that Windows hands out by itself is thin and
    wide.
    """
    font = scaled_font(scale)
    fixed = QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont).family()
    font.setFamilies([*_MONOSPACE, fixed, *han_families()])
    font.setStyleHint(QFont.StyleHint.Monospace)
    font.setFixedPitch(True)
    return font


# What would begin a new block or frame in a QTextDocument.
_SAME_FRAME = {0xFDD0: None, 0xFDD1: None, 0xFFFC: "\ufffd"}  # the last stands for what is drawn
_ONE_BLOCK = _SAME_FRAME | {0x0A: "\u2028", 0x0D: "\u2028", 0x2029: "\u2028"}


def one_block(text: str) -> str:
    """Text that stays in one block when it is inserted; its line feeds become line separators."""
    return text.translate(_ONE_BLOCK)


def same_frame(text: str) -> str:
    """Text whose lines may be blocks, without the characters by which a QTextDocument marks its frames."""
    return text.translate(_SAME_FRAME)


class DocumentView(QTextBrowser):
    """Base of prose, code and tables. `anchorClicked` tells of links; it opens none.

    Signals: reflowed() when its height may have changed by itself: a formula has become known.
    """

    reflowed = Signal()

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
        self.setLineWrapColumnOrWidth(_FIRST_WIDTH)
        self.document().setDocumentMargin(0)
        self.document().setUndoRedoEnabled(False)
        self.viewport().setAutoFillBackground(False)
        self._ring: FocusRing | None = None
        self._changes: QTextCursor | None = None
        self._never_shown = True
        self._draws_formulas = False
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

    @property
    def wraps(self) -> bool:
        return self.lineWrapMode() is not QTextBrowser.LineWrapMode.NoWrap

    def set_wraps(self, wraps: bool) -> None:
        """Whether long lines go on below, or are scrolled to. It has to be arranged anew afterwards."""
        mode, policy = QTextBrowser.LineWrapMode, Qt.ScrollBarPolicy
        self.setLineWrapMode(mode.FixedPixelWidth if wraps else mode.NoWrap)
        self.setHorizontalScrollBarPolicy(policy.ScrollBarAlwaysOff if wraps else policy.ScrollBarAsNeeded)
        self.reflowed.emit()

    def begin_changes(self) -> None:
        """What is written until `end_changes` is laid out once, not after every run of text."""
        self._changes = QTextCursor(self.document())
        self._changes.beginEditBlock()

    def end_changes(self) -> None:
        assert self._changes is not None, "begin_changes comes first"
        self._changes.endEditBlock()
        self._changes = None

    def insert_formula(
        self,
        cursor: QTextCursor,
        key: FormulaKey,
        *,
        written: str,
        around: QTextCharFormat,
        source: QTextCharFormat,
    ) -> None:
        """Writes a formula into text of the format `around`; in the format `source` as it was written, if it
        can't be read. One that isn't known yet is drawn when it is.
        """
        store = formula_store()
        if store.is_known(key) and store.drawing(key) is None:
            cursor.insertText(one_block(written), source)
            return
        if not self._draws_formulas:
            self._draws_formulas = True
            draw_formulas(self.document())
        insert_formula(cursor, one_block(written), key, around)
        if not store.is_known(key):
            store.want(key, self._on_formulas_known)

    def source_format(self, around: QTextCharFormat) -> QTextCharFormat:
        """How a formula is written that can't be read."""
        return QTextCharFormat(around)

    def _on_formulas_known(self, keys: Sequence[FormulaKey]) -> None:
        cursor = QTextCursor(self.document())
        cursor.beginEditBlock()
        for position in reversed(_places_of(self.document(), keys)):
            cursor.setPosition(position)
            cursor.setPosition(position + 1, QTextCursor.MoveMode.KeepAnchor)
            char_format = cursor.charFormat()
            if formula_store().drawing(key_of(char_format)) is not None:
                cursor.setCharFormat(fitted(char_format, self.document()))
            else:
                before = self.document().characterCount()
                cursor.insertText(written_as(char_format), self.source_format(char_format))
                self._on_replaced(position, self.document().characterCount() - before)
        cursor.endEditBlock()
        self.reflowed.emit()

    def _on_replaced(self, position: int, grown: int) -> None:
        """The text has `grown` by so many characters at a position. For children that know places in it."""

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

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        if event.reason() in (Qt.FocusReason.TabFocusReason, Qt.FocusReason.BacktabFocusReason):
            self._ring = self._ring or FocusRing(self)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        stays = (Qt.FocusReason.ActiveWindowFocusReason, Qt.FocusReason.PopupFocusReason)
        if self._ring is not None and event.reason() not in stays:
            self._ring.end()
            self._ring = None

    def createMimeDataFromSelection(self) -> QMimeData:
        data = QMimeData()
        data.setText(self.copied_text())
        return data

    def wheelEvent(self, event: QWheelEvent) -> None:
        delta = event.angleDelta()
        sizes_text = bool(event.modifiers() & Qt.KeyboardModifier.ControlModifier)  # of the whole window
        if not sizes_text and abs(delta.x()) > abs(delta.y()) and self.horizontalScrollBar().maximum() > 0:
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


def _places_of(document: QTextDocument, keys: Sequence[FormulaKey]) -> list[int]:
    """Where some formulas stand in a document."""
    return [
        position
        for position, char_format in _formulas(document, 0, document.characterCount())
        if key_of(char_format) in keys
    ]


def _formulas(document: QTextDocument, start: int, end: int) -> Iterator[tuple[int, QTextCharFormat]]:
    """The formulas between two places, and the format of each."""
    block = document.findBlock(start)
    while block.isValid() and block.position() < end:
        if OBJECT in block.text():
            for fragment in _fragments(block):
                if is_formula(fragment.charFormat()):
                    places = range(fragment.position(), fragment.position() + fragment.length())
                    yield from ((at, fragment.charFormat()) for at in places if start <= at < end)
        block = block.next()


def _fragments(block: QTextBlock) -> Iterator[QTextFragment]:
    iterator = block.begin()
    while not iterator.atEnd():
        yield iterator.fragment()
        iterator += 1


def plain_selection(cursor: QTextCursor) -> str:
    """What is selected, with the line ends that people expect, and formulas as they were written."""
    text = cursor.selectedText()
    if OBJECT in text:
        written = _formulas(cursor.document(), cursor.selectionStart(), cursor.selectionEnd())
        sources = iter([written_as(char_format) for _, char_format in written])
        # A text can't hold the character itself: `one_block` and `same_frame` let none through.
        text = "".join(next(sources, "") if char == OBJECT else char for char in text)
    return text.replace("\u2029", "\n").replace("\u2028", "\n").replace("\u00a0", " ")
