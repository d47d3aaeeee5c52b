"""The answer that is being written: asked of the engine's worker, handed to the recorder, told to the
controller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal, Slot

from app.answer import AnswerRecorder
from app.chat_sampling import chosen_sampling, other_sampling
from app.conversations import AnswerStats, Conversation, Exchange, Message, MessageStatus
from app.engine_commands import AnswerDelta, GenerateCommand
from app.fallback import answer_fallback, model_fallback
from app.prompt import with_instructions
from app.settings_keeper import SettingsKeeper
from app.store_session import StoreSession
from app.worker import EngineWorker
from engine.generation import Finished, FinishReason, PrefillStats, SamplingParams
from engine.notices import Notice

if TYPE_CHECKING:
    from engine.model_summary import ModelSummary


class AnswerSession(QObject):
    """One answer at a time. It ends when its end is on disk, or when that has been tried and told."""

    started = Signal(str, object)  # conversation id, Message: WRITING, empty
    left_out = Signal(str, int)  # conversation id, how many of its oldest messages are not read; may not come
    prefilled = Signal(str, object)  # conversation id, PrefillStats
    extended = Signal(str, str, object)  # conversation id, message id, AnswerDelta
    finished = Signal(str, object)  # conversation id, Message
    orphaned = Signal(str, object)  # instead of `finished`: the conversation was deleted, nothing is on disk
    active_changed = Signal(bool)
    notice_raised = Signal(object)

    def __init__(
        self,
        worker: EngineWorker,
        store: StoreSession,
        settings: SettingsKeeper,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._worker = worker
        self._settings = settings
        self._recorder = AnswerRecorder(store, self)
        self.active = False
        self._conversation_id: str | None = None  # of the answer that is being written, or was last
        self._request_id: int | None = None  # None: the engine has nothing more to say
        self._device = ""
        self._fallback = ""  # why that is the processor, where a card was asked for
        self._left_out = 0
        self._said: set[tuple[str, str, str]] = set()  # notices about a conversation, for the model there is
        worker.prompt_shortened.connect(self._on_prompt_shortened)
        worker.prefilled.connect(self._on_prefilled)
        worker.text_received.connect(self._on_text_received)
        worker.answer_finished.connect(self._on_finished)
        worker.answer_failed.connect(self._on_failed)
        worker.notice_raised.connect(self._on_engine_notice)
        worker.model_loaded.connect(self._on_model_loaded)
        worker.model_moved.connect(self._on_model_moved)
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

    @property
    def conversation_id(self) -> str | None:
        """The conversation in which an answer is being written."""
        return self._conversation_id if self.active else None

    @property
    def message_id(self) -> str | None:
        """The answer that is being written."""
        return self._recorder.begun.id if self._recorder.begun is not None else None

    def begin(self, exchange: Exchange, summary: ModelSummary | None, *, anew: bool = False) -> None:
        """Ask for the answer whose row `exchange` made, by the model of `summary`. `anew`: there is one
        already, so this one is to be another.
        """
        self.active = True
        self._conversation_id = exchange.summary.id
        self._left_out = 0
        self._recorder.begin(exchange.answer)
        recommended = summary.sampling_defaults if summary else SamplingParams()
        self._device = summary.device if summary else ""
        self._fallback = model_fallback(self._device, summary.notices) if summary else ""
        chosen = exchange.settings
        draw = other_sampling if anew else chosen_sampling
        self._request_id = self._worker.generate(
            GenerateCommand(
                conversation_id=exchange.summary.id,
                messages=with_instructions(exchange.history, chosen.instructions),
                sampling=draw(recommended, chosen.sampling),
                max_new_tokens=chosen.sampling.max_tokens,
                policy=self._settings.current.context_policy,
                stop=chosen.sampling.stop,
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

    def end_unbegun(self, message: Message) -> None:
        """How an answer ended that was never begun; `finished` follows."""
        self._recorder.end_unbegun(message)

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

    @Slot(int, int)
    def _on_prompt_shortened(self, request_id: int, left_out: int) -> None:
        growing = self._recorder.begun
        if request_id == self._request_id and growing is not None:
            self._left_out = left_out
            self.left_out.emit(growing.conversation_id, left_out)

    @Slot(int, object)
    def _on_prefilled(self, request_id: int, stats: PrefillStats) -> None:
        growing = self._recorder.begun
        if request_id == self._request_id and growing is not None:
            self.prefilled.emit(growing.conversation_id, stats)

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
                device=finished.device or self._device,
                fallback=answer_fallback(
                    finished.device,
                    of_model=self._device,
                    why_model=self._fallback,
                    notices=finished.notices,
                ),
                reuse_reason=str(finished.prefill.reason or ""),
                diverged_at=finished.prefill.diverged_at,
                left_out=self._left_out,
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
    def _on_model_moved(self, summary: ModelSummary) -> None:
        self._device = summary.device
        self._fallback = model_fallback(summary.device, summary.notices)

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
