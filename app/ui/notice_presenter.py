"""What the controller has to tell, over the chat; and what no longer holds, taken away again."""

from __future__ import annotations

from PySide6.QtCore import QObject

from app.controller import ChatController
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
        controller.send_accepted.connect(self._on_send_accepted)
        controller.send_rejected.connect(self._on_send_rejected)
        controller.notice_raised.connect(self._on_notice_raised)
        controller.answers_changed.connect(self._on_answers_changed)
        controller.conversation_opened.connect(self._on_answers_changed)

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
        if notice.code not in STANDING_CODES:
            self._banners.show_notice(notice)

    def _on_answers_changed(self) -> None:
        answers, current = self._controller.answers, self._controller.current_conversation_id
        if current is None or current not in (answers.writing, *answers.waiting):
            self._banners.dismiss(ANSWERING.code)
