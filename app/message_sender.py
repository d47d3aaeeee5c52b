"""From what a person sends, edits or asks anew to a question on disk and an answer in the queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

from app.answer import SAVED_AFTER_ALL, save_ends
from app.answer_queue import AnswerOrder, AnswerQueue
from app.answer_session import AnswerSession
from app.attachments import Attachment
from app.chat_settings import ChatSettings
from app.conversation_records import ConversationSummary, Exchange, Message
from app.conversations import ConversationStore
from app.model_session import ModelSession
from app.refusals import refusal
from app.store_session import StoreSession
from engine.notices import Notice

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Sending:
    """What is sent, and what was on screen then. With `message_id` it is another version of that message: of
    a question with this text, or, where `anew`, of an answer.
    """

    text: str
    conversation_id: str | None
    view: int
    message_id: str = ""
    anew: bool = False
    attachments: tuple[Attachment, ...] = ()
    settings: ChatSettings = field(default_factory=ChatSettings)  # of a conversation that begins with this


class MessageSender(QObject):
    """One at a time. Every `send` ends in exactly one of `saved` and `refused`."""

    saved = Signal(object, object, object)  # Sending, Exchange, list[ConversationSummary]
    refused = Signal(object, object)  # Sending, Notice
    notice_raised = Signal(object)

    def __init__(
        self,
        store: StoreSession,
        session: AnswerSession,
        queue: AnswerQueue,
        *,
        models: ModelSession,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._store = store
        self._session = session
        self._queue = queue
        self._models = models
        self._sending = False  # on its way to disk
        self._closed = False

    def send(self, sending: Sending) -> None:
        reason = refusal(
            None if sending.anew or sending.attachments else sending.text,
            self._models.state,
            last_failure=self._models.last_failure,
            busy=self._sending or self._queue.is_busy(sending.conversation_id),
            closing=self._closed,
        )
        if reason is not None:
            self.refused.emit(sending, reason)
            return
        self._sending = True
        unsaved = self._session.unsaved
        summary = self._models.state.summary
        write = _writer(sending, summary.path if summary else None)

        def begin(store: ConversationStore) -> tuple[Exchange, list[ConversationSummary]]:
            save_ends(store, unsaved)  # the model reads the history from the store, so it must be whole
            exchange = write(store)
            return exchange, store.summaries()

        def on_error(notice: Notice) -> None:
            self._sending = False
            self.refused.emit(sending, notice)

        self._store.run(
            begin,
            lambda saved: self._on_saved(sending, unsaved, *saved),
            on_error,
            doing="saving the message",
        )

    def close(self) -> None:
        """Nothing more is sent. The row of an answer that was not begun is found at the next start, and
        marked as interrupted.
        """
        self._closed = True

    def _on_saved(
        self,
        sending: Sending,
        unsaved: tuple[Message, ...],
        exchange: Exchange,
        summaries: list[ConversationSummary],
    ) -> None:
        self._sending = False
        if unsaved:
            self._session.forget_unsaved(unsaved)
            self.notice_raised.emit(SAVED_AFTER_ALL)
        self.saved.emit(sending, exchange, summaries)
        if not self._closed:
            self._queue.add(AnswerOrder(exchange, anew=sending.anew))


def _writer(sending: Sending, model_path: Path | None) -> Callable[[ConversationStore], Exchange]:
    if sending.anew:
        return lambda store: store.begin_regeneration(sending.message_id, model_path=model_path)
    if sending.message_id:
        return lambda store: store.begin_edit(
            sending.message_id, sending.text, model_path=model_path, attachments=sending.attachments
        )
    return lambda store: store.begin_exchange(
        sending.conversation_id,
        sending.text,
        model_path=model_path,
        attachments=sending.attachments,
        settings=sending.settings,
    )
