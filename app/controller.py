"""The verbs of the program. Joins the store, the engine's worker and the settings; knows no widget.

Nothing here blocks: the store, inspection and the engine each have their own thread, and every signal is
emitted on the GUI thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from PySide6.QtCore import QObject, Signal, Slot

from app.answer import SAVED_AFTER_ALL, AnswerRecorder, save_ends
from app.conversations import (
    AnswerStats,
    Conversation,
    ConversationStore,
    ConversationSummary,
    Exchange,
    Message,
    MessageStatus,
)
from app.engine_commands import AnswerDelta, GenerateCommand
from app.engine_loop import EngineFactory, load_engine
from app.load_marker import LoadMarker
from app.model_session import Inspector, ModelPhase, ModelSession, ModelState, inspect
from app.operations import BackgroundRunner
from app.paths import AppPaths
from app.settings import Settings, load_settings
from app.settings_keeper import SettingsKeeper
from app.store_session import StoreSession
from app.worker import EngineWorker
from engine.generation import Finished, FinishReason, SamplingParams
from engine.notices import Notice

if TYPE_CHECKING:
    from engine.engine import ModelSummary

__all__ = ["ChatController", "ModelPhase", "ModelState"]

T = TypeVar("T")


class ChatController(QObject):
    """What the widgets see."""

    conversations_changed = Signal(list)  # list[ConversationSummary], newest first
    conversation_opened = Signal(object)  # Conversation | None; None: an empty chat with no row on disk yet
    message_added = Signal(str, object)  # conversation id, Message: already on disk
    answer_started = Signal(str, object)  # conversation id, Message: WRITING, empty
    answer_extended = Signal(str, str, object)  # conversation id, message id, AnswerDelta
    answer_finished = Signal(str, object)  # conversation id, Message
    answering_changed = Signal(bool)  # an answer is being written now, in any conversation
    model_state_changed = Signal(object)  # ModelState
    load_failed = Signal(
        object, object
    )  # Path, Notice; model_state is already that of before. Not for a cancel
    model_inspected = Signal(object)  # ModelReport
    send_accepted = Signal(str)  # the text; only now may the composer be cleared
    send_rejected = Signal(str, object)  # the text, Notice: the composer keeps it
    notice_raised = Signal(object)  # Notice
    recent_models_changed = Signal(list)  # list[Path], newest first

    def __init__(
        self,
        paths: AppPaths,
        *,
        engine_factory: EngineFactory = load_engine,
        inspector: Inspector = inspect,
        parent: QObject | None = None,
    ) -> None:
        """Reads the settings (a small file) and starts the threads; nothing else happens before `start`."""
        super().__init__(parent)
        loaded = load_settings(paths.settings_file)
        self._early_notices = loaded.notices
        self._disk = BackgroundRunner("disk", self)
        self._store = StoreSession(paths.conversations_file, runner=self._disk, on_notice=self._raise_notice)
        self._settings = SettingsKeeper(
            paths.settings_file, loaded.settings, runner=self._disk, on_error=self._raise_notice
        )
        self._worker = EngineWorker(engine_factory=engine_factory, parent=self)
        self._models = ModelSession(
            self._worker,
            self._settings,
            marker=LoadMarker(paths.load_marker_file),
            disk=self._disk,
            inspector=inspector,
            parent=self,
        )
        self._recorder = AnswerRecorder(self._store, self)
        self._current_id: str | None = None
        self._view = 0  # counts what the chat pane was asked to show; an answer to an older wish is dropped
        self._sending = False  # a message is on its way to disk
        self._answering = False
        self._request_id: int | None = None  # of the answer that is being written
        self._device = ""
        self._said: set[tuple[str, str, str]] = (
            set()
        )  # notices about a conversation, said once for each model
        self._closed = False
        self._connect_signals()

    def _connect_signals(self) -> None:
        models, worker, recorder = self._models, self._worker, self._recorder
        models.state_changed.connect(self.model_state_changed)
        models.load_failed.connect(self.load_failed)
        models.inspected.connect(self.model_inspected)
        models.recent_models_changed.connect(self.recent_models_changed)
        models.notice_raised.connect(self.notice_raised)
        worker.text_received.connect(self._on_text_received)
        worker.answer_finished.connect(self._on_engine_finished)
        worker.answer_failed.connect(self._on_engine_failed)
        worker.notice_raised.connect(self._on_engine_notice)
        worker.model_loaded.connect(self._on_model_loaded)
        recorder.finished.connect(self._on_answer_saved)
        recorder.idle.connect(self._on_answer_over)
        recorder.notice_raised.connect(self.notice_raised)

    @property
    def model_state(self) -> ModelState:
        return self._models.state

    @property
    def answering(self) -> bool:
        return self._answering

    @property
    def current_conversation_id(self) -> str | None:
        """None: a new, empty chat."""
        return self._current_id

    @property
    def settings(self) -> Settings:
        return self._settings.current

    # Beginning and end

    def start(self, model_path: Path | None = None) -> None:
        """Open the store, list the conversations, open the last one, and load `model_path` or else the
        last model.
        """
        for notice in self._early_notices:
            self.notice_raised.emit(notice)
        self.recent_models_changed.emit(list(self.settings.recent_models))
        self.model_state_changed.emit(self.model_state)
        view, last_id = self._view, self.settings.last_conversation_id

        def read(store: ConversationStore) -> tuple[list[ConversationSummary], Conversation | None]:
            summaries = store.summaries()
            known = any(summary.id == last_id for summary in summaries)
            return summaries, store.conversation(last_id) if last_id and known else None

        def on_read(found: tuple[list[ConversationSummary], Conversation | None]) -> None:
            summaries, conversation = found
            self.conversations_changed.emit(summaries)
            self._show(conversation, view)

        def on_error(notice: Notice) -> None:
            self.notice_raised.emit(notice)
            self.conversations_changed.emit([])
            self._show(None, view)

        self._ask_store(read, on_read, on_error, doing="reading the conversations")
        if model_path is not None:
            self.load_model(model_path)
        else:
            self._models.load_last_model()

    def shutdown(self) -> bool:
        """Stop what runs and leave everything on disk. False: a thread did not end within its time, and Qt
        would abort the process if it were torn down in the usual way, so it has to end by `os._exit`.
        """
        if self._closed:
            return True
        self._closed = True
        engine_ended = self._worker.shutdown()  # the end of a stopped answer arrives in here
        if self._recorder.message is not None:
            self._recorder.finish(MessageStatus.INTERRUPTED, None)
        self._recorder.close()
        inspection_ended = self._models.shutdown()
        self._settings.close()
        self._store.close(self.notice_raised.emit)
        disk_ended = self._disk.shutdown()
        return engine_ended and inspection_ended and disk_ended

    # Conversations

    def new_conversation(self) -> None:
        """Show an empty chat; its row on disk is made together with its first message."""
        self._view += 1
        self._show(None, self._view)

    def open_conversation(self, conversation_id: str) -> None:
        self._view += 1
        view = self._view

        def on_error(notice: Notice) -> None:
            if view == self._view:
                self.notice_raised.emit(notice)

        self._ask_store(
            lambda store: store.conversation(conversation_id),
            lambda conversation: self._show(conversation, view),
            on_error,
            doing="opening the conversation",
        )

    def rename_conversation(self, conversation_id: str, title: str) -> None:
        def rename(store: ConversationStore) -> list[ConversationSummary]:
            store.rename(conversation_id, title)
            return store.summaries()

        self._ask_store(
            rename,
            self.conversations_changed.emit,
            self.notice_raised.emit,
            doing="renaming the conversation",
        )

    def delete_conversation(self, conversation_id: str) -> None:
        """An answer that is being written in it is stopped first."""
        self._stop_answer_in(conversation_id)

        def delete(store: ConversationStore) -> list[ConversationSummary]:
            store.delete(conversation_id)
            return store.summaries()

        def on_deleted(summaries: list[ConversationSummary]) -> None:
            self._stop_answer_in(conversation_id)  # a message may have been on its way when the deletion was
            self._worker.forget(conversation_id)
            self.conversations_changed.emit(summaries)
            if self._current_id == conversation_id:
                self._show(None, self._view)

        self._ask_store(delete, on_deleted, self.notice_raised.emit, doing="deleting the conversation")

    # Messages

    def send_message(self, text: str) -> None:
        """Ends in exactly one of `send_accepted` and `send_rejected`.

        In a new chat the order is: send_accepted, conversation_opened (the new row, no messages yet),
        message_added, answer_started. In an existing one conversation_opened is left out.
        """
        refusal = self._refusal(text)
        if refusal is not None:
            self.send_rejected.emit(text, refusal)
            return
        self._sending = True
        sent = _Sent(text, self._current_id, self._view, self._recorder.unsaved)
        summary = self.model_state.summary
        model_path = summary.path if summary else None

        def begin(store: ConversationStore) -> tuple[Exchange, list[ConversationSummary]]:
            save_ends(store, sent.unsaved)  # the model reads the history from the store, so it must be whole
            exchange = store.begin_exchange(sent.conversation_id, text, model_path=model_path)
            return exchange, store.summaries()

        def on_error(notice: Notice) -> None:
            self._sending = False
            self.send_rejected.emit(text, notice)

        self._ask_store(
            begin, lambda saved: self._on_sent(sent, *saved), on_error, doing="saving the message"
        )

    def stop_answer(self) -> None:
        """End the answer that is being written; its text so far is kept."""
        if self._request_id is not None:
            self._worker.stop(self._request_id)

    # The model

    def inspect_model(self, path: Path) -> None:
        """Ends in `model_inspected`, unless another path is asked for meanwhile."""
        if not self._closed:
            self._models.inspect(path)

    def load_model(self, path: Path) -> None:
        """Ends in a new `model_state`, and in `load_failed` when it did. An answer that is being written
        ends first.
        """
        if not self._closed:
            self._models.load(path)

    def cancel_load(self) -> None:
        self._models.cancel_load()

    def unload_model(self) -> None:
        """An answer that is being written is stopped first."""
        self.stop_answer()
        self._models.unload()

    def update_settings(self, **changes: Any) -> None:
        """Change fields of `settings` by name; the file follows on the disk's thread."""
        self._settings.change(**changes)

    # Inside

    def _ask_store(
        self,
        function: Callable[[ConversationStore], T],
        on_success: Callable[[T], None],
        on_error: Callable[[Notice], None],
        *,
        doing: str,
    ) -> None:
        if not self._closed:
            self._store.run(function, on_success, on_error, doing=doing)

    def _show(self, conversation: Conversation | None, view: int) -> None:
        """Make `conversation` the current one, unless something else was asked for after `view`."""
        if view != self._view:
            return
        self._current_id = conversation.summary.id if conversation else None
        self._settings.change(last_conversation_id=self._current_id)
        self.conversation_opened.emit(self._as_it_stands(conversation) if conversation else None)

    def _as_it_stands(self, conversation: Conversation) -> Conversation:
        """With the newest text of the answer that grows, which the disk has only up to a second ago."""
        newer = {message.id: message for message in self._recorder.unsaved}
        growing = self._recorder.message
        if growing is not None:
            newer[growing.id] = growing
        return replace(
            conversation,
            messages=tuple(newer.get(message.id, message) for message in conversation.messages),
        )

    def _refusal(self, text: str) -> Notice | None:
        """Why `text` can't be sent now, or None."""
        state = self.model_state
        if self._closed:
            return Notice("closing", "The program is closing.", "The message was not sent.")
        if not text.strip():
            return Notice("empty-message", "There is nothing to send yet.", "Write a message first.")
        if self._answering or self._sending:
            return Notice(
                "answer-in-progress",
                "An answer is still being written.",
                "Wait for its end or stop it, then send the message.",
            )
        if state.phase is ModelPhase.LOADING:
            return Notice(
                "model-loading", f"{state.name} is still being loaded.", "Send the message when it is ready."
            )
        if state.phase is ModelPhase.NONE and self._models.last_failure is not None:
            return Notice(
                "no-model",
                f"No model is loaded: {self._models.last_failure.message}",
                "Choose another model, then send the message; its text stays here.",
            )
        if state.phase is ModelPhase.NONE:
            return Notice(
                "no-model",
                "No model is loaded yet.",
                "Choose a model folder first, then send the message; its text stays here.",
            )
        return None

    def _on_sent(self, sent: _Sent, exchange: Exchange, summaries: list[ConversationSummary]) -> None:
        """The question is on disk: show it and ask for the answer."""
        self._sending = False
        if sent.unsaved:
            self._recorder.forget_unsaved(sent.unsaved)
            self.notice_raised.emit(SAVED_AFTER_ALL)
        conversation_id = exchange.summary.id
        self.send_accepted.emit(sent.text)
        if sent.conversation_id is None:
            self._show(Conversation(exchange.summary), sent.view)
        self.conversations_changed.emit(summaries)
        self.message_added.emit(conversation_id, exchange.question)
        if self._closed:
            return  # the row of the answer is found at the next start, and marked as interrupted
        self._answering = True
        self._recorder.begin(exchange.answer)
        summary = self.model_state.summary
        self._request_id = self._worker.generate(
            GenerateCommand(
                conversation_id=conversation_id,
                messages=exchange.history,
                sampling=summary.sampling_defaults if summary else SamplingParams(),
            )
        )
        self._device = summary.device if summary else ""
        self.answer_started.emit(conversation_id, exchange.answer)
        self.answering_changed.emit(True)

    def _stop_answer_in(self, conversation_id: str) -> None:
        growing = self._recorder.message
        if growing is not None and growing.conversation_id == conversation_id:
            self.stop_answer()

    def _raise_notice(self, notice: Notice) -> None:
        self.notice_raised.emit(notice)

    @Slot(int, object)
    def _on_text_received(self, request_id: int, delta: AnswerDelta) -> None:
        growing = self._recorder.message
        if request_id == self._request_id and growing is not None:
            self._recorder.extend(delta)
            self.answer_extended.emit(growing.conversation_id, growing.id, delta)

    @Slot(int, object)
    def _on_engine_finished(self, request_id: int, finished: Finished) -> None:
        if request_id != self._request_id:
            return
        for notice in finished.notices:
            self.notice_raised.emit(notice)
        stopped = finished.finish_reason is FinishReason.CANCELLED
        self._end_answer(
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
    def _on_engine_failed(self, request_id: int, notice: Notice) -> None:
        if request_id == self._request_id:
            self.notice_raised.emit(notice)
            self._end_answer(MessageStatus.FAILED, None)

    def _end_answer(self, status: MessageStatus, stats: AnswerStats | None) -> None:
        self._request_id = None
        self._recorder.finish(status, stats)

    @Slot(object)
    def _on_answer_saved(self, message: Message) -> None:
        self.answer_finished.emit(message.conversation_id, message)

    @Slot()
    def _on_answer_over(self) -> None:
        self._answering = False
        self.answering_changed.emit(False)
        self._ask_store(
            ConversationStore.summaries,
            self.conversations_changed.emit,
            self.notice_raised.emit,
            doing="reading the list of conversations",
        )

    @Slot(object)
    def _on_engine_notice(self, notice: Notice) -> None:
        """A template's rewrite comes with every turn, so each is said once for a conversation and a model."""
        growing = self._recorder.message
        said = (growing.conversation_id if growing else "", notice.code, notice.message)
        if said not in self._said:
            self._said.add(said)
            self.notice_raised.emit(notice)

    @Slot(int, object)
    def _on_model_loaded(self, load_id: int, summary: ModelSummary) -> None:
        self._said.clear()


@dataclass(frozen=True)
class _Sent:
    """A message on its way to disk, and what was on screen when it was sent."""

    text: str
    conversation_id: str | None
    view: int
    unsaved: tuple[Message, ...]  # answers that go to disk with it
