"""The verbs of the program. Joins the store, the engine's worker and the settings; knows no widget.

Nothing here blocks: the store, inspection and the engine each have their own thread, and every signal is
emitted on the GUI thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from PySide6.QtCore import QObject, Signal, Slot

from app.answer import SAVED_AFTER_ALL, save_ends
from app.answer_session import AnswerSession
from app.conversations import Conversation, ConversationStore, ConversationSummary, Exchange, Message
from app.engine_loop import EngineFactory, load_engine
from app.load_marker import LoadMarker
from app.model_session import Inspector, ModelPhase, ModelSession, ModelState, inspect
from app.operations import BackgroundRunner
from app.paths import AppPaths
from app.refusals import refusal
from app.settings import Settings, load_settings
from app.settings_keeper import SettingsKeeper
from app.store_session import StoreSession
from app.worker import EngineWorker
from engine.notices import Notice

__all__ = ["ChatController", "ModelPhase", "ModelState"]

T = TypeVar("T")

DELETED_ELSEWHERE = Notice(
    "conversation-gone",
    "This conversation was deleted in another window, so its last answer is not kept.",
    "Copy what you need from the screen; nothing more can be sent here.",
)


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
    inspection_failed = Signal(object, object)  # Path, Notice: the look itself failed, so there is no report
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
        self._answer = AnswerSession(self._worker, self._store, self)
        self._current_id: str | None = None
        self._view = 0  # counts what the chat pane was asked to show; an answer to an older wish is dropped
        self._sending = False  # a message is on its way to disk
        self._closed = False
        self._connect_signals()

    def _connect_signals(self) -> None:
        models, answer = self._models, self._answer
        models.state_changed.connect(self.model_state_changed)
        models.load_failed.connect(self.load_failed)
        models.inspected.connect(self.model_inspected)
        models.inspection_failed.connect(self.inspection_failed)
        models.recent_models_changed.connect(self.recent_models_changed)
        models.notice_raised.connect(self.notice_raised)
        answer.started.connect(self.answer_started)
        answer.extended.connect(self.answer_extended)
        answer.finished.connect(self.answer_finished)
        answer.orphaned.connect(self._on_answer_orphaned)
        answer.active_changed.connect(self.answering_changed)
        answer.active_changed.connect(self._on_answer_active)
        answer.notice_raised.connect(self.notice_raised)

    @property
    def model_state(self) -> ModelState:
        return self._models.state

    @property
    def answering(self) -> bool:
        return self._answer.active

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
        self._answer.close()
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
        self._answer.stop_in(conversation_id)

        def delete(store: ConversationStore) -> list[ConversationSummary]:
            store.delete(conversation_id)
            return store.summaries()

        def on_deleted(summaries: list[ConversationSummary]) -> None:
            self._answer.stop_in(conversation_id)  # a message may have been on its way when the deletion was
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
        reason = refusal(
            text,
            self.model_state,
            last_failure=self._models.last_failure,
            busy=self._sending or self._answer.active,
            closing=self._closed,
        )
        if reason is not None:
            self.send_rejected.emit(text, reason)
            return
        self._sending = True
        sent = _Sent(text, self._current_id, self._view, self._answer.unsaved)
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
        self._answer.stop()

    # The model

    def inspect_model(self, path: Path) -> None:
        """Ends in `model_inspected` or `inspection_failed`, unless another path is asked for meanwhile."""
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
        self.conversation_opened.emit(self._answer.as_it_stands(conversation) if conversation else None)

    def _on_sent(self, sent: _Sent, exchange: Exchange, summaries: list[ConversationSummary]) -> None:
        """The question is on disk: show it and ask for the answer."""
        self._sending = False
        if sent.unsaved:
            self._answer.forget_unsaved(sent.unsaved)
            self.notice_raised.emit(SAVED_AFTER_ALL)
        conversation_id = exchange.summary.id
        self.send_accepted.emit(sent.text)
        if sent.conversation_id is None:
            self._show(Conversation(exchange.summary), sent.view)
        self.conversations_changed.emit(summaries)
        self.message_added.emit(conversation_id, exchange.question)
        if self._closed:
            return  # the row of the answer is found at the next start, and marked as interrupted
        self._answer.begin(exchange, self.model_state.summary)

    def _raise_notice(self, notice: Notice) -> None:
        self.notice_raised.emit(notice)

    @Slot(str, object)
    def _on_answer_orphaned(self, conversation_id: str, message: Message) -> None:
        if conversation_id == self._current_id:  # else it was this window that deleted it
            self.notice_raised.emit(DELETED_ELSEWHERE)
            self.answer_finished.emit(conversation_id, message)

    @Slot(bool)
    def _on_answer_active(self, active: bool) -> None:
        if not active:
            self._ask_store(
                ConversationStore.summaries,
                self.conversations_changed.emit,
                self.notice_raised.emit,
                doing="reading the list of conversations",
            )


@dataclass(frozen=True)
class _Sent:
    """A message on its way to disk, and what was on screen when it was sent."""

    text: str
    conversation_id: str | None
    view: int
    unsaved: tuple[Message, ...]  # answers that go to disk with it
