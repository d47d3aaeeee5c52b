"""A file that is to go with the next message, shown as one small box; or the sentence why it can't."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QHBoxLayout, QLabel, QToolButton, QWidget

from app.attachment_draft import DraftItem
from app.attachments import Attachment
from app.language import tr, tr_n, translated
from app.ui.elided_label import ElidedLabel
from app.ui.icon_label import IconLabel
from app.ui.icons import icon
from app.ui.style_sheet import set_role
from app.ui.text_format import format_tokens
from app.ui.text_size import follow_text_size, scaled, set_icon_size
from app.ui.theme import SPACE_S, SPACE_XS, current_theme
from app.ui.wrapped_label import WrappedLabel
from engine.notices import Notice

_NAME_WIDTH = 220  # pixels; a longer name is shortened in the middle, where its ending stays
_RADIUS = 8


class AttachmentChip(QWidget):
    """Signals: removed()."""

    removed = Signal()

    def __init__(self, item: DraftItem, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.name = ElidedLabel(item.name, self, mode=Qt.TextElideMode.ElideMiddle)
        follow_text_size(self, lambda: self.name.setMaximumWidth(scaled(_NAME_WIDTH)))
        self.details = QLabel(self)
        set_role(self.details, "small")
        self.remove_button = _remove_button(tr("Remove {name}", name=item.name), self)
        self.remove_button.clicked.connect(self.removed)
        row = QHBoxLayout(self)
        row.setContentsMargins(SPACE_S, SPACE_XS, SPACE_XS, SPACE_XS)
        row.setSpacing(SPACE_S)
        row.addWidget(IconLabel("file", self, size=16))
        row.addWidget(self.name)
        row.addWidget(self.details)
        row.addWidget(self.remove_button)
        self.show_item(item)

    def show_item(self, item: DraftItem) -> None:
        details = _details(item)
        self.details.setText(details)
        self.setAccessibleName(tr("{name}, {details}", name=item.name, details=details))
        self.setToolTip(_explanation(item))
        self.updateGeometry()

    def apply_theme(self) -> None:
        self.remove_button.setIcon(icon("close", current_theme().text_muted))
        self.update()

    # Qt overrides

    def paintEvent(self, _event: QPaintEvent) -> None:
        theme = current_theme()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(theme.color("border"), 1))
        painter.setBrush(theme.color("code_background"))
        painter.drawRoundedRect(self.rect().toRectF().adjusted(0.5, 0.5, -0.5, -0.5), _RADIUS, _RADIUS)


class RefusedFile(QWidget):
    """Says why a file can't go with the message. Signals: removed()."""

    removed = Signal()

    def __init__(self, problem: Notice, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.words = WrappedLabel(translated(f"{problem.message} {problem.hint}".strip()), self)
        set_role(self.words, "warning-small")
        self.remove_button = _remove_button(tr("Dismiss"), self)
        self.remove_button.clicked.connect(self.removed)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(SPACE_S)
        row.addWidget(IconLabel("warning", self, color="warning", size=16))
        row.addWidget(self.words, 1)
        row.addWidget(self.remove_button)

    def apply_theme(self) -> None:
        self.remove_button.setIcon(icon("close", current_theme().text_muted))


def size_words(attachment: Attachment) -> str:
    """How much of it there is, in what a person counts it in."""
    if attachment.pages is not None:
        return tr_n("{count:,} page", "{count:,} pages", attachment.pages)
    return tr_n("{count:,} line", "{count:,} lines", attachment.num_lines)


def _details(item: DraftItem) -> str:
    if item.attachment is None:
        return tr("is being read…")
    if item.tokens is None:
        return size_words(item.attachment)
    return format_tokens(item.tokens)


def _explanation(item: DraftItem) -> str:
    if item.attachment is None:
        return tr("This file is being read.")
    size = size_words(item.attachment)
    if item.tokens is None:
        return tr("{size}. Its tokens are counted once a model is loaded.", size=size)
    return tr(
        "{size}, {tokens} of the model's context. Its text goes with your message.",
        size=size,
        tokens=format_tokens(item.tokens),
    )


def _remove_button(name: str, parent: QWidget) -> QToolButton:
    button = QToolButton(parent)
    button.setAccessibleName(name)
    button.setToolTip(tr("Remove"))
    set_icon_size(button, 12)
    button.setIcon(icon("close", current_theme().text_muted))
    return button
