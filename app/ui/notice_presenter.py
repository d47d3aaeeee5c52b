"""What the controller has to tell, over the chat; and what no longer holds, taken away again."""

from __future__ import annotations

from PySide6.QtCore import QObject

from app.controller import ChatController
from app.conversations import Message, MessageStatus
from app.refusals import ANSWERING
from app.ui.banner import BannerStack
from app.ui.chat_pane import ChatPane
from app.ui.status_line import STANDING_CODES
from engine.notices import Notice


class NoticePresenter(QObject):
    """Also tells the chat what became of a text that was sent."""

    def __init__(
        self,
        controller: ChatController,
        *,
        banners: BannerStack,
        chat: ChatPane,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._controller = controller
        self._banners = banners
        self._chat = chat
        self._refusals: set[str] = set()  # codes of the notices that say why a message was not sent
        self._failures: dict[str, str] = {}  # codes of the notices that say why an answer failed, by chat
        controller.send_accepted.connect(self._on_send_accepted)
        controller.send_rejected.connect(self._on_send_rejected)
        controller.notice_raised.connect(self._on_notice_raised)
        controller.answer_started.connect(self._on_answer_started)
        controller.answer_finished.connect(self._on_answer_finished)
        controller.answers_changed.connect(self._on_answers_changed)
        controller.conversation_opened.connect(self._on_answers_changed)

    def take_over(self, other: NoticePresenter) -> None:
        """Which notices go, and when."""
        self._refusals, self._failures = set(other._refusals), dict(other._failures)

    def _on_send_accepted(self, text: str) -> None:
        self._chat.accept_send(text)
        for code in self._refusals:
            self._banners.dismiss(code)  # what it asked for has been done
        self._refusals.clear()

    def _on_send_rejected(self, text: str, notice: Notice) -> None:
        self._chat.reject_send(text)
        self._refusals.add(notice.code)
        self._banners.show_notice(notice)

    def _on_notice_raised(self, notice: Notice) -> None:
        if notice.code in STANDING_CODES:
            self._banners.told.emit(notice, "")  # the status line says it
        else:
            self._banners.show_notice(notice)

    def _on_answer_started(self, conversation_id: str, _message: Message) -> None:
        if (code := self._failures.pop(conversation_id, "")) and code not in self._failures.values():
            self._banners.dismiss(code)

    def _on_answer_finished(self, conversation_id: str, message: Message) -> None:
        if message.status is not MessageStatus.FAILED or message.stats is None:
            return
        for notice in self._banners.notices():
            if notice.message == message.stats.finish_reason:
                self._failures[conversation_id] = notice.code

    def _on_answers_changed(self) -> None:
        answers, current = self._controller.answers, self._controller.current_conversation_id
        if current is None or current not in (answers.writing, *answers.waiting):
            self._banners.dismiss(ANSWERING.code)
