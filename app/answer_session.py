"""The answer that is being written: asked of the engine's worker, handed to the recorder, told to the
controller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal, Slot

from app.answer import AnswerRecorder
from app.chat_sampling import chat_sampling
from app.conversations import AnswerStats, Conversation, Exchange, Message, MessageStatus
from app.engine_commands import AnswerDelta, GenerateCommand
from app.store_session import StoreSession
from app.worker import EngineWorker
from engine.generation import Finished, FinishReason, SamplingParams
from engine.notices import Notice

if TYPE_CHECKING:
    from engine.engine import ModelSummary


class AnswerSession(QObject):
    """One answer at a time. It ends when its end is on disk, or when that has been tried and told."""

    started = Signal(str, object)  # conversation id, Message: WRITING, empty
    extended = Signal(str, str, object)  # conversation id, message id, AnswerDelta
    finished = Signal(str, object)  # conversation id, Message
    orphaned = Signal(str, object)  # instead of `finished`: the conversation was deleted, nothing is on disk
    active_changed = Signal(bool)
    notice_raised = Signal(object)

    def __init__(self, worker: EngineWorker, store: StoreSession, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._worker = worker
        self._recorder = AnswerRecorder(store, self)
        self.active = False
        self._request_id: int | None = None  # None: the engine has nothing more to say
        self._device = ""
        self._said: set[tuple[str, str, str]] = set()  # notices about a conversation, for the model there is
        worker.text_received.connect(self._on_text_received)
        worker.answer_finished.connect(self._on_finished)
        worker.answer_failed.connect(self._on_failed)
        worker.notice_raised.connect(self._on_engine_notice)
        worker.model_loaded.connect(self._on_model_loaded)
        self._recorder.finished.connect(self._on_recorded)
        self._recorder.orphaned.connect(self._on_orphaned)
        self._recorder.idle.connect(self._on_over)
        self._recorder.notice_raised.connect(self.notice_raised)

    @property
    def unsaved(self) -> tuple[Message, ...]:
        """Answers that have ended and could not be saved yet."""
        return self._recorder.unsaved

    def forget_unsaved(self, messages: Sequence[Message]) -> None:
        """These are on disk now."""
        self._recorder.forget_unsaved(messages)

    def begin(self, exchange: Exchange, summary: ModelSummary | None) -> None:
        """Ask for the answer whose row `exchange` made, by the model of `summary`."""
        self.active = True
        self._recorder.begin(exchange.answer)
        self._device = summary.device if summary else ""
        self._request_id = self._worker.generate(
            GenerateCommand(
                conversation_id=exchange.summary.id,
                messages=exchange.history,
                sampling=chat_sampling(summary.sampling_defaults if summary else SamplingParams()),
            )
        )
        self.started.emit(exchange.summary.id, exchange.answer)
        self.active_changed.emit(True)

    def stop(self) -> None:
        """Its text so far is kept."""
        if self._request_id is not None:
            self._worker.stop(self._request_id)

    def stop_in(self, conversation_id: str) -> None:
        """Stop the answer if that is where it is being written."""
        growing = self._recorder.begun
        if growing is not None and growing.conversation_id == conversation_id:
            self.stop()

    def as_it_stands(self, conversation: Conversation) -> Conversation:
        """`conversation`, read from disk, with what the disk doesn't have yet."""
        newer = {message.id: message for message in self._recorder.unsaved}
        growing = self._recorder.message
        if growing is not None:
            newer[growing.id] = growing
        messages = tuple(newer.get(message.id, message) for message in conversation.messages)
        return replace(conversation, messages=messages)

    def close(self) -> None:
        """After the worker has ended: see that everything goes to disk."""
        if self._recorder.begun is not None:  # the worker could not be ended in time
            self._end(MessageStatus.INTERRUPTED, None)
        self._recorder.close()

    @Slot(int, object)
    def _on_text_received(self, request_id: int, delta: AnswerDelta) -> None:
        growing = self._recorder.begun
        if request_id == self._request_id and growing is not None:
            self._recorder.extend(delta)
            self.extended.emit(growing.conversation_id, growing.id, delta)

    @Slot(int, object)
    def _on_finished(self, request_id: int, finished: Finished) -> None:
        if request_id != self._request_id:
            return
        for notice in finished.notices:
            self.notice_raised.emit(notice)
        stopped = finished.finish_reason is FinishReason.CANCELLED
        self._end(
            MessageStatus.STOPPED if stopped else MessageStatus.COMPLETE,
            AnswerStats(
                prompt_tokens=finished.prefill.tokens,
                reused_tokens=finished.prefill.reused,
                prefill_seconds=finished.prefill.seconds,
                decode_tokens=finished.decode.tokens,
                decode_seconds=finished.decode.seconds,
                finish_reason=str(finished.finish_reason),
                device=self._device,
            ),
        )

    @Slot(int, object)
    def _on_failed(self, request_id: int, notice: Notice) -> None:
        if request_id == self._request_id:
            self.notice_raised.emit(notice)
            # Nothing was measured, but the reason stays with the answer when the notice is dismissed.
            self._end(MessageStatus.FAILED, AnswerStats(0, 0, 0.0, 0, 0.0, notice.message, self._device))

    def _end(self, status: MessageStatus, stats: AnswerStats | None) -> None:
        self._request_id = None
        self._recorder.finish(status, stats)

    @Slot(object)
    def _on_engine_notice(self, notice: Notice) -> None:
        """A template's rewrite comes with every turn, so each is said once for a conversation and a model."""
        growing = self._recorder.begun
        said = (growing.conversation_id if growing else "", notice.code, notice.message)
        if said not in self._said:
            self._said.add(said)
            self.notice_raised.emit(notice)

    @Slot(int, object)
    def _on_model_loaded(self, _load_id: int, _summary: ModelSummary) -> None:
        self._said.clear()

    @Slot(object)
    def _on_recorded(self, message: Message) -> None:
        self.finished.emit(message.conversation_id, message)

    @Slot(object)
    def _on_orphaned(self, message: Message) -> None:
        self.orphaned.emit(message.conversation_id, message)

    @Slot()
    def _on_over(self) -> None:
        self.active = False
        self.active_changed.emit(False)
