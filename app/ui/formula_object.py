"""A formula inside a line of rich text: one character of the document, drawn by us.

Its LaTeX stands in the character's format, so whatever copies the text finds it there. While a formula is
not known its source is drawn in its place; one that can't be read is never such a character but plain text.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from math import ceil

from PySide6.QtCore import QRectF, QSizeF, Qt
from PySide6.QtGui import (
    QFont,
    QFontInfo,
    QFontMetrics,
    QFontMetricsF,
    QPainter,
    QPyTextObject,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
    QTextFormat,
)

from app.ui.formulas import FormulaKey, formula_store
from app.ui.tooltips import plain_tooltip

OBJECT = "\ufffc"  # the character that stands in a document for what is drawn
_TYPE = QTextFormat.ObjectTypes.UserObject.value + 1
_TEX = QTextFormat.Property.UserProperty.value + 1
_DISPLAY = _TEX + 1
_WRITTEN = _TEX + 2
_SIZE = _TEX + 3  # em of the formula, in pixels
_X_HEIGHT = 0.47  # of the formulas' font, in em: letters are as high in them as in the text around
_SCALES = (0.95, 1.3)  # of the text's size, at least and at most
_DISPLAY_SCALE = 1.08
_POINT_SIZES = (*range(4, 40), *range(40, 400, 6))


class FormulaObject(QPyTextObject):
    """Measures and draws the formulas of documents."""

    def intrinsicSize(self, document: QTextDocument, position: int, text_format: QTextFormat) -> QSizeF:
        width, ascent, descent = _measure(document, position, text_format.toCharFormat())
        return QSizeF(width, ascent + descent)

    def drawObject(
        self,
        painter: QPainter,
        area: QRectF,
        document: QTextDocument,
        position: int,
        text_format: QTextFormat,
    ) -> None:
        char_format = text_format.toCharFormat()
        key = key_of(char_format)
        color = char_format.foreground().color()
        drawing = formula_store().drawing(key)
        if drawing is None:
            painter.setPen(color)
            painter.setFont(document.defaultFont())
            flags = Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextSingleLine
            painter.drawText(area, int(flags), char_format.stringProperty(_WRITTEN))
            return
        em = area.width() / drawing.width
        height = em * (drawing.ascent + drawing.descent)
        formula_store().paint(painter, key, QRectF(area.left(), area.top(), area.width(), height), color)


_handler: FormulaObject | None = None


def draw_formulas(document: QTextDocument) -> None:
    """Has the document draw formulas; once for each document."""
    global _handler
    if _handler is None:
        _handler = FormulaObject()
    document.documentLayout().registerHandler(_TYPE, _handler)


def key_of(char_format: QTextCharFormat) -> FormulaKey:
    return FormulaKey(char_format.stringProperty(_TEX), char_format.boolProperty(_DISPLAY))


def is_formula(char_format: QTextCharFormat) -> bool:
    return char_format.objectType() == _TYPE


def written_as(char_format: QTextCharFormat) -> str:
    """What stood in the text where the formula is drawn, marks included."""
    return char_format.stringProperty(_WRITTEN)


def insert_formula(cursor: QTextCursor, written: str, key: FormulaKey, around: QTextCharFormat) -> None:
    """Writes the character. `around` is the format of the text that it stands in."""
    char_format = QTextCharFormat(around)
    char_format.setObjectType(_TYPE)
    char_format.setProperty(_TEX, key.tex)
    char_format.setProperty(_DISPLAY, key.display)
    char_format.setProperty(_WRITTEN, written)
    char_format.setToolTip(plain_tooltip(written))
    cursor.insertText(OBJECT, fitted(char_format, cursor.document()))


def fitted(char_format: QTextCharFormat, document: QTextDocument) -> QTextCharFormat:
    """The format with the size and the place on the line that the formula has, as far as it is known.

    Qt puts an object on the line by the descent of its format's font, so that is made as large as has the
    descent that is wanted.
    """
    result = QTextCharFormat(char_format)
    if not result.hasProperty(_SIZE):
        font = document.defaultFont()
        if result.fontPointSize() > 0:
            font.setPointSizeF(result.fontPointSize())
        result.setProperty(_SIZE, _em_of(font, display=key_of(result).display))
    drawing = formula_store().drawing(key_of(result))
    result.setVerticalAlignment(QTextCharFormat.VerticalAlignment.AlignBaseline)
    if drawing is not None:
        need = ceil(max(0.0, drawing.descent * result.doubleProperty(_SIZE)))
        result.setFontPointSize(_point_size_with_descent(result, need))
    return result


def _em_of(font: QFont, *, display: bool) -> float:
    pixels = float(QFontInfo(font).pixelSize())
    low, high = _SCALES
    em = min(max(QFontMetricsF(font).xHeight() / _X_HEIGHT, low * pixels), high * pixels)
    return em * (_DISPLAY_SCALE if display else 1.0)


@lru_cache(maxsize=1024)
def _descent(family: str, size: int) -> int:
    """In whole pixels, of a font of so many points. The first time that takes Qt half a millisecond."""
    font = QFont(family)
    font.setPointSizeF(size)
    return QFontMetrics(font).descent()


def _point_size_with_descent(char_format: QTextCharFormat, need: int) -> float:
    family = char_format.font().family()
    place = bisect_left(_POINT_SIZES, need, key=lambda size: _descent(family, size))
    return float(_POINT_SIZES[min(place, len(_POINT_SIZES) - 1)])


def _measure(
    document: QTextDocument, position: int, char_format: QTextCharFormat
) -> tuple[float, float, float]:
    """Width, ascent and descent in pixels, as the object takes them up on its line."""
    drawing = formula_store().drawing(key_of(char_format))
    if drawing is None:
        metrics = QFontMetricsF(document.defaultFont())
        width = min(metrics.horizontalAdvance(written_as(char_format)), _room_at(document, position))
        return width, metrics.ascent(), metrics.descent()
    em = char_format.doubleProperty(_SIZE)
    scale = min(1.0, _room_at(document, position) / (drawing.width * em))
    descent = float(QFontMetrics(char_format.font()).descent())
    return drawing.width * em * scale, drawing.ascent * em * scale, max(descent, drawing.descent * em * scale)


def _room_at(document: QTextDocument, position: int) -> float:
    """Pixels from the left to the right of the column at a position; endless in a table, which scrolls."""
    width = document.textWidth()
    block = document.findBlock(position)
    if width <= 0 or QTextCursor(block).currentTable() is not None:
        return float("inf")
    return max(40.0, width - block.blockFormat().leftMargin() - 2)
