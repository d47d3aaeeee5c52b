"""The chat: the conversation above, the composer below, and what is said when there is nothing yet.

It shows what it is told and emits what the person does; it knows no controller and no engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, QUrl, Signal
from PySide6.QtGui import QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QLabel, QToolButton, QVBoxLayout, QWidget

from app.context_policy import first_read, left_out_of
from app.conversations import Conversation, Message
from app.language import tr
from app.ui.composer import Composer
from app.ui.empty_chat import EmptyChat
from app.ui.icons import icon
from app.ui.message_actions import MessageAction
from app.ui.message_view import AnswerView, UserMessageView
from app.ui.style_sheet import set_role
from app.ui.text_size import follow_text_size, scaled, set_icon_size, text_size
from app.ui.theme import SPACE_L, SPACE_M, SPACE_S, TEXT_COLUMN_WIDTH, current_theme, theme_manager
from app.ui.transcript import Transcript

if TYPE_CHECKING:
    from app.worker import AnswerDelta

_JUMP = 36  # pixels


class ChatPane(QWidget):
    """Signals: send_requested(str), edit_requested(message id, text), edit_begun(files of the message),
    regenerate_requested(message id),
    fork_requested(message id), version_requested(message id, delta),
    delete_requested(message id), stop_requested(), link_activated(QUrl):
    the window asks before it opens one.
    """

    send_requested = Signal(str)
    edit_requested = Signal(str, str)
    edit_begun = Signal(object)  # the files that came with the message
    regenerate_requested = Signal(str)
    fork_requested = Signal(str)
    version_requested = Signal(str, int)
    delete_requested = Signal(str)
    stop_requested = Signal()
    link_activated = Signal(QUrl)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "surface")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self._messages: list[Message] = []  # those that are shown; the text of a growing one is in its view
        self.transcript = Transcript(self)
        self.composer = Composer(self)
        self.empty = EmptyChat(self)
        self._hint = QLabel(self)
        self._hint.setTextFormat(Qt.TextFormat.PlainText)
        self._hint.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        self._hint.setWordWrap(True)
        self._hint.setMinimumWidth(1)  # a model's name may be one word that is wider than the window
        self.jump_button = QToolButton(self)
        self.jump_button.setAccessibleName(tr("Jump to the latest message"))
        self.jump_button.setToolTip(tr("Jump to the latest message (Ctrl+End)"))
        follow_text_size(self, lambda: self.jump_button.setFixedSize(scaled(_JUMP), scaled(_JUMP)))
        set_icon_size(self.jump_button, 18)
        self.jump_button.setCursor(Qt.CursorShape.PointingHandCursor)
        self.jump_button.hide()
        self._lay_out()
        self._connect_signals()
        self.set_model_ready(False, "")
        self._style()

    def _lay_out(self) -> None:
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(self.transcript, 1)
        self._below = QVBoxLayout()
        self._below.setSpacing(SPACE_S)
        self._below.addWidget(self.composer)
        self._below.addWidget(self._hint)
        column.addLayout(self._below)

    def _connect_signals(self) -> None:
        self.composer.send_requested.connect(self.send_requested)
        self.composer.edit_requested.connect(self.edit_requested)
        self.composer.edit_ended.connect(self._mark_edited)
        self.composer.stop_requested.connect(self.stop_requested)
        self.composer.refused.connect(self._on_refused)
        self.transcript.asked.connect(self._on_asked)
        self.transcript.link_activated.connect(self.link_activated)
        self.transcript.at_bottom_changed.connect(self._on_at_bottom_changed)
        self.jump_button.clicked.connect(self.transcript.jump_to_end)
        self.transcript.resized.connect(self._place_over_chat)
        text_size().changed.connect(self._arrange)
        theme_manager().changed.connect(self._on_theme_changed)

    # What is shown

    def show_conversation(self, conversation: Conversation | None) -> None:
        """None is a new, empty chat. What stands in the composer stays, unless it is an edit."""
        self.composer.end_edit()
        self._messages = list(conversation.messages) if conversation is not None else []
        self.empty.setVisible(not self._messages)
        self.transcript.show_messages(self._messages)
        self._show_left_out(left_out_of(self._messages))

    def show_branch(self, conversation: Conversation) -> None:
        """Other versions of the conversation that is shown."""
        if self.composer.edited_id not in {message.id for message in conversation.messages}:
            self.composer.end_edit()
        self._messages = list(conversation.messages)
        self.transcript.show_branch(self._messages)
        self._show_left_out(left_out_of(self._messages))

    def add_message(self, message: Message) -> None:
        self.empty.hide()
        self._messages.append(message)
        self.transcript.add(message)

    def shows(self, message_id: str) -> bool:
        """Whether it is on the branch that is shown."""
        return any(message.id == message_id for message in self._messages)

    def messages_before(self, message_id: str) -> list[Message]:
        """Of those that are shown, as they were when they ended last."""
        place = next((i for i, one in enumerate(self._messages) if one.id == message_id), len(self._messages))
        return self._messages[:place]

    def begin_answer(self, message: Message) -> None:
        """The turn of an answer that waited has come; nothing if it isn't on the branch that is shown."""
        self.transcript.begin_answer(message)

    def extend_answer(self, message_id: str, delta: AnswerDelta) -> None:
        self.transcript.extend_answer(message_id, delta)

    def finish_answer(self, message: Message) -> None:
        self._messages = [message if one.id == message.id else one for one in self._messages]
        self.transcript.finish_answer(message)
        self._show_left_out(left_out_of(self._messages))

    def show_left_out(self, count: int) -> None:
        """How many of the oldest messages the model does not read for the answer that is being written."""
        self._show_left_out(count)

    def set_answering(self, answering: bool) -> None:
        """An answer is being written here, or waits to be."""
        self.composer.set_answering(answering)
        self.transcript.set_busy(answering)

    def ask(self, action: MessageAction) -> None:
        """Do this with the message that has the focus, or else with the last one that it can be done with.
        What is selected is quoted, wherever it is.
        """
        if action is MessageAction.QUOTE and (selected := self.transcript.selected_text().strip()):
            self.composer.quote(selected)
            return
        view = self.transcript.focused_view
        if view is None or not view.actions_.offers(action):
            views = (view for view in reversed(self.transcript.views) if view.actions_.offers(action))
            view = next(views, None)
        if view is not None:
            self._on_asked(action, view.message_id)

    def copy_last_answer(self) -> None:
        answers = (view for view in reversed(self.transcript.views) if isinstance(view, AnswerView))
        if (view := next(answers, None)) is not None:
            view.actions_.copy.click()

    def _on_asked(self, action: MessageAction, message_id: str) -> None:
        match action:
            case MessageAction.EDIT:
                self._edit(message_id)
            case MessageAction.REGENERATE:
                self.regenerate_requested.emit(message_id)
            case MessageAction.FORK:
                self.fork_requested.emit(message_id)
            case MessageAction.OLDER:
                self.version_requested.emit(message_id, -1)
            case MessageAction.NEWER:
                self.version_requested.emit(message_id, +1)
            case MessageAction.QUOTE:
                if (view := self.transcript.view(message_id)) is not None:
                    self.composer.quote(view.quotable)
            case MessageAction.DELETE:
                self.delete_requested.emit(message_id)

    def go_on_editing(self, message_id: str, text: str) -> None:
        """As the edit stood in the window that was here before, whatever is going on by now."""
        if self.shows(message_id):
            self._begin_edit(message_id, text)

    def _edit(self, message_id: str) -> None:
        view = self.transcript.view(message_id)
        if view is not None and not self.composer.answering:
            self._begin_edit(message_id, view.text)

    def _begin_edit(self, message_id: str, text: str) -> None:
        self.composer.begin_edit(message_id, text)
        message = next((one for one in self._messages if one.id == message_id), None)
        self.edit_begun.emit(message.attachments if message is not None else ())
        self._mark_edited()

    def _mark_edited(self) -> None:
        for view in self.transcript.views:
            if isinstance(view, UserMessageView):
                view.set_marked(view.message_id == self.composer.edited_id)

    def _show_left_out(self, count: int) -> None:
        message = first_read(self._messages, count)
        self.transcript.set_left_out(message.id if message is not None else "", count)

    def set_model_ready(self, ready: bool, hint: str) -> None:
        """`hint` is said below the composer while nothing can be sent."""
        self.composer.set_ready(ready)
        self.empty.set_model_ready(ready)
        set_role(self._hint, "small")
        self._hint.setText(hint)
        self._hint.setVisible(bool(hint))

    # What becomes of a text that was sent

    def accept_send(self, text: str) -> None:
        """It is on disk: the composer lets it go."""
        self.composer.accept(text)

    def reject_send(self, text: str) -> None:
        """It was not taken; the composer keeps it."""
        self.composer.reject()

    def focus_composer(self) -> None:
        self.composer.edit.setFocus()

    def _on_refused(self) -> None:
        set_role(self._hint, "warning")
        self._hint.setVisible(bool(self._hint.text()))

    def _on_at_bottom_changed(self, at_bottom: bool) -> None:
        self.jump_button.setVisible(not at_bottom)
        self.jump_button.raise_()

    def _on_theme_changed(self) -> None:
        self._style()
        self.composer.apply_theme()
        self.transcript.apply_theme()
        self.empty.apply_theme()

    def _style(self) -> None:
        theme = current_theme()
        self.jump_button.setIcon(icon("arrow-down", theme.text))
        self.jump_button.setStyleSheet(
            f"QToolButton {{ background: {theme.surface_raised}; border: 1px solid {theme.border};"
            f" border-radius: {scaled(_JUMP) // 2}px; }}"
            f"QToolButton:hover, QToolButton:focus {{ border-color: {theme.accent}; }}"
        )

    # Qt overrides

    def keyPressEvent(self, event: QKeyEvent) -> None:
        control = bool(event.modifiers() & Qt.KeyboardModifier.ControlModifier)
        if event.key() == Qt.Key.Key_Escape and self.composer.edited_id:
            self.composer.end_edit()
        elif event.key() == Qt.Key.Key_Escape and self.composer.answering:
            self.stop_requested.emit()
        elif event.key() == Qt.Key.Key_End and control:
            self.transcript.jump_to_end()
        else:
            super().keyPressEvent(event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    def _arrange(self) -> None:
        side = max(SPACE_L, (self.width() - scaled(TEXT_COLUMN_WIDTH)) // 2 - SPACE_L)
        self._below.setContentsMargins(side, SPACE_S, side, SPACE_M)
        self.layout().activate()
        self._place_over_chat()

    def _place_over_chat(self) -> None:
        """What floats over the messages; they have less room where the composer grows."""
        area = self.transcript.geometry()
        self.empty.setGeometry(area)
        jump = self.jump_button.width()
        self.jump_button.move(area.center().x() - jump // 2, area.bottom() - jump - SPACE_M)
