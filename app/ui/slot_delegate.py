"""Draws a row of the slot table: title and place on one line, what is kept below."""

from __future__ import annotations

from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetrics, QPainter
from PySide6.QtWidgets import QApplication, QStyle, QStyledItemDelegate, QStyleOptionViewItem

from app.ui.slot_model import DETAIL_ROLE, PLACE_ROLE, SLOT_ROLE, Index
from app.ui.theme import SCALE_SMALL, SPACE_M, SPACE_S, SPACE_XS, current_theme, mixed, scaled_font

_PADDING = 6
_OTHER_FONTS = "\u0250"  # letters from here on may be missing in a font; Latin ones aren't
_INKS = {"pool": "success", "ram": "accent", "disk": "text_muted", "fallback": "warning"}


class SlotDelegate(QStyledItemDelegate):
    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        theme = current_theme()
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        ground = option.rect.adjusted(SPACE_S, 1, -SPACE_S, -1)
        focused = bool(option.state & QStyle.StateFlag.State_HasFocus)
        if focused or option.state & QStyle.StateFlag.State_MouseOver:
            painter.setPen(QColor(theme.accent) if focused else Qt.PenStyle.NoPen)
            painter.setBrush(QColor(mixed(theme.text, theme.window, 0.06)))
            painter.drawRoundedRect(ground, 6, 6)
        area = ground.adjusted(SPACE_S, _PADDING, -SPACE_S, -_PADDING)
        small = scaled_font(SCALE_SMALL)
        place = str(index.data(PLACE_ROLE))
        place_width = QFontMetrics(small).horizontalAdvance(place) + SPACE_M
        line = _height(QApplication.font(), str(index.data()))
        first = QRect(area.left(), area.top(), area.width(), line)
        painter.setFont(QApplication.font())
        painter.setPen(QColor(theme.text))
        self._draw(painter, first.adjusted(0, 0, -place_width, 0), str(index.data()))
        painter.setFont(small)
        painter.setPen(theme.color(_INKS[index.data(SLOT_ROLE).place]))
        painter.drawText(first, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, place)
        painter.setPen(QColor(theme.text_muted))
        top = first.bottom() + SPACE_XS
        for words in index.data(DETAIL_ROLE):
            height = _height(small, words)
            self._draw(painter, QRect(area.left(), top, area.width(), height), words)
            top += height
        painter.restore()

    def sizeHint(self, _option: QStyleOptionViewItem, index: Index) -> QSize:
        small = scaled_font(SCALE_SMALL)
        lines = _height(QApplication.font(), str(index.data()))
        lines += sum(_height(small, words) for words in index.data(DETAIL_ROLE))
        return QSize(120, lines + SPACE_XS + 2 * _PADDING + 2)

    @staticmethod
    def _draw(painter: QPainter, area: QRect, words: str) -> None:
        shown = painter.fontMetrics().elidedText(words, Qt.TextElideMode.ElideRight, area.width())
        painter.drawText(area, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter, shown)


def _height(font: QFont, words: str) -> int:
    """Of a line: letters that another font stands in for may be higher than this one says."""
    metrics = QFontMetrics(font)
    if max(words, default="") < _OTHER_FONTS:
        return metrics.height()
    return max(metrics.height(), metrics.size(Qt.TextFlag.TextSingleLine, words).height())
