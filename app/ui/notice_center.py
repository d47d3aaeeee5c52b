"""What can be done about notices: buttons of banners, reports to copy, and the list of those that are gone.

Signals: plan_asked("context" or "weights"), the model's card with its sliders is wanted; settings_asked,
models_asked, limits_asked: these pages are.
"""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QWidget

from app.controller import ChatController, SlotTable
from app.language import tr, translated
from app.notice_log import PastNotice
from app.notice_report import report_text, surroundings
from app.ui.announcements import announce
from app.ui.banner import BannerStack
from app.ui.notice_actions import NoticeAction
from app.ui.notice_list import NoticeList
from app.ui.severity import Severity, severity_of
from engine.notices import Notice


class NoticeCenter(QObject):
    """Keeps what banners show."""

    plan_asked = Signal(str)
    settings_asked = Signal()
    models_asked = Signal()
    limits_asked = Signal()

    def __init__(self, controller: ChatController, *, banners: BannerStack, window: QWidget) -> None:
        super().__init__(window)
        self.log = controller.past_notices
        self._controller = controller
        self._banners = banners
        self._window = window
        self._table = SlotTable()
        banners.report = self.report
        banners.told.connect(self._on_told)
        banners.action_requested.connect(self.act)
        controller.slots_changed.connect(self._on_slots)

    def report(self, notice: Notice, details: str) -> str:
        """Of one that stands now."""
        for past in self.log.past:
            if past.notice == notice and past.details == details:
                return self.report_of(past)
        return self.report_of(self.log.add(notice, details=details))

    def report_of(self, past: PastNotice) -> str:
        return report_text(past, surroundings(self._controller.model_state.summary, self._table.metrics))

    def open_list(self) -> NoticeList:
        dialog = NoticeList(self.log.past, self.report_of, self._window)
        dialog.cleared.connect(self.log.clear)
        dialog.open()
        return dialog

    def act(self, code: str, action: NoticeAction) -> None:
        """What a button asked for. The banner goes where that is all there is to do."""
        match action:
            case NoticeAction.FREE_SLOTS:
                self._controller.free_slots()
                self._banners.dismiss(code)
            case NoticeAction.RELOAD:
                summary = self._controller.model_state.summary
                if summary is not None:
                    self._banners.dismiss(code)
                    self._controller.load_model(summary.path)
                else:
                    self.models_asked.emit()
            case NoticeAction.SHORTER_CONTEXT:
                self.plan_asked.emit("context")
            case NoticeAction.LOWER_PRECISION:
                self.plan_asked.emit("weights")
            case NoticeAction.SETTINGS:
                self.settings_asked.emit()
            case NoticeAction.MODELS:
                self.models_asked.emit()
            case NoticeAction.LIMITS:
                self.limits_asked.emit()

    def _on_told(self, notice: Notice, details: str) -> None:
        self.log.add(notice, details=details)
        severity = severity_of(notice.code)
        said = tr(
            "{severity}: {message} {hint}",
            severity=tr(severity.value[2]),
            message=translated(notice.message),
            hint=translated(notice.hint),
        )
        announce(self._window, said.strip(), urgent=severity is Severity.ERROR)

    def _on_slots(self, table: SlotTable) -> None:
        self._table = table
