"""What only a window knows, for the one that takes its place in another language.

What the controller knows comes with `ChatController.tell_again`, after which the other things are done that
need the conversation on the screen: an edit goes on, and what was read is seen again.
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QObject, Qt

from app.attachment_draft import DraftItem
from app.ui.main_window import MainWindow


def hand_over(old: MainWindow, new: MainWindow) -> None:
    """Leaves the old window; what stands unsent, notices, the page, the list and its search go to the new."""
    _Place(old, new)  # before an edit ends
    old.leave()
    new.banners.take_over(old.banners)
    new.notice_presenter.take_over(old.notice_presenter)
    new.presenter.take_over(old.presenter)
    new.panel.take_over(old.panel)
    new.conversations.take_over(old.conversations)
    new.conversation_presenter.take_over(old.conversation_presenter)
    new.attachments.take_over(old.attachments)
    if not old.sides.is_wanted(old.conversations):
        new.sides.hide(new.conversations)
    if old.showing_models:
        new.show_models()
        if not old.loader.card.isHidden() and old.loader.card.path is not None:
            new.loader.pick(old.loader.card.path)
    else:
        new.show_chat()


class _Place(QObject):
    """Where a person was in the conversation that is open. It waits until the new window shows that."""

    def __init__(self, old: MainWindow, new: MainWindow) -> None:
        super().__init__(new)
        self._window = new
        self._read_id = old.chat.transcript.read_id
        composer = old.chat.composer
        self._edited_id, self._text = composer.edited_id, composer.text
        self._files: Sequence[DraftItem] = old.controller.attachments.items
        composer.end_edit()
        once = Qt.ConnectionType.SingleShotConnection
        new.controller.conversation_opened.connect(self._go_there, once)

    def _go_there(self) -> None:
        chat = self._window.chat
        if self._read_id:
            chat.transcript.jump_to(self._read_id)
        if self._edited_id:
            chat.go_on_editing(self._edited_id, self._text)
            if chat.composer.edited_id:
                self._window.controller.attachments.put(self._files)
        self.deleteLater()
