"""Joins the composer with the files that go with its message: chosen, dropped, read, counted, sent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QObject, QTimer
from PySide6.QtWidgets import QFileDialog

from app.attachment_draft import DraftItem
from app.attachments import Attachment, Fit, fit_of
from app.controller import ChatController
from app.conversations import Message
from app.language import tr
from app.ui.chat_pane import ChatPane
from app.ui.status_line import StatusLine

_PAUSE_MS = 300  # in typing, before the message is counted


class AttachmentPresenter(QObject):
    """Sends and edits go through it, since it knows which files go with them."""

    def __init__(
        self, controller: ChatController, *, chat: ChatPane, status: StatusLine, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._controller = controller
        self._draft = controller.attachments
        self._chat = chat
        self._composer = chat.composer
        self._status = status
        self._sent: frozenset[int] = frozenset()  # with the message that is on its way, or refused beside it
        self._kept: tuple[DraftItem, ...] = ()  # of the message that was being written before an edit
        self._editing = False
        self._dialog: QFileDialog | None = None
        self._timer = QTimer(self, interval=_PAUSE_MS, singleShot=True)
        self._connect_signals()

    def attach(self, paths: Sequence[Path]) -> None:
        """These go with the message that is being written."""
        self._draft.add(paths)

    def take_over(self, other: AttachmentPresenter) -> None:
        """The files that are chosen, and those that are on their way."""
        self._sent = other._sent
        self._show_draft()

    def choose(self) -> None:
        """Asks for files; answers stream on while the question stands open."""
        dialog = QFileDialog(self._chat.window(), tr("Attach files"))
        dialog.setFileMode(QFileDialog.FileMode.ExistingFiles)
        dialog.filesSelected.connect(lambda names: self.attach([Path(name) for name in names]))
        dialog.finished.connect(dialog.deleteLater)
        self._dialog = dialog
        dialog.open()

    def _connect_signals(self) -> None:
        controller, composer = self._controller, self._composer
        self._draft.changed.connect(self._show_draft)
        composer.files.removed.connect(self._draft.remove)
        composer.attach_requested.connect(self.choose)
        composer.text_changed.connect(self._timer.start)
        composer.edit_ended.connect(self._on_edit_ended)
        self._timer.timeout.connect(lambda: self._draft.count_text(composer.text))
        self._chat.send_requested.connect(self._send)
        self._chat.edit_requested.connect(self._send_edit)
        self._chat.edit_begun.connect(self._on_edit_begun)
        controller.send_accepted.connect(self._on_accepted)
        for changed in (
            controller.conversation_opened,
            controller.branch_shown,
            controller.answer_finished,
            controller.model_state_changed,
        ):
            changed.connect(self._show_fit)

    def _send(self, text: str) -> None:
        self._sent = self._draft.settled
        self._controller.send_message(text, self._draft.ready)

    def _send_edit(self, message_id: str, text: str) -> None:
        self._sent = frozenset()  # they leave with the edit
        self._controller.edit_message(message_id, text, self._draft.ready)

    def _on_accepted(self) -> None:
        sent, self._sent = self._sent, frozenset()
        if sent:
            self._draft.sent(sent)

    def _on_edit_begun(self, attachments: Sequence[Attachment]) -> None:
        if not self._editing:
            self._editing, self._kept = True, self._draft.items
        self._draft.put_attachments(attachments)

    def _on_edit_ended(self) -> None:
        if self._editing:
            self._editing = False
            kept, self._kept = self._kept, ()
            self._draft.put(kept)

    def _show_draft(self) -> None:
        self._composer.show_files(self._draft.items)
        self._show_fit()

    def _show_fit(self) -> None:
        self._composer.files.show_fit(self._fit())

    def _fit(self) -> Fit | None:
        """None while nothing is known."""
        summary = self._controller.model_state.summary
        needed = self._draft.num_tokens
        if summary is None or not needed:
            return None
        edited = self._composer.edited_id
        used = context_tokens(self._chat.messages_before(edited)) if edited else self._status.context.use.used
        policy = self._controller.settings.context_policy
        return fit_of(needed, used=used, context=summary.context_length, policy=policy)


def context_tokens(messages: Sequence[Message]) -> int:
    """Of the context, at the end of the last answer among them."""
    stats = (one.stats for one in reversed(messages) if one.stats is not None and one.stats.prompt_tokens)
    last = next(stats, None)
    return last.context_tokens if last is not None else 0
