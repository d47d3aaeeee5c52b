"""A table: a bold head, a fine line under each row, and a way sideways when it is wider than the column."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import (
    QFont,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextFrameFormat,
    QTextLength,
    QTextOption,
    QTextTable,
    QTextTableCellFormat,
    QTextTableFormat,
)
from PySide6.QtWidgets import QWidget

from app.language import tr
from app.ui.document_view import DocumentView, reading_font
from app.ui.markdown import TableRow
from app.ui.prose_view import ProseInk, insert_spans
from app.ui.theme import SPACE_M, SPACE_S, SPACE_XS, current_theme

# A larger table goes on in the next view: Qt lays a table out as a whole, with every row that comes.
MAX_ROWS = 60
MAX_CELLS = 600
_ALIGNMENTS = {"center": Qt.AlignmentFlag.AlignHCenter, "right": Qt.AlignmentFlag.AlignRight}


class TableView(DocumentView):
    """Rows are added as they come; all have as many cells as the first."""

    def __init__(self, leaf: TableRow, parent: QWidget | None = None) -> None:
        self.place = leaf.place
        self._rows: list[TableRow] = []
        self._num_settled = 0
        self._table: QTextTable | None = None
        super().__init__(parent)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)
        self.setWordWrapMode(QTextOption.WrapMode.WordWrap)
        self.setAccessibleName(tr("Table"))

    @property
    def is_empty(self) -> bool:
        return not self._rows

    @property
    def has_room(self) -> bool:
        if self._num_settled >= MAX_ROWS:
            return False
        columns = self._table.columns() if self._table is not None else 0
        return (self._num_settled + 1) * columns <= MAX_CELLS

    def append(self, row: TableRow, *, settled: bool) -> None:
        self._rows.append(row)
        if settled:
            self._num_settled = len(self._rows)
        self._write(row)

    def drop_tail(self) -> None:
        extra = len(self._rows) - self._num_settled
        if not extra:
            return
        del self._rows[self._num_settled :]
        if self._rows and self._table is not None:
            self._table.removeRows(len(self._rows), extra)
        else:
            self._clear()

    def _clear(self) -> None:
        self._table = None
        self.document().clear()

    def _write(self, row: TableRow) -> None:
        if self._table is None:
            self._table = self._new_table(len(row.cells))
        else:
            self._table.appendRows(1)
        number = self._table.rows() - 1
        for column, spans in enumerate(row.cells[: self._table.columns()]):
            cell = self._table.cellAt(number, column)
            cell.setFormat(_cell_format(header=row.header, first=column == 0))
            cursor = cell.firstCursorPosition()
            block_format = QTextBlockFormat()
            block_format.setAlignment(_ALIGNMENTS.get(row.aligns[column], Qt.AlignmentFlag.AlignLeft))
            block_format.setLineHeight(125, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
            cursor.setBlockFormat(block_format)
            plain = QTextCharFormat(self._ink.plain)
            if row.header:
                plain.setFontWeight(QFont.Weight.DemiBold)
            insert_spans(self, cursor, spans, plain, self._ink)

    def _new_table(self, num_columns: int) -> QTextTable:
        table_format = QTextTableFormat()
        table_format.setBorder(0)
        table_format.setBorderCollapse(True)
        table_format.setBorderStyle(QTextFrameFormat.BorderStyle.BorderStyle_None)
        table_format.setCellSpacing(0)
        table_format.setCellPadding(0)
        table_format.setHeaderRowCount(1)
        table_format.setWidth(QTextLength(QTextLength.Type.VariableLength, 0))
        return QTextCursor(self.document()).insertTable(1, num_columns, table_format)

    # What DocumentView asks for

    def source_format(self, around: QTextCharFormat) -> QTextCharFormat:
        result = QTextCharFormat(self._ink.plain)
        result.merge(self._ink.code)
        return result

    def apply_theme(self) -> None:
        super().apply_theme()
        self.document().setDefaultFont(reading_font())
        self._ink = ProseInk.of_theme(muted=False)
        self._clear()
        for row in self._rows:
            self._write(row)

    def arrange(self, width: int) -> int:
        height = super().arrange(width)
        too_wide = self.document().size().width() > width
        return height + (self.horizontalScrollBar().sizeHint().height() if too_wide else 0)


def _cell_format(*, header: bool, first: bool) -> QTextTableCellFormat:
    result = QTextTableCellFormat()
    result.setLeftPadding(0 if first else SPACE_M)
    result.setRightPadding(SPACE_M)
    result.setTopPadding(SPACE_S)
    result.setBottomPadding(SPACE_XS)  # a line has more room below its letters than above them
    # Lines with Chinese in them are higher than those beside them without.
    result.setVerticalAlignment(QTextCharFormat.VerticalAlignment.AlignMiddle)
    theme = current_theme()
    result.setBottomBorder(1)
    result.setBottomBorderStyle(QTextFrameFormat.BorderStyle.BorderStyle_Solid)
    result.setBottomBorderBrush(theme.color("text_muted" if header else "border"))
    return result
