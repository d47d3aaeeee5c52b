"""Paragraphs, headings and rules of an answer, with the marks of lists and quotes painted beside them.

The text is built run by run, never read from HTML. What is settled is written once; the provisional tail
behind it is taken back and written anew with every change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontMetricsF,
    QPainter,
    QPaintEvent,
    QTextBlock,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
)
from PySide6.QtWidgets import QWidget

from app.language import tr
from app.ui.document_view import (
    LINE_HEIGHT_PERCENT,
    DocumentView,
    code_font,
    one_block,
    plain_selection,
    reading_font,
)
from app.ui.formulas import FormulaKey
from app.ui.markdown import Formula, Heading, Paragraph, Place, Rule, Span
from app.ui.text_size import scaled
from app.ui.theme import SPACE_S, current_theme, mixed
from app.ui.tooltips import plain_tooltip

Prose = Paragraph | Heading | Formula | Rule

MAX_CHARACTERS = 16_000  # a longer run of prose goes on in the next view, so that no layout takes long
MAX_SHOWN_DEPTH = 8
LIST_INDENT = 26  # pixels a level
QUOTE_INDENT = 18
_PARAGRAPH_GAP = 11
_ITEM_GAP = 5
_HEADING_SCALES = (1.5, 1.28, 1.12, 1.0, 1.0, 1.0)


def indent_of(path: str) -> int:
    """Pixels that containers push their content to the right."""
    shown = path[:MAX_SHOWN_DEPTH]
    return shown.count("l") * scaled(LIST_INDENT) + shown.count("q") * QUOTE_INDENT


@dataclass(frozen=True)
class ProseInk:
    """Formats that depend on the theme."""

    plain: QTextCharFormat
    code: QTextCharFormat
    link: QTextCharFormat

    @classmethod
    def of_theme(cls, *, muted: bool) -> ProseInk:
        theme = current_theme()
        plain = QTextCharFormat()
        plain.setForeground(theme.color("text_muted" if muted else "text"))
        code = QTextCharFormat()
        font = code_font()
        code.setFontFamilies(font.families())
        code.setFontFixedPitch(True)
        code.setFontPointSize(font.pointSizeF())
        code.setBackground(theme.color("code_background"))
        link = QTextCharFormat()
        link.setForeground(theme.color("accent"))
        link.setFontUnderline(True)
        link.setUnderlineColor(QColor(mixed(theme.accent, theme.surface, 0.7)))
        return cls(plain, code, link)


def insert_spans(
    view: DocumentView, cursor: QTextCursor, spans: Sequence[Span], base: QTextCharFormat, ink: ProseInk
) -> None:
    """Writes spans into the cursor's block of a view, each in the format that its style makes of `base`."""
    for span in spans:
        char_format = _span_format(span, base, ink)
        if span.tex:
            source = QTextCharFormat(char_format)
            source.merge(ink.code)
            key = FormulaKey(span.tex, span.display)
            view.insert_formula(cursor, key, written=span.text, around=char_format, source=source)
        else:
            cursor.insertText(one_block(span.text), char_format)


def _span_format(span: Span, base: QTextCharFormat, ink: ProseInk) -> QTextCharFormat:
    result = QTextCharFormat(base)
    if span.code:
        result.merge(ink.code)
    if span.bold:
        result.setFontWeight(QFont.Weight.DemiBold)
    if span.italic:
        result.setFontItalic(True)
    if span.strike:
        result.setFontStrikeOut(True)
    if span.href:
        result.merge(ink.link)
        result.setAnchor(True)
        result.setAnchorHref(span.href)
        result.setToolTip(plain_tooltip(span.href))
    return result


class ProseView(DocumentView):
    """One or more prose leaves, each one block of the document. `muted` writes in the quieter colour,
    for thinking.
    """

    def __init__(self, parent: QWidget | None = None, *, muted: bool = False) -> None:
        self._muted = muted
        self._leaves: list[Prose] = []
        self._num_settled = 0
        self._settled_end = 0  # characters of the document that are final
        super().__init__(parent)
        self.setAccessibleName(tr("Thinking text") if muted else tr("Answer text"))

    @property
    def is_empty(self) -> bool:
        return not self._leaves

    @property
    def begins_with_heading(self) -> bool:
        return bool(self._leaves) and isinstance(self._leaves[0], Heading)

    @property
    def has_room(self) -> bool:
        return self._settled_end < MAX_CHARACTERS

    def append(self, leaf: Prose, *, settled: bool) -> None:
        """Adds a leaf. Settled ones may not follow provisional ones: `drop_tail` comes first."""
        assert not settled or self._num_settled == len(self._leaves), "the tail was not dropped"
        self._write(leaf)
        self._leaves.append(leaf)
        if settled:
            self._num_settled = len(self._leaves)
            self._settled_end = self.document().characterCount() - 1

    def drop_tail(self) -> None:
        if self._num_settled == len(self._leaves):
            return
        del self._leaves[self._num_settled :]
        cursor = QTextCursor(self.document())
        cursor.setPosition(self._settled_end)
        cursor.movePosition(QTextCursor.MoveOperation.End, QTextCursor.MoveMode.KeepAnchor)
        cursor.removeSelectedText()
        if not cursor.block().text():
            # Qt gives an empty block, which a rule is, the format of the one that was joined to it.
            self._format_last_block(cursor)

    def selected_text(self) -> str:
        """The selection with list marks, which are not part of the document, written out."""
        cursor = self.textCursor()
        start, end = cursor.selectionStart(), cursor.selectionEnd()
        lines = []
        block = self.document().findBlock(start)
        while block.isValid() and block.position() < max(end, start + 1):
            offset = max(0, start - block.position())
            part = QTextCursor(block)
            part.setPosition(block.position() + offset)
            stop = min(end, block.position() + block.length() - 1)
            part.setPosition(max(part.position(), stop), QTextCursor.MoveMode.KeepAnchor)
            text = plain_selection(part)
            place = self._leaves[block.blockNumber()].place if self._leaves else Place()
            if place.marker and not offset:
                text = "  " * (place.path.count("l") - 1) + f"{place.marker} {text}"
            lines.append(text)
            block = block.next()
        return "\n".join(lines)

    def _format_last_block(self, cursor: QTextCursor) -> None:
        if not self._leaves:
            cursor.setBlockFormat(QTextBlockFormat())
            return
        above = self._leaves[-2] if len(self._leaves) > 1 else None
        cursor.setBlockFormat(_block_format(self._leaves[-1], above))

    def _write(self, leaf: Prose) -> None:
        cursor = QTextCursor(self.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        above = self._leaves[-1] if self._leaves else None
        block_format = _block_format(leaf, above)
        char_format = QTextCharFormat(self._ink.plain)
        if isinstance(leaf, Heading):
            char_format = self._heading_format(leaf.level)
        if above is None:
            cursor.setBlockFormat(block_format)
            cursor.setBlockCharFormat(char_format)
        else:
            cursor.insertBlock(block_format, char_format)
        if not isinstance(leaf, Rule):
            insert_spans(self, cursor, leaf.spans, char_format, self._ink)

    def _heading_format(self, level: int) -> QTextCharFormat:
        result = QTextCharFormat(self._ink.plain)
        font = reading_font()
        result.setFontPointSize(font.pointSizeF() * _HEADING_SCALES[level - 1])
        result.setFontWeight(QFont.Weight.DemiBold)
        return result

    # Qt overrides and what DocumentView asks for

    def source_format(self, around: QTextCharFormat) -> QTextCharFormat:
        result = QTextCharFormat(self._ink.plain)
        result.merge(self._ink.code)
        return result

    def _on_replaced(self, position: int, grown: int) -> None:
        if position < self._settled_end:
            self._settled_end += grown

    def apply_theme(self) -> None:
        super().apply_theme()
        self.document().setDefaultFont(reading_font())
        self._ink = ProseInk.of_theme(muted=self._muted)
        leaves, num_settled = self._leaves, self._num_settled
        self._leaves, self._num_settled, self._settled_end = [], 0, 0
        self.document().clear()
        for index, leaf in enumerate(leaves):
            self.append(leaf, settled=index < num_settled)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self.viewport())
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        layout = self.document().documentLayout()
        corner = QPointF(event.rect().topLeft())
        block = self.document().findBlock(max(0, layout.hitTest(corner, Qt.HitTestAccuracy.FuzzyHit)))
        while block.isValid() and self._leaves:
            area = layout.blockBoundingRect(block)
            if area.top() - block.blockFormat().topMargin() > event.rect().bottom():
                break
            self._paint_marks(painter, block, area)
            block = block.next()
        painter.end()
        super().paintEvent(event)

    def _paint_marks(self, painter: QPainter, block: QTextBlock, area: QRectF) -> None:
        """The bars of quotes, the bullet or number of an item, or a rule."""
        theme = current_theme()
        number = block.blockNumber()
        leaf = self._leaves[number]
        joins_quote = number > 0 and "q" in self._leaves[number - 1].place.path
        above = self.document().documentLayout().blockBoundingRect(block.previous())
        left = 0.0
        for kind in leaf.place.path[:MAX_SHOWN_DEPTH]:
            if kind == "q":
                top = above.bottom() - 3 if joins_quote else area.top()
                painter.setPen(Qt.PenStyle.NoPen)
                painter.setBrush(theme.color("border"))
                painter.drawRoundedRect(QRectF(left, top, 3, area.bottom() - top), 1.5, 1.5)
            left += QUOTE_INDENT if kind == "q" else scaled(LIST_INDENT)
        if isinstance(leaf, Rule):
            y = round(area.center().y()) + 0.5
            painter.setPen(theme.color("border"))
            painter.drawLine(QPointF(left, y), QPointF(self.viewport().width(), y))
        if leaf.place.marker and block.layout().lineCount():
            line = block.layout().lineAt(0)
            baseline = area.top() + line.y() + line.ascent()
            painter.setFont(self.document().defaultFont())
            painter.setPen(theme.color("text_muted"))
            width = QFontMetricsF(painter.font()).horizontalAdvance(leaf.place.marker)
            painter.drawText(QPointF(max(0.0, left - SPACE_S - width), baseline), leaf.place.marker)


def _block_format(leaf: Prose, above: Prose | None) -> QTextBlockFormat:
    result = QTextBlockFormat()
    result.setLeftMargin(indent_of(leaf.place.path))
    result.setLineHeight(LINE_HEIGHT_PERCENT, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
    if isinstance(leaf, Formula):
        result.setLineHeight(100, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
        if leaf.closed:
            result.setAlignment(Qt.AlignmentFlag.AlignHCenter)
    if isinstance(leaf, Heading):
        result.setLineHeight(120, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
        result.setHeadingLevel(leaf.level)
    if above is not None:
        result.setTopMargin(_gap(leaf, above))
    return result


def _gap(leaf: Prose, above: Prose) -> float:
    if isinstance(leaf, Heading):
        return _PARAGRAPH_GAP * (2.0 if leaf.level <= 2 else 1.6)
    if isinstance(above, Heading):
        return _PARAGRAPH_GAP * 0.6
    in_list = "l" in leaf.place.path and "l" in above.place.path
    return _ITEM_GAP if in_list else _PARAGRAPH_GAP
