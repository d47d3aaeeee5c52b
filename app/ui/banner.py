"""Notices stacked over the chat: one sentence, what to do, details on demand, and they stay until dismissed.

Nothing here opens a box over the window: what works goes on working while a banner stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QPlainTextEdit,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.language import tr, translated
from app.ui.copy_button import CopyButton
from app.ui.flow_layout import FlowLayout
from app.ui.icon_label import IconLabel
from app.ui.icons import icon
from app.ui.notice_actions import NoticeAction, actions_of
from app.ui.push_button import PushButton
from app.ui.severity import Severity, severity_of
from app.ui.text_size import follow_text_size, scaled, set_icon_size
from app.ui.theme import ICON_SIZE, SPACE_M, SPACE_S, SPACE_XS, Theme, current_theme, theme_manager
from app.ui.wrapped_label import WrappedLabel
from engine.notices import Notice

_MAX_SHOWN = 3
_MAX_SHARE = 0.4  # of the window's height, for those that are shown without being asked for
_DETAILS_PLACE = 2  # in the row, behind icon and text
_CLOSE = 16
_DETAILS_HEIGHT = 140


Report = Callable[[Notice, str], str]
"""A notice and its details as a text for somebody who can help."""


class Banner(QFrame):
    """One notice. Signals: dismissed(str code), action_requested(str code, NoticeAction)."""

    dismissed = Signal(str)
    action_requested = Signal(str, object)

    def __init__(
        self,
        notice: Notice,
        parent: QWidget | None = None,
        *,
        severity: Severity,
        details: str = "",
        report: Report | None = None,
    ) -> None:
        super().__init__(parent)
        self.notice = notice
        self._report = report
        self.given_details = ""
        self.action_buttons: list[PushButton] = []
        self.severity = severity
        self.setProperty("role", "banner")
        self._build()
        self.set_content(notice, severity=severity, details=details)
        self._details_button.toggled.connect(self._show_details)
        self._close.clicked.connect(lambda: self.dismissed.emit(self.notice.code))
        theme_manager().changed.connect(self._paint_icons)
        self._paint_icons(current_theme())

    def set_content(self, notice: Notice, *, severity: Severity, details: str = "") -> None:
        """Shows a newer notice of the same code in the same place."""
        self.notice = notice
        self.severity = severity
        message, hint = translated(notice.message), translated(notice.hint)
        self._message.setText(message)
        self._hint.setText(hint)
        self._hint.setVisible(bool(hint))
        self.given_details = details
        has_details = bool(details or self._report)
        self._details.setPlainText(details)
        self._copy.setVisible(self._report is not None)
        if not has_details:
            self._details_button.setChecked(False)
        elif self._details_button.isChecked():
            self._show_details(True)
        self._offer(actions_of(notice.code))
        self._details_button.setVisible(has_details)  # another parent has hidden it
        said = tr("{severity}: {message} {hint}", severity=tr(severity.value[2]), message=message, hint=hint)
        self.setAccessibleName(said.strip())
        self._icon.set_icon(*severity.value[:2])

    def _build(self) -> None:
        self._icon = IconLabel("info", self)
        self._message = WrappedLabel(parent=self)
        self._hint = WrappedLabel(parent=self)
        self._hint.setProperty("role", "muted")
        self._details_button = PushButton(tr("Details"), self)
        self._details_button.setCheckable(True)
        self._details_button.setProperty("role", "quiet")
        self._close = QToolButton(self)
        set_icon_size(self._close, _CLOSE)
        self._close.setToolTip(tr("Dismiss this notice"))
        self._close.setAccessibleName(tr("Dismiss this notice"))
        self._copy = CopyButton(self._report_text, tr("Copy report"), self)
        self._details = QPlainTextEdit(self)
        self._details.setReadOnly(True)
        self._details.setAccessibleName(tr("Details of this notice"))
        follow_text_size(self, lambda: self._details.setFixedHeight(scaled(_DETAILS_HEIGHT)))
        self._details.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self._details.setTabChangesFocus(True)
        self._details.hide()

        text = QVBoxLayout()
        text.setSpacing(2)
        text.addWidget(self._message)
        text.addWidget(self._hint)
        self._actions = QWidget(self)
        self._actions_row = FlowLayout(self._actions, gap=SPACE_S)
        self._row = row = QHBoxLayout()
        row.setSpacing(SPACE_M)
        row.addWidget(self._icon, 0, Qt.AlignmentFlag.AlignTop)
        row.addLayout(text, 1)
        row.addWidget(self._details_button, 0, Qt.AlignmentFlag.AlignTop)
        row.addWidget(self._copy, 0, Qt.AlignmentFlag.AlignTop)
        row.addWidget(self._close, 0, Qt.AlignmentFlag.AlignTop)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SPACE_M, SPACE_S + 2, SPACE_S, SPACE_S + 2)
        layout.setSpacing(SPACE_S)
        layout.addLayout(row)
        below_text = QHBoxLayout()
        follow_text_size(
            self, lambda: below_text.setContentsMargins(scaled(ICON_SIZE) + SPACE_M, 0, SPACE_XS, 0)
        )
        below_text.addWidget(self._actions)
        layout.addLayout(below_text)
        layout.addWidget(self._details)

    def _offer(self, actions: Sequence[NoticeAction]) -> None:
        for button in self.action_buttons:
            self._actions_row.removeWidget(button)
            button.hide()
            button.deleteLater()
        self.action_buttons = []
        for layout in (self._row, self._actions_row):
            layout.removeWidget(self._details_button)
        for action in actions:
            words, explanation = (tr(text) for text in action.value)
            button = PushButton(words, self._actions)
            button.setProperty("role", "chip")
            button.setToolTip(explanation)
            button.setAccessibleDescription(explanation)
            button.clicked.connect(
                lambda _=False, action=action: self.action_requested.emit(self.notice.code, action)
            )
            self._actions_row.addWidget(button)
            button.show()
            self.action_buttons.append(button)
        if actions:  # behind them, where it takes no room from the sentences
            self._actions_row.addWidget(self._details_button)
        else:
            self._row.insertWidget(_DETAILS_PLACE, self._details_button, 0, Qt.AlignmentFlag.AlignTop)
        self._actions.setVisible(bool(actions))

    def _report_text(self) -> str:
        return self._report(self.notice, self.given_details) if self._report else self.given_details

    def _show_details(self, shown: bool) -> None:
        if shown:
            self._details.setPlainText(self._report_text())
        self._details.setVisible(shown)
        self._details_button.setText(tr("Hide details") if shown else tr("Details"))

    def _paint_icons(self, theme: Theme) -> None:
        self._close.setIcon(icon("close", theme.text_muted))


class BannerStack(QWidget):
    """The newest notices, newest on top; older ones wait behind "and N more".

    Signals: count_changed(int); told(Notice, str details), of each that is shown; action_requested(str code,
    NoticeAction), a button of one was pressed. report: makes texts to copy, for banners from then on.
    """

    count_changed = Signal(int)
    told = Signal(object, str)
    action_requested = Signal(str, object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName(tr("Notices"))
        self._banners: list[Banner] = []  # newest first
        self.report: Report | None = None
        self._more = PushButton(parent=self)
        self._more.setProperty("role", "quiet")
        self._more.setCheckable(True)
        self._more.hide()
        self._more.toggled.connect(self._arrange)
        self._layout = QVBoxLayout(self)
        self._layout.setContentsMargins(SPACE_M, SPACE_S, SPACE_M, SPACE_S)
        self._layout.setSpacing(SPACE_XS + 2)
        self._layout.addWidget(self._more, 0, Qt.AlignmentFlag.AlignLeft)
        if parent is not None:
            parent.installEventFilter(self)  # of a later parent see `event`
        self.hide()

    def show_notice(self, notice: Notice, *, severity: Severity | None = None, details: str = "") -> None:
        """Shows a notice on top, as urgent as its code is unless told. One with the same code is brought up
        to date instead of stacked twice.
        """
        severity = severity or severity_of(notice.code)
        self.told.emit(notice, details)
        banner = next((one for one in self._banners if one.notice.code == notice.code), None)
        if banner is None:
            banner = Banner(notice, self, severity=severity, details=details, report=self.report)
            banner.dismissed.connect(self.dismiss)
            banner.action_requested.connect(self.action_requested)
        else:
            self._banners.remove(banner)
            banner.set_content(notice, severity=severity, details=details)
        self._banners.insert(0, banner)
        self._layout.removeWidget(banner)
        self._layout.insertWidget(0, banner)
        self._arrange()

    def take_over(self, other: BannerStack) -> None:
        """Shows what stands there, which has been told already."""
        told = self.blockSignals(True)
        for banner in reversed(other._banners):
            self.show_notice(banner.notice, severity=banner.severity, details=banner.given_details)
        self.blockSignals(told)
        self._arrange()

    def dismiss(self, code: str) -> None:
        """Takes the notice of that code away; nothing happens if there is none."""
        for banner in [one for one in self._banners if one.notice.code == code]:
            self._banners.remove(banner)
            self._layout.removeWidget(banner)
            banner.hide()
            banner.deleteLater()
        self._arrange()

    def notices(self) -> tuple[Notice, ...]:
        """All that stand, newest first, shown or folded."""
        return tuple(banner.notice for banner in self._banners)

    def _arrange(self) -> None:
        num_shown = self._num_fitting()
        folded = len(self._banners) - num_shown
        unfold = self._more.isChecked()
        for index, banner in enumerate(self._banners):
            banner.setVisible(unfold or index < num_shown)
        self._more.setVisible(folded > 0)
        if folded <= 0 and unfold:
            self._more.setChecked(False)
        label = tr("Show fewer notices") if unfold else tr("Show {count} more", count=folded)
        self._more.setText(label)
        self._more.setAccessibleName(label)
        self.setVisible(bool(self._banners))
        self.count_changed.emit(len(self._banners))

    def _num_fitting(self) -> int:
        """How many of the newest leave the chat its room; one at least, or nothing would be told."""
        parent = self.parentWidget()
        if parent is None:
            return _MAX_SHOWN
        width = parent.width() - 2 * SPACE_M
        room = _MAX_SHARE * parent.height()
        for index, banner in enumerate(self._banners[:_MAX_SHOWN]):
            room -= banner.heightForWidth(width)
            if room < 0:
                return max(1, index)
        return _MAX_SHOWN

    # Qt overrides

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ParentAboutToChange and self.parentWidget() is not None:
            self.parentWidget().removeEventFilter(self)
        elif event.type() == QEvent.Type.ParentChange and self.parentWidget() is not None:
            self.parentWidget().installEventFilter(self)
        return super().event(event)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Resize and watched is self.parentWidget() and self._banners:
            self._arrange()
        return super().eventFilter(watched, event)
