"""Which conversation is open, and what is done to conversations as a whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from PySide6.QtCore import QObject, Signal, Slot

from app.answer import save_ends
from app.answer_queue import AnswerQueue
from app.answer_session import AnswerSession
from app.conversations import Conversation, ConversationStore, ConversationSummary, Message
from app.prompt import with_instructions
from app.refusals import ANSWERING
from app.settings_keeper import SettingsKeeper
from app.store_session import StoreSession
from app.worker import EngineWorker
from engine.notices import Notice

T = TypeVar("T")


class ConversationSession(QObject):
    """Everything ends in signals, but for what is asked for after `close`.

    view: counts what the chat pane was asked to show; an answer to an older wish is dropped.
    """

    changed = Signal(list)  # list[ConversationSummary], newest first
    opened = Signal(object)  # Conversation | None; None: an empty chat with no row on disk yet
    branch_shown = Signal(object)  # Conversation, the one that is open: other versions of its messages
    message_shown = Signal(str)  # its id: this one was asked for
    notice_raised = Signal(object)

    def __init__(
        self,
        store: StoreSession,
        settings: SettingsKeeper,
        worker: EngineWorker,
        *,
        answer: AnswerSession,
        queue: AnswerQueue,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._store = store
        self._settings = settings
        self._worker = worker
        self._answer = answer
        self._queue = queue
        self._closed = False
        self.current_id: str | None = None  # None: a new, empty chat
        self.view = 0

    def close(self) -> None:
        self._closed = True

    def read(self, then: Callable[[], None]) -> None:
        """List the conversations, open the last one, and do `then`."""
        view, last_id = self.view, self._settings.current.last_conversation_id

        def read(store: ConversationStore) -> tuple[list[ConversationSummary], Conversation | None]:
            summaries = store.summaries()
            known = any(summary.id == last_id for summary in summaries)
            return summaries, store.conversation(last_id) if last_id and known else None

        def on_read(found: tuple[list[ConversationSummary], Conversation | None]) -> None:
            summaries, conversation = found
            self.changed.emit(summaries)
            self.show(conversation, view)
            if not self._closed:
                then()

        def on_error(notice: Notice) -> None:
            self.notice_raised.emit(notice)
            self.changed.emit([])
            self.show(None, view)

        self._ask_store(read, on_read, on_error, doing="reading the conversations")

    def list_anew(self) -> None:
        self._ask_store(
            ConversationStore.summaries,
            self.changed.emit,
            self.notice_raised.emit,
            doing="reading the list of conversations",
        )

    def show_again(self) -> None:
        """For a window that has just been built: the list, and what is open."""
        self.list_anew()
        if self.current_id is None:
            self.opened.emit(None)  # not `begin`: a first message may be on its way to this one
        else:
            self.open(self.current_id)

    def begin(self) -> None:
        """Show an empty chat; its row on disk is made together with its first message."""
        self.view += 1
        self.show(None, self.view)

    def open(self, conversation_id: str) -> None:
        self.view += 1
        view = self.view

        def on_error(notice: Notice) -> None:
            if view == self.view:
                self.notice_raised.emit(notice)

        self._ask_store(
            lambda store: store.conversation(conversation_id),
            lambda conversation: self.show(conversation, view),
            on_error,
            doing="opening the conversation",
        )

    def rename(self, conversation_id: str, title: str) -> None:
        def rename(store: ConversationStore) -> list[ConversationSummary]:
            store.rename(conversation_id, title)
            return store.summaries()

        self._ask_store(rename, self.changed.emit, self.notice_raised.emit, doing="renaming the conversation")

    def delete_for_good(self, conversation_ids: Sequence[str]) -> None:
        """The end of conversations that are hidden. What the engine keeps of them goes before the messages
        do, so that a program which ends just now leaves none of it behind. Forks have their share by then:
        they were on disk before the conversation was hidden, or failed.
        """
        for conversation_id in conversation_ids:
            self._worker.forget(conversation_id)

        def on_deleted(_: None) -> None:
            for conversation_id in conversation_ids:
                self._worker.forget(conversation_id)

        self.ask_store(
            lambda store: store.marks.delete(conversation_ids), on_deleted, doing="deleting the conversations"
        )

    def leave(self, conversation_ids: Collection[str]) -> None:
        """Show a new chat if one of these is open."""
        if self.current_id in conversation_ids:
            self.view += 1
            self.show(None, self.view)

    def pin(self, conversation_ids: Sequence[str], pinned: bool) -> None:
        self._mark(
            lambda store: store.marks.set_pinned(conversation_ids, pinned), doing="pinning the conversation"
        )

    def tag(self, conversation_ids: Sequence[str], name: str, *, on: bool) -> None:
        self._mark(lambda store: store.marks.tag(conversation_ids, name, on=on), doing="changing the tags")

    @Slot(str, object)
    def note_answer(self, conversation_id: str, _message: Message) -> None:
        """An answer has ended: unread, if another conversation is open."""
        if conversation_id != self.current_id:
            self._mark_unread(conversation_id, True)

    def open_message(self, message_id: str) -> None:
        """Open the conversation of a message on the branch that the message is on. `message_shown` comes
        behind `opened`, or behind `branch_shown` where the conversation is open already.
        """
        self.view += 1
        view = self.view

        def on_opened(conversation: Conversation) -> None:
            if view != self.view:
                return
            if conversation.summary.id == self.current_id:
                self.show_branch(conversation)
            else:
                self.show(conversation, view)
            self.message_shown.emit(message_id)

        self.ask_store(lambda store: store.reveal(message_id), on_opened, doing="opening the message")

    def delete_message(self, message_id: str) -> None:
        """Delete a message and all that ever followed it. Ends in `branch_shown`. What the engine keeps of
        the conversation goes as well, for it has the words in it; the next answer reads what is left anew.
        """

        def on_deleted(conversation: Conversation) -> None:
            self._worker.forget(conversation.summary.id)
            self.show_branch(conversation)

        self._ask_store(
            lambda store: store.delete_message(message_id),
            on_deleted,
            self.notice_raised.emit,
            doing="deleting the message",
        )

    def fork(self, message_id: str) -> None:
        """Open a new conversation that begins with a copy of the messages up to this one."""
        if self._queue.is_open(message_id):
            self.notice_raised.emit(ANSWERING)
            return
        self.view += 1
        view, unsaved = self.view, self._answer.unsaved

        def fork(store: ConversationStore) -> tuple[Conversation, list[ConversationSummary]]:
            save_ends(store, unsaved)  # they may be among what is copied
            return store.fork(message_id), store.summaries()

        def on_forked(forked: tuple[Conversation, list[ConversationSummary]]) -> None:
            conversation, summaries = forked
            self._answer.forget_unsaved(unsaved)
            # Before anything is done to the original: then its deletion costs the branch nothing.
            policy = self._settings.current.context_policy
            read = with_instructions(conversation.messages, conversation.settings.instructions)
            self._worker.fork(conversation.summary.id, read, policy)
            self.changed.emit(summaries)
            self.show(conversation, view)

        self.ask_store(fork, on_forked, doing="branching the conversation")

    def select_version(self, message_id: str, delta: int) -> None:
        """Show the version of a message that comes `delta` after (before, if negative) the one that is shown,
        with what followed it. Ends in `branch_shown`.
        """
        self._ask_store(
            lambda store: store.select_version(message_id, delta),
            self.show_branch,
            self.notice_raised.emit,
            doing="showing another version",
        )

    def show(self, conversation: Conversation | None, view: int) -> None:
        """Make `conversation` the current one, unless something else was asked for after `view`."""
        if view != self.view:
            return
        self.current_id = conversation.summary.id if conversation else None
        self._settings.change(last_conversation_id=self.current_id)
        self.opened.emit(self._queue.as_it_stands(conversation) if conversation else None)
        if conversation is not None and conversation.summary.unread:
            self._mark_unread(conversation.summary.id, False)

    def show_branch(self, conversation: Conversation) -> None:
        if conversation.summary.id == self.current_id:
            self.branch_shown.emit(self._queue.as_it_stands(conversation))

    def ask_store(
        self, function: Callable[[ConversationStore], T], on_success: Callable[[T], None], *, doing: str
    ) -> None:
        """A failure becomes a notice."""
        self._ask_store(function, on_success, self.notice_raised.emit, doing=doing)

    def _mark(self, function: Callable[[ConversationStore], None], *, doing: str) -> None:
        def mark(store: ConversationStore) -> list[ConversationSummary]:
            function(store)
            return store.summaries()

        self.ask_store(mark, self.changed.emit, doing=doing)

    def _mark_unread(self, conversation_id: str, unread: bool) -> None:
        def mark(store: ConversationStore) -> list[ConversationSummary]:
            if not store.read_only:  # what was read there can't be written down
                store.marks.set_unread(conversation_id, unread)
            return store.summaries()

        self.ask_store(mark, self.changed.emit, doing="marking the conversation")

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
