"""The verbs of the program. Joins the store, the engine's worker and the settings; knows no widget.

Nothing here blocks: the store, inspection and the engine each have their own thread, and every signal is
emitted on the GUI thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, Signal, Slot

from app.answer_queue import Answering, AnswerQueue
from app.answer_session import AnswerSession
from app.attachment_draft import AttachmentDraft
from app.attachments import Attachment
from app.chat_sampling import SamplingChoice
from app.chat_settings import ChatSettings
from app.chat_settings_session import ChatSettingsSession
from app.conversation_session import ConversationSession
from app.conversations import Conversation, ConversationSummary, Exchange, Message
from app.drafts import Drafts
from app.engine_loop import EngineFactory, load_engine
from app.kept_states import KeptStatesSession
from app.load_marker import LoadMarker
from app.making_room import LoadedModel
from app.message_sender import MessageSender, Sending
from app.model_session import Inspector, ModelPhase, ModelSession, ModelState, inspect
from app.notice_keeper import NoticeKeeper
from app.operations import BackgroundRunner
from app.paths import AppPaths, Folders
from app.refusals import ANSWERING
from app.search_session import SearchSession
from app.settings import Settings, load_settings, with_model_sampling
from app.settings_keeper import SettingsKeeper
from app.store_session import StoreSession
from app.transfer_session import TransferSession
from app.trash_session import TrashSession
from app.worker import EngineWorker, SlotTable
from engine.default_folders import default_cache_folder, use_cache_folder
from engine.notices import Notice

__all__ = ["Answering", "ChatController", "ModelPhase", "ModelState", "SlotTable"]

DELETED_ELSEWHERE = Notice(
    "conversation-gone",
    "This conversation was deleted in another window, so its last answer is not kept.",
    "Copy what you need from the screen; nothing more can be sent here.",
)


class ChatController(QObject):
    """What the widgets see."""

    conversations_changed = Signal(list)  # list[ConversationSummary], newest first
    conversation_opened = Signal(object)  # Conversation | None; None: an empty chat with no row on disk yet
    branch_shown = Signal(object)  # Conversation, the one that is open: other versions of its messages
    message_shown = Signal(str)  # message id: it was asked for, and is on what was shown last
    drafts_read = Signal()  # `drafts` knows what the last run left
    message_added = Signal(str, object)  # conversation id, Message: already on disk
    answer_waiting = Signal(str, object)  # conversation id, Message: WAITING; its start or its end follows
    answer_started = Signal(str, object)  # conversation id, Message: WRITING, empty
    messages_left_out = Signal(str, int)  # conversation id, how many of its oldest the model doesn't read
    answer_prefilled = Signal(str, object)  # conversation id, PrefillStats
    answer_extended = Signal(str, str, object)  # conversation id, message id, AnswerDelta
    answer_finished = Signal(str, object)  # conversation id, Message
    answering_changed = Signal(bool)  # an answer is being written now, in any conversation
    answers_changed = Signal(object)  # Answering: where one is being written, and where they wait
    chat_settings_changed = Signal(object)  # ChatSettings of the conversation that is open
    conversations_moved = Signal(bool)  # to another folder; True: there were conversations there already
    slots_changed = Signal(object)  # SlotTable
    engine_watched = Signal(object)  # SlotTable: in the middle of an answer, see `watch_engine`
    model_state_changed = Signal(object)  # ModelState
    load_failed = Signal(object, object)  # Path, Notice; model_state is that of before. Not for a cancel
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
        self._paths = paths.with_chats_in(loaded.settings.chats_folder)
        use_cache_folder(loaded.settings.cache_folder)
        self._store = StoreSession(
            self._paths.conversations_file,
            runner=self._disk,
            on_notice=self._raise_notice,
            is_chosen=loaded.settings.chats_folder is not None,
        )
        self._settings = SettingsKeeper(
            paths.settings_file, loaded.settings, runner=self._disk, on_error=self._raise_notice
        )
        self._worker = EngineWorker(
            engine_factory=engine_factory, states_folder=paths.states_folder, parent=self
        )
        self._models = self._new_models(paths, inspector)
        self._answer = AnswerSession(self._worker, self._store, self._settings, self)
        self._queue = AnswerQueue(self._answer, self)
        self._sender = MessageSender(self._store, self._answer, self._queue, models=self._models, parent=self)
        self._conversations = ConversationSession(
            self._store,
            self._settings,
            self._worker,
            answer=self._answer,
            queue=self._queue,
            parent=self,
        )
        self._chat_settings = ChatSettingsSession(
            self._store, self._settings, conversations=self._conversations, models=self._models, parent=self
        )
        self.attachments = AttachmentDraft(lambda: self._worker.encode, self)
        self.kept_states = KeptStatesSession(
            self._worker, self._settings, folder=paths.states_folder, disk=self._disk, parent=self
        )
        self.slots = SlotTable()
        self._closed = False
        self.past_notices = NoticeKeeper(
            self._paths.notices_file, runner=self._disk, on_notice=self._raise_notice
        )
        self.trash = TrashSession(self._conversations, self._queue, self)
        self.drafts = Drafts(self._store, self._raise_notice, self)
        self.search = SearchSession(self._store.current_path, self)
        self.transfer = TransferSession(self._store, self._store.current_path, self)
        self._connect_signals()

    def _new_models(self, paths: AppPaths, inspector: Inspector) -> ModelSession:
        return ModelSession(
            self._worker,
            self._settings,
            states_folder=paths.states_folder,
            marker=LoadMarker(paths.load_marker_file),
            disk=self._disk,
            inspector=inspector,
            parent=self,
        )

    def _connect_signals(self) -> None:
        models, answer, queue, sender = self._models, self._answer, self._queue, self._sender
        conversations = self._conversations
        conversations.changed.connect(self.conversations_changed)
        conversations.opened.connect(self.conversation_opened)
        conversations.branch_shown.connect(self.branch_shown)
        conversations.message_shown.connect(self.message_shown)
        conversations.notice_raised.connect(self.notice_raised)
        conversations.changed.connect(self.search.refresh)
        self.search.failed.connect(self.notice_raised)
        self.conversations_moved.connect(self.search.reopen)
        self.transfer.imported.connect(self._on_imported)
        self.transfer.notice_raised.connect(self.notice_raised)
        models.state_changed.connect(self.model_state_changed)
        models.state_changed.connect(queue.set_model)
        models.load_failed.connect(self.load_failed)
        models.inspected.connect(self.model_inspected)
        models.inspection_failed.connect(self.inspection_failed)
        models.recent_models_changed.connect(self.recent_models_changed)
        models.notice_raised.connect(self.notice_raised)
        sender.saved.connect(self._on_sent)
        sender.refused.connect(self._on_send_refused)
        sender.notice_raised.connect(self.notice_raised)
        queue.waiting.connect(self.answer_waiting)
        queue.changed.connect(self.answers_changed)
        answer.started.connect(self.answer_started)
        answer.left_out.connect(self.messages_left_out)
        answer.prefilled.connect(self.answer_prefilled)
        answer.extended.connect(self.answer_extended)
        answer.finished.connect(self.answer_finished)
        answer.finished.connect(conversations.note_answer)
        answer.orphaned.connect(self._on_answer_orphaned)
        answer.active_changed.connect(self.answering_changed)
        answer.active_changed.connect(self._on_answer_active)
        answer.notice_raised.connect(self.notice_raised)
        models.state_changed.connect(self.attachments.count_anew)
        self._chat_settings.changed.connect(self.chat_settings_changed)
        self._chat_settings.notice_raised.connect(self.notice_raised)
        self.kept_states.notice_raised.connect(self.notice_raised)
        self._worker.slots_changed.connect(self._on_slots_changed)
        self._worker.engine_watched.connect(self.engine_watched)

    @property
    def model_state(self) -> ModelState:
        return self._models.state

    @property
    def loaded_model(self) -> LoadedModel | None:
        """With the memory that it has; None also while that isn't known."""
        return self._models.loaded

    @property
    def answering(self) -> bool:
        return self._answer.active

    @property
    def answers(self) -> Answering:
        return self._queue.answering

    @property
    def current_conversation_id(self) -> str | None:
        """None: a new, empty chat."""
        return self._conversations.current_id

    @property
    def settings(self) -> Settings:
        return self._settings.current

    @property
    def chat_settings(self) -> ChatSettings:
        """Of the conversation that is open, or of the new chat."""
        return self._chat_settings.current

    @property
    def remembered_sampling(self) -> SamplingChoice:
        """How new chats with the model that is loaded begin to draw."""
        return self._chat_settings.remembered

    # Beginning and end

    def start(self, model_path: Path | None = None) -> None:
        """Open the store, list the conversations, open the last one, and load `model_path` or else the
        last model.
        """
        self.past_notices.read()
        for notice in self._early_notices:
            self.notice_raised.emit(notice)
        self.recent_models_changed.emit(list(self.settings.recent_models))
        self.model_state_changed.emit(self.model_state)
        self.drafts.read(self.drafts_read.emit)
        self._conversations.read(lambda: self.kept_states.remove_leftovers(self._store))
        if model_path is not None:
            self.load_model(model_path)
        else:
            self._models.load_last_model()

    def tell_again(self) -> None:
        """How things stand, for a window that has just been built while the program runs."""
        self.model_state_changed.emit(self.model_state)
        self.slots_changed.emit(self.slots)
        self.answers_changed.emit(self.answers)
        self.trash.changed.emit(self.trash.last)
        self._conversations.show_again()

    def shutdown(self) -> bool:
        """Stop what runs and leave everything on disk. False: a thread did not end within its time, and Qt
        would abort the process if it were torn down in the usual way, so it has to end by `os._exit`.
        """
        if self._closed:
            return True
        self._closed = True
        self.trash.finish()
        self.kept_states.close()
        self.drafts.close()
        search_ended = self.search.shutdown()
        transfer_ended = self.transfer.shutdown()
        self._conversations.close()
        self._sender.close()
        self._queue.close()
        engine_ended = self._worker.shutdown()  # the end of a stopped answer arrives in here
        self._answer.close()
        inspection_ended = self._models.shutdown()
        files_ended = self.attachments.shutdown()
        self._settings.close()
        self.past_notices.close()
        self._store.close(self.notice_raised.emit)
        disk_ended = self._disk.shutdown()
        ended = (engine_ended, inspection_ended, files_ended, search_ended, transfer_ended, disk_ended)
        return all(ended)

    # Conversations

    def new_conversation(self) -> None:
        """Show an empty chat; its row on disk is made together with its first message."""
        self._conversations.begin()

    def open_conversation(self, conversation_id: str) -> None:
        self._conversations.open(conversation_id)

    def rename_conversation(self, conversation_id: str, title: str) -> None:
        self._conversations.rename(conversation_id, title)

    def pin_conversations(self, conversation_ids: Sequence[str], pinned: bool) -> None:
        """Ends in `conversations_changed`, as `tag_conversations` does."""
        self._conversations.pin(conversation_ids, pinned)

    def tag_conversations(self, conversation_ids: Sequence[str], name: str, *, on: bool) -> None:
        """Give them a tag, or take it away."""
        self._conversations.tag(conversation_ids, name, on=on)

    def open_message(self, message_id: str) -> None:
        """Open its conversation with the branch that it is on. Ends in `message_shown`, or in a notice."""
        self._conversations.open_message(message_id)

    def fork_conversation(self, message_id: str) -> None:
        """Open a new conversation that begins with a copy of the messages up to this one."""
        self._conversations.fork(message_id)

    def delete_message(self, message_id: str) -> None:
        """Delete a message and all that ever followed it. Ends in `branch_shown`."""
        self._conversations.delete_message(message_id)

    def select_version(self, message_id: str, delta: int) -> None:
        """Show the version of a message that comes `delta` after (before, if negative) the one that is shown,
        with what followed it. Ends in `branch_shown`.
        """
        self._conversations.select_version(message_id, delta)

    # Messages

    def send_message(self, text: str, attachments: Sequence[Attachment] = ()) -> None:
        """Ends in exactly one of `send_accepted` and `send_rejected`. While an answer is being written in
        another conversation, the answer to this one waits.

        In a new chat the order is: send_accepted, conversation_opened (the new row, no messages yet),
        message_added, answer_started. In an existing one conversation_opened is left out.
        """
        self._sender.send(
            Sending(text, *self._here, attachments=tuple(attachments), settings=self.chat_settings)
        )

    def edit_message(self, message_id: str, text: str, attachments: Sequence[Attachment] = ()) -> None:
        """Send another version of a question of the open conversation; the old one is kept beside it with
        what followed. As `send_message`, with branch_shown (up to the question) in place of message_added.
        """
        self._sender.send(Sending(text, *self._here, message_id=message_id, attachments=tuple(attachments)))

    def regenerate_answer(self, message_id: str) -> None:
        """Ask for another version of an answer of the open conversation. Ends in branch_shown (up to its
        question) and answer_started, or in a notice.
        """
        self._sender.send(Sending("", *self._here, message_id=message_id, anew=True))

    def stop_answer(self) -> None:
        """End the answer that is being written or waits in the open conversation; its text so far is kept."""
        self._queue.stop_in(self.current_conversation_id)

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
        """Answers that are being written or wait are stopped first."""
        self._queue.stop_all()
        self._models.unload()

    def update_settings(self, **changes: Any) -> None:
        """Change fields of `settings` by name; the file follows on the disk's thread."""
        self._settings.change(**changes)

    def watch_engine(self, watched: bool) -> None:
        """Whether somebody sees the figures of an answer that is being written."""
        self._worker.watch(watched)

    def look_at_slots(self) -> None:
        """Ends in `slots_changed`, once no answer is being written: other programs may have taken memory."""
        if not self._closed:
            self._worker.look()

    def free_slots(self) -> None:
        """Other chats leave the card and memory; their files stay. Ends in `slots_changed`."""
        if not self._closed:
            self._worker.free_slots()

    # Folders

    @property
    def folders(self) -> Folders:
        return Folders(
            models=self.settings.models_folder or Path.home(),
            chats=self._store.folder,
            cache=self.settings.cache_folder or default_cache_folder(),
            settings=self._paths.config_folder,
            log=self._paths.log_folder,
        )

    def move_conversations(self, folder: Path | None) -> None:
        """Go on in this folder (None: the program's own), with the conversations that are there, or else with
        a copy of all. Ends in `conversations_moved` and `conversation_opened`, or in a notice.
        """
        if self._closed:
            return
        answers = self.answers
        if answers.writing is not None or answers.waiting or self._answer.unsaved:
            self.notice_raised.emit(ANSWERING)
            return

        def on_moved(found: bool) -> None:
            self.update_settings(chats_folder=folder)
            self.conversations_moved.emit(found)
            self.drafts.read(self.drafts_read.emit)
            self._conversations.read(lambda: None)

        target = folder or self._paths.data_folder
        self._store.move(target, on_moved, self.notice_raised.emit)

    # What is chosen for a conversation

    def change_chat_settings(self, settings: ChatSettings) -> None:
        """For the conversation that is open, from its next answer on. Ends in `chat_settings_changed`."""
        if not self._closed:
            self._chat_settings.change(settings)

    def remember_sampling(self, choice: SamplingChoice) -> None:
        """New chats with the model that is loaded begin with this."""
        summary = self.model_state.summary
        if summary is not None:
            self.update_settings(model_sampling=with_model_sampling(self.settings, summary.path, choice))

    # Inside

    @property
    def _here(self) -> tuple[str | None, int]:
        """What is on the screen: a conversation, and which wish it was."""
        return self._conversations.current_id, self._conversations.view

    @Slot(object, object, object)
    def _on_sent(self, sending: Sending, exchange: Exchange, summaries: list[ConversationSummary]) -> None:
        """The question is on disk: show it; its answer comes after this."""
        if not sending.anew:
            self.send_accepted.emit(sending.text)
        if sending.message_id:
            self.conversations_changed.emit(summaries)
            self._conversations.show_branch(
                Conversation(exchange.summary, exchange.history, exchange.settings)
            )
            return
        if sending.conversation_id is None:
            self._conversations.show(Conversation(exchange.summary, settings=exchange.settings), sending.view)
        self.conversations_changed.emit(summaries)
        self.message_added.emit(exchange.summary.id, exchange.question)

    @Slot(object, object)
    def _on_send_refused(self, sending: Sending, notice: Notice) -> None:
        if sending.anew:
            self.notice_raised.emit(notice)
        else:
            self.send_rejected.emit(sending.text, notice)

    @Slot(object)
    def _on_slots_changed(self, table: SlotTable) -> None:
        self.slots = table
        self.slots_changed.emit(table)

    @Slot(list, list)
    def _on_imported(self, _ids: list[str], summaries: list[ConversationSummary]) -> None:
        self._conversations.changed.emit(summaries)

    def _raise_notice(self, notice: Notice) -> None:
        self.notice_raised.emit(notice)

    @Slot(str, object)
    def _on_answer_orphaned(self, conversation_id: str, message: Message) -> None:
        self._worker.forget(conversation_id)  # whichever window deleted it: nothing of it is kept
        if conversation_id == self.current_conversation_id:  # else it was this window that deleted it
            self.notice_raised.emit(DELETED_ELSEWHERE)
            self.answer_finished.emit(conversation_id, message)

    @Slot(bool)
    def _on_answer_active(self, active: bool) -> None:
        if not active:
            self._conversations.list_anew()
