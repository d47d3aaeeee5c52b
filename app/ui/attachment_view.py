"""A file that went with a message, folded to its name until it is asked for."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from app.attachments import Attachment
from app.language import tr
from app.ui.attachment_chip import size_words
from app.ui.disclosure import DisclosureButton
from app.ui.document_view import DocumentView
from app.ui.icon_label import IconLabel
from app.ui.sliced_work import SlicedWork
from app.ui.theme import SPACE_XS
from app.ui.user_bubble import UserBubble

MAX_SHOWN = 50_000  # characters: nobody reads more of a file in a chat
_ICON = 16


class AttachmentView(QWidget):
    """Signals: height_changed(), document_added(DocumentView) when its text is shown first."""

    height_changed = Signal()
    document_added = Signal(DocumentView)

    def __init__(self, attachment: Attachment, work: SlicedWork, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._attachment = attachment
        self._work = work
        self._icon = IconLabel("file", self, size=_ICON)
        self.button = DisclosureButton(self)
        self.button.set_title(f"{attachment.name} · {size_words(attachment)}")
        self.button.toggled.connect(self._on_toggled)
        self.text: UserBubble | None = None  # once it was asked for

    @property
    def is_open(self) -> bool:
        return self.button.isChecked()

    @property
    def documents(self) -> tuple[DocumentView, ...]:
        return self.text.documents if self.text is not None and self.is_open else ()

    def arrange(self, width: int) -> int:
        """Places the parts at the right of `width` pixels; gives the height."""
        icon = self._icon.width()
        row = max(self.button.sizeHint().height(), icon)
        button = min(self.button.sizeHint().width(), width - icon - SPACE_XS)
        self.button.setGeometry(width - button, 0, button, row)
        self._icon.move(width - button - SPACE_XS - icon, (row - icon) // 2)
        if self.text is None or not self.is_open:
            return row
        height = self.text.arrange(width)
        self.text.setGeometry(0, row + SPACE_XS, width, height)
        return row + SPACE_XS + height

    def apply_theme(self) -> None:
        self.button.apply_theme()
        self._icon.update()
        if self.text is not None:
            self.text.apply_theme()

    def _on_toggled(self, is_open: bool) -> None:
        if self.text is None:
            self.text = UserBubble(_shown(self._attachment.text), self._work, self)
            self.text.height_changed.connect(self.height_changed)
            for document in self.text.documents:
                self.document_added.emit(document)
        self.text.setVisible(is_open)
        self.height_changed.emit()


def _shown(text: str) -> str:
    if len(text) <= MAX_SHOWN:
        return text
    more = tr("… The model has read {count:,} more characters.", count=len(text) - MAX_SHOWN)
    return f"{text[:MAX_SHOWN]}\n\n{more}"
