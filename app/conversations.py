"""Conversations on disk: the records the program shows, and the store that keeps them in SQLite.

No Qt here. A store belongs to the thread that opened it; the controller gives it a thread of its own.
Every method that changes something returns only after the change is on disk.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from app.answer_stats import AnswerStats
from app.archive import ArchivedConversation
from app.attachments import Attachment
from app.chat_settings import ChatSettings
from app.conversation_archive import insert_archived
from app.conversation_database import (
    BUSY_TIMEOUT_MS,
    StoreError,
    open_database,
    store_error,
    transaction,
    unavailable,
)
from app.conversation_marks import ConversationMarks
from app.conversation_records import (
    Conversation,
    ConversationSummary,
    Exchange,
    Message,
    MessageStatus,
    Role,
    storable,
)
from app.conversation_rows import ConversationRows
from app.draft_files import DraftFiles
from app.message_tree import MessageTree
from app.titles import MAX_TITLE_LENGTH, branch_title, one_line
from app.transfer_job import OnStep, unwatched
from app.writers import Writers
from engine.durability import sync_folder
from engine.notices import Notice

__all__ = [
    "AnswerStats",
    "Conversation",
    "ConversationStore",
    "ConversationSummary",
    "Exchange",
    "Message",
    "MessageStatus",
    "Role",
    "StoreError",
    "storable",
]


class ConversationStore:
    """The only thing that touches the file. Every method may raise StoreError; then nothing was changed."""

    def __init__(self, path: Path, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> None:
        """Open or make the file. An answer whose writer is gone becomes INTERRUPTED."""
        self.path = path
        opened = open_database(path, busy_timeout_ms=busy_timeout_ms)
        self._connection = opened.connection
        self.read_only = opened.read_only
        self._writers: Writers | None = None  # none where nothing can be written
        self.notices: tuple[Notice, ...] = (opened.notice,) if opened.notice else ()
        try:
            if not self.read_only:
                self._writers = _writers_beside(path)
            writer = self._writers.own if self._writers else ""
            self._tree = MessageTree(opened.connection, writer=writer)
            self._rows = ConversationRows(opened.connection, self._tree, read_only=self.read_only)
            self.marks = ConversationMarks(opened.connection, writer=writer, changing=self._changing)
            self._interrupt_abandoned(doing="opening the conversations")
            self._finish_deletions()
        except StoreError:
            self.close()
            raise

    def close(self) -> None:
        """An answer that is still WRITING then is INTERRUPTED for whoever opens the file next."""
        if self._writers is not None:
            self._writers.close()
        self._connection.close()

    def copy_to(self, path: Path) -> None:
        """Write everything into a new file, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{uuid4().hex[:12]}.tmp")
        try:
            with self._reading("copying the conversations"):
                copy = sqlite3.connect(part)
                try:
                    self._connection.backup(copy)
                finally:
                    copy.close()
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
        sync_folder(path.parent)

    # Reading

    def summaries(self) -> list[ConversationSummary]:
        """All conversations, the one with the newest message first."""
        with self._reading("reading the list of conversations"):
            return self._rows.summaries()

    def all_ids(self) -> list[str]:
        """Of all conversations, those too whose deletion can still be undone."""
        with self._reading("reading the list of conversations"):
            return [row[0] for row in self._connection.execute("SELECT id FROM conversations").fetchall()]

    def drafts(self) -> dict[str, str]:
        """What was written and not sent, by conversation; "" is the new chat."""
        with self._reading("reading what was being written"):
            return dict(
                self._connection.execute(
                    "SELECT conversation_id, text FROM drafts WHERE text != ''"
                ).fetchall()
            )

    def draft_files(self) -> dict[str, DraftFiles]:
        """Likewise of the files that stand there."""
        with self._reading("reading which files were to be sent"):
            rows = self._connection.execute(
                "SELECT conversation_id, files FROM drafts WHERE files IS NOT NULL"
            ).fetchall()
        return {key: DraftFiles.from_json(files) for key, files in rows}

    def conversation(self, conversation_id: str) -> Conversation:
        doing = "opening the conversation"
        with self._reading(doing):
            conversation = self._rows.conversation(conversation_id)
        if all(message.status is not MessageStatus.ELSEWHERE for message in conversation.messages):
            return conversation
        self._interrupt_abandoned(doing=doing)  # that window may have ended meanwhile
        with self._reading(doing):
            return replace(conversation, messages=self._rows.messages(conversation_id))

    # Conversations

    def create(self, title: str = "", *, model_path: Path | None = None) -> ConversationSummary:
        """A new conversation. With no title it is named after its first user message."""
        with self._changing("making a conversation"):
            return self._rows.summary(self._rows.insert(title, model_path))

    def rename(self, conversation_id: str, title: str) -> ConversationSummary:
        title = one_line(title)[:MAX_TITLE_LENGTH]
        if not title:
            raise StoreError("empty-title", "A conversation needs a name.", "Type a name, then confirm it.")
        with self._changing("renaming the conversation"):
            self._rows.summary(conversation_id)
            self._connection.execute(
                "UPDATE conversations SET title = ?, renamed = 1 WHERE id = ?", (title, conversation_id)
            )
            return self._rows.summary(conversation_id)

    def fork(self, message_id: str) -> Conversation:
        """A new conversation that begins with copies of the messages up to this one."""
        with self._changing("branching the conversation"):
            original = self._rows.summary(self._tree.message(message_id).conversation_id)
            titles = self._connection.execute("SELECT title FROM conversations").fetchall()
            title = branch_title(original.title, taken={title for (title,) in titles})
            conversation_id = self._rows.insert(title, original.model_path)
            self._tree.copy_path(message_id, conversation_id)
            self._connection.execute(
                "UPDATE conversations SET settings = (SELECT settings FROM conversations WHERE id = ?)"
                " WHERE id = ?",
                (original.id, conversation_id),
            )
            self._rows.touch(conversation_id)
            return self._rows.conversation(conversation_id)

    def select_version(self, message_id: str, delta: int) -> Conversation:
        """Show another version of a message and what followed it: `delta` further on, as far as there are."""
        with self._changing("showing another version"):
            self._tree.show_version(message_id, delta)
            conversation_id = self._tree.message(message_id).conversation_id
            return self._rows.conversation(conversation_id)

    def delete_message(self, message_id: str) -> Conversation:
        """Delete a message with all that ever followed it; gives what is shown then."""
        with self._changing("deleting the message"):
            conversation_id = self._tree.message(message_id).conversation_id
            self._tree.delete(message_id)
            return self._rows.conversation(conversation_id)

    def reveal(self, message_id: str) -> Conversation:
        """Show the branch that a message is on; gives what is shown then."""
        with self._reading("opening the message"):
            conversation_id = self._tree.message(message_id).conversation_id
            shown = self._rows.messages(conversation_id)
        if self.read_only or any(message.id == message_id for message in shown):
            return self.conversation(conversation_id)
        with self._changing("opening the message"):
            self._tree.reveal(message_id)
            return self._rows.conversation(conversation_id)

    def add_archived(
        self, conversations: Sequence[ArchivedConversation], on_step: OnStep = unwatched
    ) -> list[str]:
        """Write conversations of a file, all or none; gives their ids. They stand where their times put
        them. Nothing is written when `on_step` raises.
        """
        ids: list[str] = []
        with self._changing("saving the imported conversations"):
            for number, conversation in enumerate(conversations):
                on_step(number)
                ids.append(insert_archived(self._connection, conversation))
        return ids

    def change_settings(self, conversation_id: str, settings: ChatSettings) -> None:
        with self._changing("saving what is chosen for the conversation"):
            self._rows.summary(conversation_id)  # raises when it is gone
            self._rows.save_settings(conversation_id, settings)

    # Messages

    def begin_exchange(
        self,
        conversation_id: str | None,
        text: str,
        *,
        model_path: Path | None = None,
        attachments: Sequence[Attachment] = (),
        settings: ChatSettings = ChatSettings(),  # noqa: B008  (frozen)
    ) -> Exchange:
        """Save a question and the empty row of its answer in one step; None makes the conversation as
        well, with these settings.
        """
        with self._changing("saving the message"):
            if conversation_id is None:
                conversation_id = self._rows.insert("", model_path)
                self._rows.save_settings(conversation_id, settings)
            question_id = self._rows.append(
                conversation_id, "user", text, MessageStatus.COMPLETE, attachments
            )
            return self._rows.begin_answer(question_id, model_path)

    def begin_edit(
        self,
        message_id: str,
        text: str,
        *,
        model_path: Path | None = None,
        attachments: Sequence[Attachment] = (),
    ) -> Exchange:
        """As `begin_exchange`, with a new version of a question that was asked before."""
        with self._changing("saving the message"):
            message = self._tree.message(message_id)
            question_id = self._tree.insert(
                message.conversation_id,
                message.role,
                storable(text),
                MessageStatus.COMPLETE,
                parent_id=self._tree.parent_of(message_id),
                attachments=attachments,
            )
            return self._rows.begin_answer(question_id, model_path)

    def begin_regeneration(self, message_id: str, *, model_path: Path | None = None) -> Exchange:
        """The empty row of a new version of an answer."""
        with self._changing("saving the message"):
            self._tree.message(message_id)
            question_id = self._tree.parent_of(message_id)
            if question_id is None:
                raise StoreError(
                    "no-question",
                    "This answer begins its conversation, so there is nothing to answer anew.",
                    "Write a message instead.",
                )
            return self._rows.begin_answer(question_id, model_path)

    def add_message(
        self,
        conversation_id: str,
        role: Role,
        text: str,
        *,
        status: MessageStatus = MessageStatus.COMPLETE,
    ) -> Message:
        with self._changing("saving the message"):
            return self._tree.message(self._rows.append(conversation_id, role, text, status))

    def extend_answer(self, message_id: str, *, text: str, thinking: str = "") -> bool:
        """Write how far a WRITING answer has come (the whole text so far, so that a failed call can simply be
        made again). False: its conversation has been deleted, and nothing was written.
        """
        with self._changing("saving the answer"):
            cursor = self._connection.execute(
                "UPDATE messages SET text = ?, thinking = ? WHERE id = ?",
                (storable(text), storable(thinking), message_id),
            )
            return cursor.rowcount == 1

    def finish_answer(
        self,
        message_id: str,
        *,
        text: str,
        thinking: str = "",
        status: MessageStatus,
        stats: AnswerStats | None = None,
    ) -> Message | None:
        """Write the end of an answer. None: its conversation has been deleted, and nothing was written."""
        with self._changing("saving the answer"):
            cursor = self._connection.execute(
                "UPDATE messages SET text = ?, thinking = ?, status = ?, stats = ?, writer = NULL"
                " WHERE id = ?",
                (storable(text), storable(thinking), status, stats.as_json() if stats else None, message_id),
            )
            if cursor.rowcount == 0:
                return None
            message = self._tree.message(message_id)
            self._rows.touch(message.conversation_id)
            return message

    def _interrupt_abandoned(self, *, doing: str) -> None:
        """Ends the answers that nobody writes any more."""
        if self._writers is None:
            return
        with self._changing(doing):
            rows = self._connection.execute(
                "SELECT DISTINCT writer FROM messages WHERE status = ?", (MessageStatus.WRITING,)
            ).fetchall()
            for (writer,) in rows:
                if not self._writers.at_work(writer):
                    self._connection.execute(
                        "UPDATE messages SET status = ?, writer = NULL WHERE status = ? AND writer IS ?",
                        (MessageStatus.INTERRUPTED, MessageStatus.WRITING, writer),
                    )

    def _finish_deletions(self) -> None:
        """What was deleted in a window that has ended can't be undone any more."""
        if self._writers is None:
            return
        for writer, ids in self.marks.waiting_deletions().items():
            if not self._writers.at_work(writer):
                self.marks.delete(ids)

    @contextmanager
    def _changing(self, doing: str) -> Iterator[None]:
        if self.read_only:
            begun = doing[:1].upper() + doing[1:]
            raise StoreError(
                "store-read-only",
                f"{begun} failed: the conversations in {self.path} can only be read.",
                self.notices[0].hint,
            )
        with self._reading(doing), transaction(self._connection):
            yield

    @contextmanager
    def _reading(self, doing: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise store_error(error, self.path, doing=doing) from error


def _writers_beside(path: Path) -> Writers:
    try:
        return Writers(path)
    except OSError as error:
        raise unavailable(path, error) from error
