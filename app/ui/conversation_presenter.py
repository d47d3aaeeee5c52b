"""Joins the list on the left with the controller: search, deletions with undo, pins, tags, exports, imports,
and what stands unsent in each chat.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QFileDialog

from app.attachment_draft import DraftItem
from app.controller import ChatController
from app.conversations import Conversation
from app.language import mark, tr
from app.search_text import terms_of
from app.transfer_session import ExportFormat
from app.trash_session import Deletion
from app.ui.chat_pane import ChatPane
from app.ui.conversation_list import ConversationList
from app.ui.conversation_model import shown_title

_SUFFIXES = {ExportFormat.MARKDOWN: ".md", ExportFormat.JSON: ".json"}
_KINDS = {ExportFormat.MARKDOWN: mark("Markdown (*.md)"), ExportFormat.JSON: mark("JSON (*.json)")}
_IMPORTS = mark("Conversations (*.json *.zip);;All files (*)")
_NOT_IN_NAMES = re.compile(r'[<>:"/\\|?*\x00-\x1f]+')  # of files, on one system or another
_MAX_NAME = 80  # characters


class ConversationPresenter(QObject):
    """Signals: chat_wanted(), when a person chose something that the chat shows."""

    chat_wanted = Signal()

    def __init__(
        self,
        controller: ChatController,
        *,
        chat: ChatPane,
        conversations: ConversationList,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._controller = controller
        self._chat = chat
        self._list = conversations
        self._terms: tuple[str, ...] = ()  # that led to the message that is opened
        self._shown_id: str | None = None  # the conversation whose draft stands in the composer
        self._files: dict[str | None, tuple[DraftItem, ...]] = {}  # that stand unsent in other chats
        self._sent_from: str | None = None  # the conversation in which something was sent last
        self._sent_from_new = False  # the new chat's text was taken: its row comes next
        self._dialog: QFileDialog | None = None
        self._connect_signals()

    def export(self, conversation_ids: Sequence[str], form: ExportFormat) -> None:
        """Asks where to."""
        if not conversation_ids:
            return
        window, home = self._chat.window(), str(Path.home())
        dialog = QFileDialog(window, tr("Export conversations"), home, tr(_KINDS[form]))
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix(_SUFFIXES[form])
        dialog.selectFile(self._file_name(conversation_ids) + _SUFFIXES[form])
        dialog.fileSelected.connect(
            lambda name: self._controller.transfer.export(conversation_ids, Path(name), form)
        )
        self._open(dialog)

    def export_all(self, form: ExportFormat) -> None:
        self.export([summary.id for summary in self._list.model.summaries], form)

    def choose_imports(self) -> None:
        window, home = self._chat.window(), str(Path.home())
        dialog = QFileDialog(window, tr("Import conversations"), home, tr(_IMPORTS))
        dialog.setFileMode(QFileDialog.FileMode.ExistingFiles)
        dialog.filesSelected.connect(
            lambda names: self._controller.transfer.import_files([Path(name) for name in names])
        )
        self._open(dialog)

    def take_over(self, other: ConversationPresenter) -> None:
        """What stands unsent in the chats, and what was just sent."""
        self._shown_id, self._files = other._shown_id, dict(other._files)
        self._sent_from, self._sent_from_new = other._sent_from, other._sent_from_new
        self._chat.composer.take_over(other._chat.composer)

    def keep_draft(self) -> None:
        """Remember what stands in the composer now."""
        if not self._chat.composer.edited_id:
            self._controller.drafts.keep(self._shown_id, self._chat.composer.text)

    def _connect_signals(self) -> None:
        controller, conversations = self._controller, self._list
        actions = conversations.actions_
        conversations.search_changed.connect(self._search)
        conversations.message_requested.connect(self._open_message)
        conversations.undo_bar.undone.connect(controller.trash.undo)
        conversations.undo_bar.gone.connect(controller.trash.finish)
        actions.pin_requested.connect(controller.pin_conversations)
        actions.tag_requested.connect(lambda ids, name, on: controller.tag_conversations(ids, name, on=on))
        actions.delete_requested.connect(controller.trash.delete)
        actions.export_requested.connect(self.export)
        controller.search.found.connect(conversations.show_result)
        controller.trash.changed.connect(self._on_trash_changed)
        conversations.transfer_bar.cancel_requested.connect(controller.transfer.cancel)
        controller.transfer.progressed.connect(conversations.transfer_bar.show_progress)
        controller.conversations_changed.connect(self._search_again)
        controller.message_shown.connect(self._on_message_shown)
        self._chat.send_requested.connect(self._on_sending)
        controller.send_accepted.connect(self._on_sent)
        controller.conversation_opened.connect(self._on_opened)
        controller.drafts_read.connect(self._on_drafts_read)
        self._chat.composer.text_changed.connect(self.keep_draft)
        controller.attachments.changed.connect(self._keep_files)

    # The list

    def _search(self, query: str) -> None:
        if query:
            self._controller.search.search(query)
        else:
            self._controller.search.forget()

    def _search_again(self) -> None:
        """What is listed may have changed."""
        self._search(self._list.filter_bar.query)

    def _open_message(self, message_id: str, query: str) -> None:
        self._terms = terms_of(query)
        self._controller.open_message(message_id)
        self.chat_wanted.emit()

    def _on_message_shown(self, message_id: str) -> None:
        self._chat.transcript.jump_to(message_id, self._terms)

    def _on_trash_changed(self, deletion: Deletion | None) -> None:
        self._list.show_deleted(len(deletion.ids) if deletion is not None else 0)

    def _file_name(self, conversation_ids: Sequence[str]) -> str:
        if len(conversation_ids) > 1:
            return tr("Conversations")
        titles = [shown_title(one) for one in self._list.model.summaries if one.id in conversation_ids]
        title = _NOT_IN_NAMES.sub(" ", titles[0] if titles else "").strip(" .")
        return title[:_MAX_NAME] or tr("Conversation")

    def _open(self, dialog: QFileDialog) -> None:
        """Without blocking: answers stream on while the question stands open."""
        dialog.finished.connect(dialog.deleteLater)
        self._dialog = dialog
        dialog.open()

    # Drafts

    def _on_sending(self) -> None:
        self._sent_from = self._shown_id

    def _on_sent(self, text: str) -> None:
        """The composer lets it go, if it is still that chat's: the person may be in another one by now."""
        self._sent_from_new = self._shown_id is None and self._sent_from is None
        drafts = self._controller.drafts
        if self._sent_from != self._shown_id and drafts.text(self._sent_from).strip() == text.strip():
            drafts.keep(self._sent_from, "")
            drafts.keep_files(self._sent_from, ())
            self._files.pop(self._sent_from, None)

    def _on_opened(self, conversation: Conversation | None) -> None:
        """Each chat has what stood unsent in it. A new chat that has just got its row is still the same one:
        what was typed since it was sent goes along.
        """
        before, self._shown_id = self._shown_id, conversation.summary.id if conversation is not None else None
        begun, self._sent_from_new = self._sent_from_new, False
        drafts, composer = self._controller.drafts, self._chat.composer
        if begun and before is None and conversation is not None and not conversation.messages:
            drafts.keep(None, "")
            drafts.keep_files(None, ())
            self.keep_draft()
            self._keep_files()
        elif self._shown_id != before:
            composer.set_text(drafts.text(self._shown_id))
            composer.edit.move_to_end()
            self._files[before] = self._controller.attachments.items
            self._put_files()

    def _on_drafts_read(self) -> None:
        if self._chat.composer.edit.is_blank and not self._chat.composer.edited_id:
            self._chat.composer.set_text(self._controller.drafts.text(self._shown_id))
            self._chat.composer.edit.move_to_end()
        if not self._controller.attachments.items and not self._chat.composer.edited_id:
            self._put_files()

    def _put_files(self) -> None:
        """Those that stand unsent in the chat that is shown, as this run left them or the last one."""
        attachments, files = self._controller.attachments, self._controller.drafts.files(self._shown_id)
        left = self._files.pop(self._shown_id, None)
        if left is None:
            attachments.put_attachments(files.ready, files.missing)
        else:
            attachments.put(left)

    def _keep_files(self) -> None:
        """Not those of a message that is being edited, which stand there meanwhile."""
        attachments = self._controller.attachments
        if not self._chat.composer.edited_id:
            self._controller.drafts.keep_files(self._shown_id, attachments.ready, attachments.unread)
