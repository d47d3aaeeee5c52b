"""One message as it is shown: the person's in a bubble, the model's across the column."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QUrl, Signal
from PySide6.QtGui import QContextMenuEvent, QEnterEvent, QGuiApplication
from PySide6.QtWidgets import QLabel, QMenu, QWidget

from app.answer_queue import unfinished
from app.conversations import Message, MessageStatus
from app.language import mark, tr
from app.ui.answer_footer import AnswerFooter
from app.ui.attachment_view import AttachmentView
from app.ui.document_view import DocumentView
from app.ui.formulas import formula_store
from app.ui.icons import icon
from app.ui.left_out_note import LeftOutNote
from app.ui.message_actions import MessageAction, MessageActions, message_menu
from app.ui.message_body import MessageBody
from app.ui.sliced_work import SlicedWork
from app.ui.style_sheet import set_role
from app.ui.theme import SPACE_L, SPACE_M, SPACE_S, SPACE_XS, current_theme
from app.ui.thinking_block import ThinkingBlock
from app.ui.throttle import Throttle
from app.ui.user_bubble import UserBubble
from app.ui.waiting_dots import WaitingDots

if TYPE_CHECKING:
    from app.worker import AnswerDelta


WAITING_WORDS = mark("Waits for its turn: the model writes one answer at a time")


class MessageView(QWidget):
    """What every message has in common; `arrange` and `apply_theme` are for the transcript.

    Signals: height_changed(), link_activated(QUrl), document_added(DocumentView), asked(MessageAction).
    """

    height_changed = Signal()
    link_activated = Signal(QUrl)
    document_added = Signal(DocumentView)
    asked = Signal(MessageAction)

    def __init__(self, message: Message, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.message_id = message.id
        self.actions_: MessageActions  # beneath it; made by the children
        self._note: LeftOutNote | None = None

    @property
    def documents(self) -> tuple[DocumentView, ...]:
        """The parts that can be selected, from top to bottom."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        """What was written, as it was."""
        raise NotImplementedError

    @property
    def pinned(self) -> bool:
        """Whether it would be missed: it shows something that a view made anew would not."""
        return False

    @property
    def note(self) -> str:
        """What stands above it."""
        return self._note.words if self._note is not None else ""

    @property
    def quotable(self) -> str:
        """What is selected in it, or else all of it."""
        selected = [document.selected_text() for document in self.documents]
        return "\n\n".join(text for text in selected if text.strip()) or self.text

    def set_left_out(self, count: int) -> None:
        """How many messages above it the model doesn't read; 0 where this is not said here."""
        if self._note is not None:
            self._note.hide()
            self._note.deleteLater()
            self._note = None
        if count:
            self._note = LeftOutNote(count, self)
            self._note.lower()  # above all for screen readers
            self._note.show()
        self.height_changed.emit()

    def set_versions(self, message: Message) -> None:
        self.actions_.show_message(message)
        self.height_changed.emit()

    def set_busy(self, busy: bool) -> None:
        """An answer is being written in this conversation."""
        self.actions_.set_busy(busy)

    def arrange(self, width: int) -> int:
        """Places the parts for a width in pixels; gives the height."""
        top = 0
        if self._note is not None:
            self._note.setGeometry(0, 0, width, self._note.height())
            top = self._note.height() + SPACE_L
        return self.arrange_parts(width, top)

    def arrange_parts(self, width: int, top: int) -> int:
        """Places what stands below `top`; gives the height of everything."""
        raise NotImplementedError

    def apply_theme(self) -> None:
        raise NotImplementedError

    # Qt overrides

    def enterEvent(self, event: QEnterEvent) -> None:
        self.actions_.reveal(True)

    def leaveEvent(self, event: QEvent) -> None:
        self.actions_.reveal(False)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        menu = message_menu(self)
        self._add_text_actions(menu, event)
        self.actions_.fill_menu(menu)
        menu.popup(event.globalPos())

    def _add_text_actions(self, menu: QMenu, event: QContextMenuEvent) -> None:
        """What can be done with the words under the mouse, or with those that are selected."""
        for document in self.documents:
            viewport = document.viewport()
            where = viewport.mapFromGlobal(event.globalPos())
            if not viewport.rect().contains(where):
                continue
            color = current_theme().text_muted
            if document.textCursor().hasSelection():
                copy = menu.addAction(icon("copy", color), f"{tr('Copy selection')}\tCtrl+C")
                copy.triggered.connect(document.copy)
            if link := document.anchorAt(where):
                copy = menu.addAction(icon("link", color), tr("Copy link"))
                copy.triggered.connect(lambda _=False, link=link: QGuiApplication.clipboard().setText(link))
            select = menu.addAction(tr("Select all of this"))
            select.triggered.connect(document.selectAll)
            menu.addSeparator()


class UserMessageView(MessageView):
    """What the person wrote, as it was written."""

    def __init__(self, message: Message, work: SlicedWork, parent: QWidget | None = None) -> None:
        super().__init__(message, parent)
        self.setAccessibleName(tr("You") if message.role == "user" else tr("Instructions"))
        self._text = message.text
        self._bubble = UserBubble(message.text, work, self)
        self._bubble.height_changed.connect(self.height_changed)
        self._bubble.setVisible(bool(message.text.strip()) or not message.attachments)
        self.files = tuple(AttachmentView(file, work, self) for file in message.attachments)
        for file in self.files:
            file.stackUnder(self._bubble)
            file.height_changed.connect(self.height_changed)
            file.document_added.connect(self.document_added)
        self.actions_ = MessageActions("message", lambda: self._text, self, shy_copy=True)
        self.actions_.asked.connect(self.asked)
        self.actions_.show_message(message)

    @property
    def bubble(self) -> UserBubble:
        return self._bubble

    @property
    def text(self) -> str:
        return self._text

    @property
    def documents(self) -> tuple[DocumentView, ...]:
        return (*(document for file in self.files for document in file.documents), *self._bubble.documents)

    @property
    def pinned(self) -> bool:
        return self._bubble.changed or any(file.is_open for file in self.files)

    def set_marked(self, marked: bool) -> None:
        """It is the one that is being edited."""
        self._bubble.set_marked(marked)

    def arrange_parts(self, width: int, top: int) -> int:
        for file in self.files:
            height = file.arrange(width)
            file.setGeometry(0, top, width, height)
            top += height + SPACE_XS
        if not self._bubble.isHidden():
            height = self._bubble.arrange(width)
            self._bubble.setGeometry(0, top, width, height)
            top += height + SPACE_XS
        row = self.actions_.sizeHint()
        self.actions_.setGeometry(width - row.width(), top, row.width(), row.height())
        return top + row.height()

    def apply_theme(self) -> None:
        self._bubble.apply_theme()
        for file in self.files:
            file.apply_theme()
        self.actions_.apply_theme()
        if self._note is not None:
            self._note.update()


class AnswerView(MessageView):
    """What the model writes. Deltas are shown at most once a frame, and never lost."""

    def __init__(self, message: Message, work: SlicedWork, parent: QWidget | None = None) -> None:
        super().__init__(message, parent)
        self.setAccessibleName(tr("Answer"))
        self._work = work
        self._thinking: ThinkingBlock | None = None
        self._body = MessageBody(work, self)
        self._footer = AnswerFooter(lambda: self.text, self)
        self.actions_ = self._footer.actions_
        self.actions_.asked.connect(self.asked)
        self._waiting = QLabel(tr(WAITING_WORDS), self)
        set_role(self._waiting, "small")
        self._waiting.hide()
        self._dots = WaitingDots(self)
        self._thinking_began: float | None = None  # where the thinking is seen from its beginning
        self._waiting_thinking: list[str] = []
        self._waiting_text: list[str] = []
        self._throttle = Throttle(self._show_waiting, self)
        self._body.height_changed.connect(self.height_changed)
        self._body.link_activated.connect(self.link_activated)
        self._body.document_added.connect(self.document_added)
        self._writing = True
        self._show_message(message)
        if self._writing:
            formula_store().prepare()

    @property
    def text(self) -> str:
        return self._body.text

    @property
    def thinking(self) -> ThinkingBlock | None:
        return self._thinking

    @property
    def body(self) -> MessageBody:
        return self._body

    @property
    def documents(self) -> tuple[DocumentView, ...]:
        thinking = self._thinking.documents if self._thinking is not None else ()
        return thinking + self._body.documents

    @property
    def footer(self) -> AnswerFooter:
        return self._footer

    @property
    def pinned(self) -> bool:
        opened = self._thinking is not None and self._thinking.button.isChecked()
        return self._writing or opened or self._body.changed

    @property
    def waiting(self) -> bool:
        return not self._waiting.isHidden()

    def begin(self, message: Message) -> None:
        """Its turn has come: from WAITING to WRITING."""
        self._show_state(message)
        self.height_changed.emit()

    def extend(self, delta: AnswerDelta) -> None:
        if not self._writing:
            return  # the answer has ended; what arrives late is in its final text already
        if delta.thinking:
            if self._thinking is None and not self._waiting_thinking:
                self._thinking_began = perf_counter()
            self._waiting_thinking.append(delta.thinking)
        if delta.text:
            self._waiting_text.append(delta.text)
        self._throttle.request()

    def finish(self, message: Message) -> None:
        """Shows the last words, and what stands on disk where it differs from what was streamed."""
        self._throttle.flush()
        self._writing = False
        shown_thinking = self._thinking.text if self._thinking is not None else ""
        if shown_thinking != message.thinking:
            self._replace_thinking(message.thinking)
        if self._body.text != message.text:
            self._body.set_text(message.text)
        else:
            self._body.finish()
        self._end_thinking(message)
        self._show_state(message)
        self.height_changed.emit()

    def arrange_parts(self, width: int, top: int) -> int:
        if self._thinking is not None:
            height = self._thinking.arrange(width)
            self._thinking.setGeometry(0, top, width, height)
            top += height + SPACE_S
        height = self._body.arrange(width)
        self._body.setGeometry(0, top, width, height)
        top += height
        if not self._waiting.isHidden():
            self._waiting.setGeometry(0, top, width, self._waiting.sizeHint().height())
            top += self._waiting.height()
        if not self._dots.isHidden():
            self._dots.move(0, top)
            top += self._dots.height()
        if not self._footer.isHidden():
            top += SPACE_M if height else 0
            height = self._footer.arrange(width)
            self._footer.setGeometry(0, top, width, height)
            top += height
        return top

    def apply_theme(self) -> None:
        if self._thinking is not None:
            self._thinking.apply_theme()
        self._body.apply_theme()
        self._footer.apply_theme()
        if self._note is not None:
            self._note.update()

    def _show_message(self, message: Message) -> None:
        if message.thinking:
            self._replace_thinking(message.thinking)
        self._body.append(message.text)
        self._writing = unfinished(message)
        if not self._writing:
            self._body.finish()
            self._end_thinking(message)
        elif self._thinking is not None and message.text:
            self._thinking.finish()
        self._show_state(message)

    def _end_thinking(self, message: Message) -> None:
        if self._thinking is not None:
            self._thinking.finish(message.stats.thinking_seconds if message.stats is not None else 0.0)

    def _show_state(self, message: Message) -> None:
        self._footer.setVisible(not self._writing)
        if not self._writing:
            self._footer.show_message(message)
        self._waiting.setVisible(message.status is MessageStatus.WAITING)
        silent = message.status is MessageStatus.WRITING and not message.text and not message.thinking
        self._dots.setVisible(silent)

    def _show_waiting(self) -> None:
        thinking, text = "".join(self._waiting_thinking), "".join(self._waiting_text)
        self._waiting_thinking.clear()
        self._waiting_text.clear()
        self._dots.hide()
        if thinking:
            if self._thinking is None:
                self._replace_thinking("")
            assert self._thinking is not None
            self._thinking.append(thinking)
        if text:
            if self._thinking is not None and text.strip():
                began = self._thinking_began
                self._thinking.finish(perf_counter() - began if began is not None else 0.0)
                self._thinking_began = None
            self._body.append(text)
        self.height_changed.emit()

    def _replace_thinking(self, text: str) -> None:
        if self._thinking is not None:
            self._thinking.hide()
            self._thinking.deleteLater()
            self._thinking = None
            if not text:
                return
        self._thinking = ThinkingBlock(self._work, self)
        self._thinking.height_changed.connect(self.height_changed)
        self._thinking.link_activated.connect(self.link_activated)
        self._thinking.document_added.connect(self.document_added)
        self._thinking.append(text)
        self._thinking.stackUnder(self._body)  # above it for screen readers
        self._thinking.show()


def message_view(message: Message, work: SlicedWork, parent: QWidget | None = None) -> MessageView:
    if message.role == "assistant":
        return AnswerView(message, work, parent)
    return UserMessageView(message, work, parent)
