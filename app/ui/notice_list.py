"""What was told since the program began: a list, the whole of what is chosen, and its report to copy.

Signals: cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QDialog,
    QDialogButtonBox,
    QHBoxLayout,
    QLabel,
    QListWidget,
    QListWidgetItem,
    QPlainTextEdit,
    QVBoxLayout,
    QWidget,
)

from app.language import mark, tr, translated
from app.notice_log import PastNotice
from app.ui.icons import icon
from app.ui.push_button import PushButton
from app.ui.severity import severity_of
from app.ui.style_sheet import set_role
from app.ui.tab_order import ReadingOrder
from app.ui.text_size import follow_text_size, resize_with_text, scaled, set_icon_size
from app.ui.theme import SPACE_L, SPACE_M, SPACE_S, SPACE_XL, current_theme

_SIZE = QSize(620, 460)
_EMPTY = mark("Nothing has been told yet.")
_REPORT_HEIGHT = 150
_ICON = 16


class NoticeList(ReadingOrder, QDialog):
    """`report` makes the text of one that is chosen."""

    cleared = Signal()

    def __init__(
        self,
        past: Sequence[PastNotice],
        report: Callable[[PastNotice], str],
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setWindowTitle(tr("Past notices"))
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        resize_with_text(self, _SIZE)
        self._past: tuple[PastNotice, ...] = ()
        self._report = report
        self._build()
        self.list.currentRowChanged.connect(self._show_chosen)
        self.clear_button.clicked.connect(self._clear)
        self.copy_button.clicked.connect(
            lambda: QGuiApplication.clipboard().setText(self.report.toPlainText())
        )
        self.show_past(past)

    def show_past(self, past: Sequence[PastNotice]) -> None:
        """Newest first."""
        self._past = tuple(past)
        self.list.clear()
        for each in self._past:
            severity = severity_of(each.notice.code)
            name, color, word = severity.value
            item = QListWidgetItem(icon(name, getattr(current_theme(), color)), _line(each))
            said = tr("{severity}, {notice}", severity=tr(word), notice=_line(each))
            item.setData(Qt.ItemDataRole.AccessibleTextRole, said)
            self.list.addItem(item)
        self.empty.setVisible(not past)
        for part in (self.list, self.report, self.copy_button):
            part.setVisible(bool(past))
        self.clear_button.setEnabled(bool(past))
        self.list.setCurrentRow(0 if past else -1)

    def _show_chosen(self, row: int) -> None:
        self.report.setPlainText(self._report(self._past[row]) if 0 <= row < len(self._past) else "")

    def _clear(self) -> None:
        self.show_past(())
        self.cleared.emit()

    def _build(self) -> None:
        title = QLabel(self.windowTitle(), self)
        set_role(title, "title")
        self.list = QListWidget(self)
        set_icon_size(self.list, _ICON)
        self.list.setAccessibleName(tr("Past notices, newest first"))
        self.list.setWordWrap(True)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        set_role(self.list, "sections")
        self.report = QPlainTextEdit(self)
        self.report.setReadOnly(True)
        self.report.setTabChangesFocus(True)
        self.report.setAccessibleName(tr("Report of the chosen notice"))
        follow_text_size(self, lambda: self.report.setFixedHeight(scaled(_REPORT_HEIGHT)))
        set_role(self.report, "field")
        self.empty = QLabel(tr(_EMPTY), self)
        set_role(self.empty, "muted")
        self.empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.copy_button = PushButton(tr("Copy report"), self)
        self.copy_button.setToolTip(tr("Copy what stands above, for somebody who can help"))
        self.clear_button = PushButton(tr("Clear the list"), self)
        self.clear_button.setToolTip(tr("Forget these notices; banners that stand stay"))
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close, self)
        buttons.rejected.connect(self.reject)
        bottom = QHBoxLayout()
        bottom.setSpacing(SPACE_S)
        bottom.addWidget(self.clear_button)
        bottom.addStretch(1)
        bottom.addWidget(self.copy_button)
        bottom.addWidget(buttons)
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_XL, SPACE_L, SPACE_XL, SPACE_L)
        column.setSpacing(SPACE_M)
        column.addWidget(title)
        column.addWidget(self.list, 1)
        column.addWidget(self.empty, 1)
        column.addWidget(self.report)
        column.addLayout(bottom)


def _line(past: PastNotice) -> str:
    clock, message = _clock(past.at), translated(past.notice.message)
    if past.times == 1:
        return f"{clock}  {message}"
    return tr("{clock}  {message} ({times} times)", clock=clock, message=message, times=past.times)


def _clock(at: datetime) -> str:
    """With the day, where it isn't this one."""
    return at.strftime("%H:%M" if at.date() == datetime.now().date() else "%Y-%m-%d %H:%M")
