"""Draws a row of the conversation list: a heading; or a title, its tags, and the dot of an answer that is
being written or has not been seen.
"""

from __future__ import annotations

import math

from PySide6.QtCore import QPointF, QRect, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetrics, QPainter, QPen
from PySide6.QtWidgets import (
    QApplication,
    QLineEdit,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QWidget,
)

from app.language import tr
from app.titles import MAX_TITLE_LENGTH
from app.ui.conversation_model import (
    ANSWERING_ROLE,
    SUMMARY_ROLE,
    TAGS_ROLE,
    UNREAD_ROLE,
    WAITING_ROLE,
    Index,
)
from app.ui.theme import SCALE_SMALL, SPACE_M, SPACE_S, SPACE_XS, current_theme, mixed, scaled_font

_DOT_RADIUS = 3.5
_DOT_STEPS = 24  # of one breath
_DOT_ROOM = SPACE_M + SPACE_XS  # what the dot takes from the title
_ROW_PADDING = 7
_TAG_GAP = 3  # above the tags: signs of other scripts are higher than the line is said to be


class ConversationDelegate(QStyledItemDelegate):
    """One instance a view; `advance` moves the dot by a step."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self._step = 0

    def advance(self) -> None:
        self._step = (self._step + 1) % _DOT_STEPS

    def _paint_heading(self, painter: QPainter, option: QStyleOptionViewItem, text: str) -> None:
        painter.setFont(scaled_font(SCALE_SMALL, bold=True))
        painter.setPen(QColor(current_theme().text_muted))
        area = option.rect.adjusted(SPACE_M + 2, 0, -SPACE_M, -SPACE_XS)
        painter.drawText(area, Qt.AlignmentFlag.AlignBottom | Qt.AlignmentFlag.AlignLeft, text)

    def _paint_title(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        theme = current_theme()
        selected = bool(option.state & QStyle.StateFlag.State_Selected)
        hovered = bool(option.state & QStyle.StateFlag.State_MouseOver)
        ground = theme.selection if selected else mixed(theme.text, theme.window, 0.06) if hovered else None
        pill = option.rect.adjusted(SPACE_S, 1, -SPACE_S, -1)
        if ground is not None:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(QColor(ground))
            painter.drawRoundedRect(pill, 6, 6)
        focused = bool(option.state & QStyle.StateFlag.State_HasFocus)
        if focused and bool(option.state & QStyle.StateFlag.State_KeyboardFocusChange):
            painter.setPen(QColor(theme.accent))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(pill, 6, 6)
        area = self._title_area(option.rect)
        answering, waiting = bool(index.data(ANSWERING_ROLE)), bool(index.data(WAITING_ROLE))
        unread = bool(index.data(UNREAD_ROLE)) and not answering and not waiting
        if answering or waiting or unread:
            centre = QPointF(area.right() - _DOT_RADIUS, area.center().y() + 1)
            self._paint_dot(painter, centre, waiting=waiting, still=unread)
            area.setRight(area.right() - _DOT_ROOM)
        tags = str(index.data(TAGS_ROLE))
        font = QFont(QApplication.font())
        font.setWeight(QFont.Weight.DemiBold if unread else QFont.Weight.Normal)
        small = scaled_font(SCALE_SMALL)
        across = Qt.AlignmentFlag.AlignVCenter
        if tags:
            lower = area.adjusted(0, 0, 0, -_ROW_PADDING)
            area.adjust(0, _ROW_PADDING, 0, 0)
            across = Qt.AlignmentFlag.AlignTop
            self._paint_line(painter, lower, tags, small, theme.text_muted, Qt.AlignmentFlag.AlignBottom)
        self._paint_line(painter, area, str(index.data()), font, theme.text, across)

    @staticmethod
    def _paint_line(
        painter: QPainter, area: QRect, text: str, font: QFont, color: str, across: Qt.AlignmentFlag
    ) -> None:
        painter.setFont(font)
        painter.setPen(QColor(color))
        line = painter.fontMetrics().elidedText(text, Qt.TextElideMode.ElideRight, area.width())
        painter.drawText(area, Qt.AlignmentFlag.AlignLeft | across, line)

    def _paint_dot(self, painter: QPainter, centre: QPointF, *, waiting: bool, still: bool) -> None:
        color = QColor(current_theme().accent)
        if waiting:  # a ring that stands still
            painter.setPen(QPen(color, 1.5))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawEllipse(centre, _DOT_RADIUS - 0.5, _DOT_RADIUS - 0.5)
            return
        if not still:
            color.setAlphaF(0.35 + 0.65 * (0.5 + 0.5 * math.cos(2 * math.pi * self._step / _DOT_STEPS)))
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(color)
        painter.drawEllipse(centre, _DOT_RADIUS, _DOT_RADIUS)

    @staticmethod
    def _title_area(row: QRect) -> QRect:
        return row.adjusted(SPACE_M + 2, 0, -SPACE_M - 2, 0)

    # Qt overrides

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        if index.data(SUMMARY_ROLE) is None:
            self._paint_heading(painter, option, str(index.data()))
        else:
            self._paint_title(painter, option, index)
        painter.restore()

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        summary = index.data(SUMMARY_ROLE)  # asked for once: a view wants the size of every row there is
        height = option.fontMetrics.height()
        if summary is None:
            height += SPACE_S if index.row() == 0 else SPACE_M + SPACE_XS
        else:
            height += 2 * _ROW_PADDING + 2
            if summary.tags:
                height += _small_height() + _TAG_GAP
        return QSize(80, height)

    def createEditor(self, parent: QWidget, _option: QStyleOptionViewItem, _index: Index) -> QWidget:
        editor = QLineEdit(parent)
        editor.setAccessibleName(tr("Title of the conversation"))
        editor.setMaxLength(MAX_TITLE_LENGTH)
        editor.setProperty("role", "inline")
        return editor

    def updateEditorGeometry(self, editor: QWidget, option: QStyleOptionViewItem, _index: Index) -> None:
        editor.setGeometry(option.rect.adjusted(SPACE_S, 1, -SPACE_S, -1))


def _small_height() -> int:
    return QFontMetrics(scaled_font(SCALE_SMALL)).height()
