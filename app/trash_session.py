"""Deleting conversations so that it can be undone: hidden at once, deleted when the undo goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QObject, Signal

from app.answer_queue import AnswerQueue
from app.conversation_session import ConversationSession
from app.conversations import ConversationStore, ConversationSummary


@dataclass(frozen=True)
class Deletion:
    """What was deleted together and can be brought back together."""

    ids: tuple[str, ...]
    reopens: str | None = None  # which of them was open


class TrashSession(QObject):
    """At most one deletion can be undone: the next one ends it, and so does the end of the program."""

    changed = Signal(object)  # Deletion that can be undone now, or None

    def __init__(
        self, conversations: ConversationSession, queue: AnswerQueue, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._conversations = conversations
        self._queue = queue
        self._last: Deletion | None = None

    @property
    def last(self) -> Deletion | None:
        return self._last

    def delete(self, conversation_ids: Sequence[str]) -> None:
        """Answers that are being written or wait in them are stopped; their text so far is kept, too."""
        ids = tuple(dict.fromkeys(conversation_ids))
        if not ids:
            return
        for conversation_id in ids:
            self._queue.stop_in(conversation_id)

        def hide(store: ConversationStore) -> list[ConversationSummary]:
            store.marks.set_deleted(ids)
            return store.summaries()

        def on_hidden(summaries: list[ConversationSummary]) -> None:
            for conversation_id in ids:  # a message may have been on its way when the deletion was
                self._queue.stop_in(conversation_id)
            self.finish()
            current = self._conversations.current_id
            self._last = Deletion(ids, current if current in ids else None)
            self._conversations.changed.emit(summaries)
            self._conversations.leave(ids)
            self.changed.emit(self._last)

        self._conversations.ask_store(hide, on_hidden, doing="deleting the conversations")

    def undo(self) -> None:
        """Bring back what was deleted last, and open again what was open."""
        deletion, self._last = self._last, None
        if deletion is None:
            return
        self.changed.emit(None)

        def restore(store: ConversationStore) -> list[ConversationSummary]:
            store.marks.restore(deletion.ids)
            return store.summaries()

        def on_restored(summaries: list[ConversationSummary]) -> None:
            self._conversations.changed.emit(summaries)
            if deletion.reopens is not None and self._conversations.current_id is None:
                self._conversations.open(deletion.reopens)

        self._conversations.ask_store(restore, on_restored, doing="bringing the conversations back")

    def finish(self) -> None:
        """The undo is gone: what was deleted last is deleted for good."""
        deletion, self._last = self._last, None
        if deletion is not None:
            self.changed.emit(None)
            self._conversations.delete_for_good(deletion.ids)
