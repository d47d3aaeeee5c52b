"""One message as it is shown: the person's in a bubble, the model's across the column."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QUrl, Signal
from PySide6.QtWidgets import QWidget

from app.conversations import Message, MessageStatus
from app.ui.answer_footer import AnswerFooter
from app.ui.document_view import DocumentView
from app.ui.message_body import MessageBody
from app.ui.sliced_work import SlicedWork
from app.ui.theme import SPACE_M, SPACE_S
from app.ui.thinking_block import ThinkingBlock
from app.ui.throttle import Throttle
from app.ui.user_bubble import UserBubble
from app.ui.waiting_dots import WaitingDots

if TYPE_CHECKING:
    from app.worker import AnswerDelta


class MessageView(QWidget):
    """What every message has in common; `arrange` and `apply_theme` are for the transcript.

    Signals: height_changed(), link_activated(QUrl), document_added(DocumentView).
    """

    height_changed = Signal()
    link_activated = Signal(QUrl)
    document_added = Signal(DocumentView)

    def __init__(self, message: Message, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.message_id = message.id

    @property
    def documents(self) -> tuple[DocumentView, ...]:
        """The parts that can be selected, from top to bottom."""
        raise NotImplementedError

    def arrange(self, width: int) -> int:
        """Places the parts for a width in pixels; gives the height."""
        raise NotImplementedError

    def apply_theme(self) -> None:
        raise NotImplementedError


class UserMessageView(MessageView):
    """What the person wrote, as it was written."""

    def __init__(self, message: Message, work: SlicedWork, parent: QWidget | None = None) -> None:
        super().__init__(message, parent)
        self.setAccessibleName("You" if message.role == "user" else "Instructions")
        self._bubble = UserBubble(message.text, work, self)
        self._bubble.height_changed.connect(self.height_changed)

    @property
    def bubble(self) -> UserBubble:
        return self._bubble

    @property
    def documents(self) -> tuple[DocumentView, ...]:
        return self._bubble.documents

    def arrange(self, width: int) -> int:
        height = self._bubble.arrange(width)
        self._bubble.setGeometry(0, 0, width, height)
        return height

    def apply_theme(self) -> None:
        self._bubble.apply_theme()


class AnswerView(MessageView):
    """What the model writes. Deltas are shown at most once a frame, and never lost."""

    def __init__(self, message: Message, work: SlicedWork, parent: QWidget | None = None) -> None:
        super().__init__(message, parent)
        self.setAccessibleName("Answer")
        self._work = work
        self._thinking: ThinkingBlock | None = None
        self._body = MessageBody(work, self)
        self._footer = AnswerFooter(lambda: self.text, self)
        self._dots = WaitingDots(self)
        self._waiting_thinking: list[str] = []
        self._waiting_text: list[str] = []
        self._throttle = Throttle(self._show_waiting, self)
        self._body.height_changed.connect(self.height_changed)
        self._body.link_activated.connect(self.link_activated)
        self._body.document_added.connect(self.document_added)
        self._writing = True
        self._show_message(message)

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

    def extend(self, delta: AnswerDelta) -> None:
        if not self._writing:
            return  # the answer has ended; what arrives late is in its final text already
        if delta.thinking:
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
        if self._thinking is not None:
            self._thinking.finish()
        self._show_state(message)
        self.height_changed.emit()

    def arrange(self, width: int) -> int:
        top = 0
        if self._thinking is not None:
            height = self._thinking.arrange(width)
            self._thinking.setGeometry(0, top, width, height)
            top += height + SPACE_S
        height = self._body.arrange(width)
        self._body.setGeometry(0, top, width, height)
        top += height
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

    def _show_message(self, message: Message) -> None:
        if message.thinking:
            self._replace_thinking(message.thinking)
        self._body.append(message.text)
        self._writing = message.status is MessageStatus.WRITING
        if not self._writing:
            self._body.finish()
            if self._thinking is not None:
                self._thinking.finish()
        elif self._thinking is not None and message.text:
            self._thinking.finish()
        self._show_state(message)

    def _show_state(self, message: Message) -> None:
        self._footer.setVisible(not self._writing)
        if not self._writing:
            self._footer.show_message(message)
        self._dots.setVisible(self._writing and not message.text and not message.thinking)

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
            if self._thinking is not None:
                self._thinking.finish()
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
        self._thinking.show()


def message_view(message: Message, work: SlicedWork, parent: QWidget | None = None) -> MessageView:
    if message.role == "assistant":
        return AnswerView(message, work, parent)
    return UserMessageView(message, work, parent)
