"""Answers that wait for their turn: a model writes one at a time, and a person may ask in several
conversations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal, Slot

from app.answer_session import AnswerSession
from app.conversation_records import Conversation, Exchange, Message, MessageStatus
from app.model_session import ModelPhase, ModelState

if TYPE_CHECKING:
    from engine.model_summary import ModelSummary


@dataclass(frozen=True)
class Answering:
    """The conversations in which an answer is being written, and waits to be, in their order."""

    writing: str | None = None
    waiting: tuple[str, ...] = ()


@dataclass(frozen=True)
class AnswerOrder:
    """An answer whose row is on disk. `anew`: it is another version of one that is there already."""

    exchange: Exchange
    anew: bool = False

    @property
    def conversation_id(self) -> str:
        return self.exchange.summary.id


class AnswerQueue(QObject):
    """Hands orders to the session one after the other, while there is a model that is not being replaced.

    At most one order a conversation. On disk an answer that waits is one that is being written and has no
    word yet, so that a program that ends meanwhile leaves it as interrupted.
    """

    waiting = Signal(str, object)  # conversation id, Message: WAITING; `started` of the session follows later
    changed = Signal(object)  # Answering

    def __init__(self, session: AnswerSession, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self._orders: list[AnswerOrder] = []  # those that wait
        self._model = ModelState()
        self._closed = False
        session.active_changed.connect(self._on_active_changed)

    @property
    def answering(self) -> Answering:
        waiting = tuple(order.conversation_id for order in self._orders)
        return Answering(self._session.conversation_id, waiting)

    def is_busy(self, conversation_id: str | None) -> bool:
        """An answer is being written or waits in this conversation."""
        answering = self.answering
        return conversation_id is not None and conversation_id in (answering.writing, *answering.waiting)

    def is_open(self, message_id: str) -> bool:
        """This is an answer that has not ended."""
        waiting = {order.exchange.answer.id for order in self._orders}
        return message_id in waiting or message_id == self._session.message_id

    def add(self, order: AnswerOrder) -> None:
        assert not self.is_busy(order.conversation_id), "two answers at a time in one conversation"
        self._orders.append(order)
        self._begin_next()
        if order in self._orders:
            answer = replace(order.exchange.answer, status=MessageStatus.WAITING)
            self.waiting.emit(order.conversation_id, answer)
            self.changed.emit(self.answering)

    def set_model(self, state: ModelState) -> None:
        self._model = state
        self._begin_next()

    def stop_in(self, conversation_id: str | None) -> None:
        """End the answer that is being written or waits in this conversation; its text so far is kept."""
        if conversation_id is None:
            return
        self._session.stop_in(conversation_id)
        self._drop([order for order in self._orders if order.conversation_id == conversation_id])

    def stop_all(self) -> None:
        self._drop(list(self._orders))
        self._session.stop()

    def as_it_stands(self, conversation: Conversation) -> Conversation:
        """`conversation`, read from disk, with what the disk doesn't have yet."""
        waiting = {order.exchange.answer.id for order in self._orders}
        messages = (
            replace(message, status=MessageStatus.WAITING) if message.id in waiting else message
            for message in conversation.messages
        )
        return self._session.as_it_stands(replace(conversation, messages=tuple(messages)))

    def close(self) -> None:
        """Begin nothing more. What waits is interrupted."""
        self._closed = True

    def _drop(self, orders: list[AnswerOrder]) -> None:
        for order in orders:
            self._orders.remove(order)
            self._session.end_unbegun(replace(order.exchange.answer, status=MessageStatus.STOPPED))
        if orders:
            self.changed.emit(self.answering)

    def _begin_next(self) -> None:
        if self._closed or self._session.active or not self._orders:
            return
        if self._model.phase is ModelPhase.READY:
            self._begin(self._orders.pop(0), self._model.summary)

    def _begin(self, order: AnswerOrder, summary: ModelSummary | None) -> None:
        self._session.begin(order.exchange, summary, anew=order.anew)

    @Slot(bool)
    def _on_active_changed(self, active: bool) -> None:
        self.changed.emit(self.answering)
        if not active:
            self._begin_next()


def unfinished(message: Message) -> bool:
    """Whether more of an answer is to come."""
    return message.status in (MessageStatus.WRITING, MessageStatus.WAITING)
