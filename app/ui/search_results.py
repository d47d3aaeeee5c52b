"""What a search found: conversations, and under each the messages, with the words marked where they stand.

Signals: conversation_chosen(id); message_chosen(message id).
"""

from __future__ import annotations

from math import ceil
from typing import Any

from PySide6.QtCore import (
    QAbstractListModel,
    QModelIndex,
    QPersistentModelIndex,
    QPointF,
    QRect,
    QSize,
    Qt,
    Signal,
)
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontMetrics,
    QKeyEvent,
    QPainter,
    QTextCharFormat,
    QTextLayout,
    QTextOption,
)
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFrame,
    QListView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QWidget,
)

from app.language import mark, tr, tr_n
from app.search import ConversationHit, MessageHit, SearchResult
from app.search_text import Snippet
from app.ui.theme import (
    SCALE_SMALL,
    SPACE_M,
    SPACE_S,
    SPACE_XS,
    current_theme,
    mixed,
    scaled_font,
    theme_manager,
)
from app.ui.tooltips import plain_tooltip

Row = ConversationHit | MessageHit | int  # an int: so many messages more
Index = QModelIndex | QPersistentModelIndex
ROW_ROLE = Qt.ItemDataRole.UserRole + 1
_SPEAKERS = {"user": mark("You"), "assistant": mark("Answer"), "system": mark("Instructions")}
_LINES = 2  # of a snippet
_INDENT = SPACE_M


class SearchResultModel(QAbstractListModel):
    def __init__(self) -> None:
        super().__init__()
        self._rows: list[Row] = []

    def set_result(self, result: SearchResult | None) -> None:
        self.beginResetModel()
        self._rows = []
        for conversation in result.conversations if result is not None else ():
            self._rows += [conversation, *conversation.messages]
            if conversation.num_more:
                self._rows.append(conversation.num_more)
        self.endResetModel()

    def row_at(self, index: Index) -> Row | None:
        return self._rows[index.row()] if index.isValid() else None

    # Qt overrides

    def rowCount(self, parent: Index | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(self._rows)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        row = self.row_at(index)
        if role == ROW_ROLE:
            return row
        if role not in (
            Qt.ItemDataRole.DisplayRole,
            Qt.ItemDataRole.AccessibleTextRole,
            Qt.ItemDataRole.ToolTipRole,
        ):
            return None
        tip = role == Qt.ItemDataRole.ToolTipRole
        match row:
            case ConversationHit():
                return plain_tooltip(row.title.text) if tip else row.title.text
            case MessageHit():
                words = tr("{speaker}: {text}", speaker=tr(_SPEAKERS[row.role]), text=row.snippet.text)
                when = row.created_at.astimezone()
                return plain_tooltip(f"{words}\n{when:%Y-%m-%d %H:%M}") if tip else words
            case int():
                return tr_n("{count:,} more in this chat", "{count:,} more in this chat", row)
        return None

    def flags(self, index: Index) -> Qt.ItemFlag:
        if isinstance(self.row_at(index), int):
            return Qt.ItemFlag.NoItemFlags
        return Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable


class SearchResultDelegate(QStyledItemDelegate):
    """A title on one line, a snippet on two."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        theme = current_theme()
        row = index.data(ROW_ROLE)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        selected = bool(option.state & QStyle.StateFlag.State_Selected)
        hovered = bool(option.state & QStyle.StateFlag.State_MouseOver) and not isinstance(row, int)
        if selected or hovered:
            painter.setPen(Qt.PenStyle.NoPen)
            ground = theme.selection if selected else mixed(theme.text, theme.window, 0.06)
            painter.setBrush(QColor(ground))
            painter.drawRoundedRect(option.rect.adjusted(SPACE_S, 1, -SPACE_S, -1), 6, 6)
        if option.state & QStyle.StateFlag.State_HasFocus:
            painter.setPen(QColor(theme.accent))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(option.rect.adjusted(SPACE_S, 1, -SPACE_S, -1), 6, 6)
        area = self._text_area(option.rect, row)
        ground = theme.selection if selected else theme.window
        if isinstance(row, ConversationHit):
            area.setTop(area.bottom() + 1 - QFontMetrics(_title_font()).height())
            _paint_marked(painter, area, row.title, _title_font(), ink=theme.text, ground=ground, num_lines=1)
        elif isinstance(row, MessageHit):
            font = scaled_font(SCALE_SMALL)
            ink = theme.text_muted
            _paint_marked(painter, area, row.snippet, font, ink=ink, ground=ground, num_lines=_LINES)
        else:
            painter.setFont(scaled_font(SCALE_SMALL))
            painter.setPen(QColor(theme.text_muted))
            painter.drawText(area, Qt.AlignmentFlag.AlignTop, str(index.data()))
        painter.restore()

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        row = index.data(ROW_ROLE)
        if isinstance(row, ConversationHit):
            return QSize(80, QFontMetrics(_title_font()).height() + SPACE_M + SPACE_XS)
        height = QFontMetrics(scaled_font(SCALE_SMALL)).height()
        if isinstance(row, MessageHit):
            width = option.rect.width() if option.rect.width() > 0 else _view_width(option)
            layout = _layout_of(row.snippet, scaled_font(SCALE_SMALL), ink="#000000", mark="#000000")
            _lay_out(layout, self._text_area(QRect(0, 0, width, 0), row).width())
            lines = [layout.lineAt(number) for number in range(min(_LINES, layout.lineCount()))]
            height = max(height, ceil(sum(line.height() for line in lines)))
        return QSize(80, height + 2 * SPACE_XS)

    @staticmethod
    def _text_area(rect: QRect, row: Row) -> QRect:
        indent = 0 if isinstance(row, ConversationHit) else _INDENT
        return rect.adjusted(SPACE_M + 2 + indent, SPACE_XS, -SPACE_M - 2, -SPACE_XS)


class SearchResults(QListView):
    """Return and a click choose."""

    conversation_chosen = Signal(str)
    message_chosen = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.rows = SearchResultModel()
        self.setModel(self.rows)
        self.setItemDelegate(SearchResultDelegate(self))
        self.setAccessibleName(tr("What was found"))
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setMouseTracking(True)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setResizeMode(QListView.ResizeMode.Adjust)  # a snippet takes one line or two by its width
        self.clicked.connect(self.choose)
        theme_manager().changed.connect(self._paint_anew)

    def show_result(self, result: SearchResult | None) -> None:
        self.rows.set_result(result)
        self.scrollToTop()

    def _paint_anew(self) -> None:
        self.viewport().update()

    def choose_first(self) -> None:
        """The row that is marked, or else the first message, or the first title."""
        rows = [self.rows.index(number) for number in range(self.rows.rowCount())]
        messages = [one for one in rows if isinstance(self.rows.row_at(one), MessageHit)]
        marked = self.currentIndex()
        chosen = marked if marked.isValid() else next(iter(messages or rows), None)
        if chosen is not None:
            self.setCurrentIndex(chosen)
            self.choose(chosen)

    def choose(self, index: QModelIndex) -> None:
        match self.rows.row_at(index):
            case ConversationHit() as conversation:
                self.conversation_chosen.emit(conversation.id)
            case MessageHit() as message:
                self.message_chosen.emit(message.id)

    # Qt overrides

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.choose(self.currentIndex())
            return
        super().keyPressEvent(event)


def _title_font() -> QFont:
    font = QFont(scaled_font(1.0))
    font.setWeight(QFont.Weight.DemiBold)
    return font


def _view_width(option: QStyleOptionViewItem) -> int:
    view = option.widget
    return view.viewport().width() if isinstance(view, QListView) else 0


def mark_color(ground: str) -> str:
    """Behind what was found, on this ground."""
    return mixed(current_theme().accent, ground, 0.3)


def _paint_marked(
    painter: QPainter, area: QRect, snippet: Snippet, font: QFont, *, ink: str, ground: str, num_lines: int
) -> None:
    """Text on so many lines, the last of them cut where there is more."""
    mark = mark_color(ground)
    layout = _layout_of(snippet, font, ink=ink, mark=mark)
    if _lay_out(layout, area.width()) > num_lines:
        units = snippet.text.encode("utf-16-le")
        start = len(units[: 2 * layout.lineAt(num_lines - 1).textStart()].decode("utf-16-le"))
        text = snippet.text
        rest = QFontMetrics(font).elidedText(text[start:], Qt.TextElideMode.ElideRight, area.width())
        cut = start + len(rest) - 1
        marks = tuple((first, min(last, cut)) for first, last in snippet.marks if first < cut)
        layout = _layout_of(Snippet(text[:start] + rest, marks), font, ink=ink, mark=mark)
        _lay_out(layout, area.width())
    painter.setPen(QColor(ink))
    for number in range(min(num_lines, layout.lineCount())):
        layout.lineAt(number).draw(painter, area.topLeft())


def _layout_of(snippet: Snippet, font: QFont, *, ink: str, mark: str) -> QTextLayout:
    layout = QTextLayout(snippet.text, font)
    option = QTextOption()
    option.setWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
    layout.setTextOption(option)
    plain = QTextCharFormat()
    plain.setForeground(QColor(ink))
    marked = QTextCharFormat()
    marked.setForeground(current_theme().color("text"))
    marked.setBackground(QColor(mark))
    ranges = [_range(0, _units(snippet.text), plain)]
    for start, end in snippet.marks:
        ranges.append(_range(_units(snippet.text[:start]), _units(snippet.text[start:end]), marked))
    layout.setFormats(ranges)
    return layout


def _range(start: int, length: int, char_format: QTextCharFormat) -> QTextLayout.FormatRange:
    result = QTextLayout.FormatRange()
    result.start, result.length, result.format = start, length, char_format
    return result


def _units(text: str) -> int:
    """Its length as Qt counts: in units of UTF-16."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _lay_out(layout: QTextLayout, width: int) -> int:
    """Gives the number of lines."""
    layout.beginLayout()
    top = 0.0
    while (line := layout.createLine()).isValid():
        line.setLineWidth(max(1, width))
        line.setPosition(QPointF(0.0, top))
        top += line.height()
    layout.endLayout()
    return layout.lineCount()


def found_words(result: SearchResult) -> str:
    """How much was found, in words."""
    if not result.conversations:
        return tr("Nothing has “{words}” in it.", words=result.query.strip())
    if not result.complete:
        return tr("There are more results than are listed; add a word.")
    chats = len(result.conversations)
    messages = result.num_messages
    if not messages:
        return tr_n("Found in one title.", "Found in {count:,} titles.", chats)
    if messages == 1:
        return tr_n("One message in one chat.", "One message in {count:,} chats.", chats)
    return tr_n(
        "{messages:,} messages in one chat.",
        "{messages:,} messages in {count:,} chats.",
        chats,
        messages=messages,
    )
