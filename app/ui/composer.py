"""Where a message is written: grows with it, sends it on Enter, and never loses it.

The text stays until whoever sends it says that it is on disk (`accept`). A very long paste is held
beside the editor as a chip, so that neither the paste nor the typing after it is slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen, QTextCursor
from PySide6.QtWidgets import QFrame, QHBoxLayout, QToolButton, QVBoxLayout, QWidget

from app.attachment_draft import DraftItem, DraftState
from app.language import mark, tr
from app.ui.attachment_bar import AttachmentBar
from app.ui.edit_strip import EditStrip
from app.ui.icons import icon
from app.ui.message_edit import MessageEdit, is_long
from app.ui.paste_chip import PasteChip
from app.ui.text_size import follow_text_size, scaled, set_icon_size
from app.ui.theme import SPACE_S, SPACE_XS, current_theme, mixed

_RADIUS = 16
_BUTTON = 34  # pixels
PLACEHOLDER = mark("Write a message")
_SETTINGS_TIP = mark("Instructions and sampling of this chat (Ctrl+Shift+P)")


class Composer(QFrame):
    """Signals: send_requested(str) when there is something to send and it may be sent; stop_requested();
    edit_requested(str, str) for the message with this id instead, while it is being edited; edit_ended();
    refused() when it may not be sent now; attach_requested() and settings_requested() of its two buttons;
    text_changed() after what would be sent has.
    """

    send_requested = Signal(str)
    edit_requested = Signal(str, str)
    edit_ended = Signal()
    stop_requested = Signal()
    refused = Signal()
    attach_requested = Signal()
    settings_requested = Signal()
    text_changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._ready = False
        self._answering = False
        self._sent: str | None = None  # waits for `accept` or `reject`
        self._edited_id = ""  # the message that is being edited
        self._draft = ""  # what stood here before
        self.strip = EditStrip(self)
        self.edit = MessageEdit(self)
        self.edit.setPlaceholderText(tr(PLACEHOLDER))
        self.chip = PasteChip(self)
        self.files = AttachmentBar(self)
        self._has_files = False  # that can be sent
        self._reading_files = False
        self.attach_button = _side_button(
            tr("Attach files"), tr("Attach text, code or PDF files (Ctrl+Shift+A)"), self
        )
        self.settings_button = _side_button(tr("Instructions and sampling"), tr(_SETTINGS_TIP), self)
        self._has_settings = False
        self.button = QToolButton(self)
        follow_text_size(self.button, lambda: self.button.setFixedSize(scaled(_BUTTON), scaled(_BUTTON)))
        set_icon_size(self.button, 18)
        self.button.setCursor(Qt.CursorShape.PointingHandCursor)
        self._lay_out()
        self._connect_signals()
        self.apply_theme()
        self._update_button()

    def _lay_out(self) -> None:
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_S, SPACE_S, SPACE_S, SPACE_S)
        column.setSpacing(SPACE_XS)
        column.addWidget(self.strip)
        column.addWidget(self.files)
        column.addWidget(self.chip, 0, Qt.AlignmentFlag.AlignLeft)
        row = QHBoxLayout()
        row.setSpacing(SPACE_XS)
        row.addWidget(self.attach_button, 0, Qt.AlignmentFlag.AlignBottom)
        row.addWidget(self.settings_button, 0, Qt.AlignmentFlag.AlignBottom)
        row.addSpacing(SPACE_XS)
        row.addWidget(self.edit, 1, Qt.AlignmentFlag.AlignVCenter)
        row.addWidget(self.button, 0, Qt.AlignmentFlag.AlignBottom)
        column.addLayout(row)
        for first, second in pairwise((self.attach_button, self.settings_button, self.edit, self.button)):
            self.setTabOrder(first, second)

    def _connect_signals(self) -> None:
        self.edit.textChanged.connect(self._update_button)
        self.edit.textChanged.connect(self.text_changed)
        self.attach_button.clicked.connect(self.attach_requested)
        self.settings_button.clicked.connect(self.settings_requested)
        self.edit.send_pressed.connect(self._send)
        self.edit.long_text_pasted.connect(self._hold_paste)
        self.edit.focus_changed.connect(self.update)
        self.strip.cancelled.connect(self._on_edit_cancelled)
        self.chip.removed.connect(self._on_chip_removed)
        self.button.clicked.connect(self._on_button)

    @property
    def text(self) -> str:
        """What would be sent: what was typed, and below it what was pasted and is too long to show."""
        parts = [self.edit.text, self.chip.text]
        text = "\n\n".join(part for part in parts if part.strip())
        # A clipboard can hold half a surrogate pair, which no file and no tokenizer takes.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    @property
    def answering(self) -> bool:
        return self._answering

    @property
    def edited_id(self) -> str:
        """The message that is being edited; "" for none."""
        return self._edited_id

    def quote(self, text: str) -> None:
        """Adds a text to what is written, as a quotation, and puts the cursor behind it."""
        quotation = quoted(text)
        if is_long(quotation):
            self._hold_paste(quotation)
            self.edit.setFocus()
            return
        self.edit.move_to_end()
        before = "" if self.edit.is_blank else "\n\n"
        # Not by the editor's own cursor, which goes along: Qt would scroll to it in an editor that is not yet
        # as high as its text, and never back.
        cursor = QTextCursor(self.edit.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.insertText(f"{before}{quotation}\n\n")
        self.edit.setFocus()
        if self.edit.verticalScrollBarPolicy() is not Qt.ScrollBarPolicy.ScrollBarAlwaysOff:
            QTimer.singleShot(0, self.edit, self.edit.ensureCursorVisible)  # there is more than it shows

    def begin_edit(self, message_id: str, text: str) -> None:
        """Takes the text of a message to be edited; what stood here comes back when that ends."""
        if self._sent is not None:
            return  # what was sent is still on its way
        if not self._edited_id:
            self._draft = self.text
        self._edited_id = message_id
        self.strip.show()
        self.set_text(text)
        self.edit.move_to_end()
        self.edit.setFocus()
        self._update_button()

    def end_edit(self) -> None:
        """Gives the edit up, or leaves it when it was sent."""
        if not self._edited_id:
            return
        self._edited_id = ""
        self._sent = None
        self.strip.hide()
        self.set_text(self._draft)
        self._draft = ""
        self.edit.move_to_end()
        self._update_button()
        self.edit_ended.emit()

    def take_over(self, other: Composer) -> None:
        """What stands in another one, and whether it is on its way."""
        self.set_text(other.text)
        self.edit.move_to_end()
        self._sent = other._sent
        self._update_button()

    def set_text(self, text: str) -> None:
        self.chip.clear()
        self.edit.setPlainText("" if is_long(text) else text)
        if is_long(text):
            self._hold_paste(text)

    def show_files(self, items: Sequence[DraftItem]) -> None:
        """Those that are to go with the message."""
        self.files.show_items(items)
        self._has_files = any(item.state is DraftState.READY for item in items)
        self._reading_files = any(item.state is DraftState.READING for item in items)
        self._update_button()

    def set_has_settings(self, has_settings: bool) -> None:
        """Something is chosen for this chat: its button shows it."""
        self._has_settings = has_settings
        self._paint_side_buttons()

    def set_answering(self, answering: bool) -> None:
        self._answering = answering
        self._update_button()

    def set_ready(self, ready: bool) -> None:
        self._ready = ready
        self._update_button()

    def accept(self, text: str) -> None:
        """`text` is on disk: takes it away, but nothing that was written since."""
        if self._edited_id:
            self.end_edit()
        elif self._sent is not None:
            rest = self.text
            if rest.strip() == text.strip():
                self.set_text("")
            elif rest.startswith(text):
                self.set_text(rest.removeprefix(text).lstrip())
                self.edit.move_to_end()
        self._sent = None
        self._update_button()

    def reject(self) -> None:
        """The text was not taken; it stays for another try."""
        self._sent = None
        self._update_button()

    def apply_theme(self) -> None:
        theme = current_theme()
        ground = theme.accent
        self.button.setStyleSheet(
            f"QToolButton {{ background: {ground}; border: none; border-radius: {scaled(_BUTTON) // 2}px; }}"
            f"QToolButton:hover {{ background: {mixed(theme.text, ground, 0.16)}; }}"
            f"QToolButton:focus {{ background: {_ringed(ground, theme.surface_raised)}; }}"
            f"QToolButton:disabled {{ background: {mixed(theme.text, theme.surface_raised, 0.10)}; }}"
        )
        self.edit.apply_theme()
        self.chip.apply_theme()
        self.files.apply_theme()
        self._paint_side_buttons()
        self.strip.apply_theme()
        self._update_button()
        self.update()

    def _send(self) -> None:
        text = self.text
        has_content = bool(text.strip()) or self._has_files
        if not has_content or self._reading_files or self._sent is not None or self._answering:
            return
        if not self._ready:
            self.refused.emit()
            return
        self._sent = text
        self._update_button()
        if self._edited_id:
            self.edit_requested.emit(self._edited_id, text)
        else:
            self.send_requested.emit(text)

    def _on_button(self) -> None:
        if self._answering:
            self.stop_requested.emit()
        else:
            self._send()
        self.edit.setFocus()

    def _on_edit_cancelled(self) -> None:
        self.end_edit()
        self.edit.setFocus()

    def _hold_paste(self, text: str) -> None:
        self.chip.add(text)
        self._update_button()
        self.text_changed.emit()

    def _on_chip_removed(self) -> None:
        self.text_changed.emit()
        self._update_button()
        self.edit.setFocus()

    def _update_button(self) -> None:
        theme = current_theme()
        if self._answering:
            name, tip, image, enabled = tr("Stop"), tr("Stop the answer (Esc)"), "stop", True
        else:
            has_content = self._has_files or bool(self.chip.text) or not self.edit.is_blank
            enabled = self._ready and has_content and not self._reading_files and self._sent is None
            name, tip, image = tr("Send"), tr("Send (Enter). Shift+Enter begins a new line."), "send"
            if self._edited_id:
                name, tip = tr("Send the edited message"), tr("Send the edited message (Enter)")
            if self._reading_files:
                tip = tr("A file is still being read")
        ink = theme.accent_text if enabled else theme.text_muted
        self.button.setEnabled(enabled)
        self.button.setIcon(icon(image, ink))
        self.button.setToolTip(tip)
        self.button.setAccessibleName(name)

    def _paint_side_buttons(self) -> None:
        theme = current_theme()
        self.attach_button.setIcon(icon("attach", theme.text_muted))
        self.settings_button.setIcon(
            icon("settings", theme.accent if self._has_settings else theme.text_muted)
        )
        self.settings_button.setAccessibleName(
            tr("Instructions and sampling of this chat; something is chosen here")
            if self._has_settings
            else tr("Instructions and sampling of this chat")
        )

    # Qt overrides

    def paintEvent(self, event: QPaintEvent) -> None:
        theme = current_theme()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        focused = self.edit.hasFocus()
        border = mixed(theme.accent, theme.border, 0.7) if focused else theme.border
        painter.setPen(QPen(QColor(border), 1.5 if focused else 1.0))
        painter.setBrush(theme.color("surface_raised"))
        painter.drawRoundedRect(self.rect().toRectF().adjusted(1, 1, -1, -1), _RADIUS, _RADIUS)


def quoted(text: str) -> str:
    """As a quotation in Markdown. Lines end where people and models end them, and nowhere else."""
    return "\n".join(f"> {line}".rstrip() for line in text.strip("\n").split("\n"))


def _ringed(color: str, gap: str) -> str:
    """A round ground of a style sheet with a ring around it that stands apart: what has the focus."""
    stops = ((0, color), (0.76, color), (0.79, gap), (0.87, gap), (0.9, color), (1, color))
    listed = ", ".join(f"stop: {at} {one}" for at, one in stops)
    return f"qradialgradient(cx: 0.5, cy: 0.5, radius: 0.5, fx: 0.5, fy: 0.5, {listed})"


def _side_button(name: str, tip: str, parent: QWidget) -> QToolButton:
    button = QToolButton(parent)
    follow_text_size(button, lambda: button.setFixedSize(scaled(_BUTTON), scaled(_BUTTON)))
    set_icon_size(button, 18)
    button.setAccessibleName(name)
    button.setToolTip(tip)
    return button
