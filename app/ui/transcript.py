"""The scrolled column of messages.

Views are made in slices from the newest message upwards, so a long conversation opens at once; where a
reader is stays where it is while they come. The column follows its end only as long as the reader is
there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

import shiboken6
from PySide6.QtCore import QSize, Qt, QUrl, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QApplication, QFrame, QScrollArea, QWidget

from app.conversations import Message
from app.ui.document_view import DocumentView
from app.ui.message_actions import MessageAction
from app.ui.message_view import AnswerView, MessageView, message_view
from app.ui.sliced_work import SlicedWork
from app.ui.theme import SPACE_XL, TEXT_COLUMN_WIDTH
from app.ui.transcript_selection import TranscriptSelection

if TYPE_CHECKING:
    from app.worker import AnswerDelta

_TOP = 28  # pixels above the first message
_BOTTOM = 20
_AFTER_QUESTION = 2  # beneath its row of buttons; pixels between a question and its answer
_AFTER_ANSWER = 32
_NEAR_BOTTOM = 8  # pixels from the end that still count as being there


class Transcript(QScrollArea):
    """Signals: link_activated(QUrl); at_bottom_changed(bool); asked(MessageAction, message id)."""

    asked = Signal(MessageAction, str)
    link_activated = Signal(QUrl)
    at_bottom_changed = Signal(bool)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._work = SlicedWork(self)
        self._disposal = SlicedWork(self)
        self._unbuilt: list[Message] = []  # oldest first; their views come one after the other
        self._views: list[MessageView] = []
        self._unadded: list[Message] = []  # of another branch, oldest first; they come below what there is
        self._busy = False
        self._left_out: tuple[str, int] = ("", 0)  # the first message that the model reads, and how many not
        self._sizes: dict[MessageView, QSize] = {}  # as arranged; a view that is missing waits for it
        self._rearranging = False
        self._following = True
        self._arranging = False
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setAccessibleName("Conversation")
        self._content = QWidget()
        self._content.setAccessibleName("Messages")
        self.setWidget(self._content)
        self.viewport().setAutoFillBackground(False)
        self._content.setAutoFillBackground(False)
        self.verticalScrollBar().valueChanged.connect(self._on_scrolled)
        self.verticalScrollBar().setSingleStep(24)
        self._selection = TranscriptSelection(self)

    @property
    def views(self) -> tuple[MessageView, ...]:
        """From the oldest to the newest; those of a long conversation come one after the other."""
        return tuple(self._views)

    @property
    def work(self) -> SlicedWork:
        return self._work

    @property
    def at_bottom(self) -> bool:
        bar = self.verticalScrollBar()
        return bar.value() >= bar.maximum() - _NEAR_BOTTOM

    @property
    def documents(self) -> Iterator[DocumentView]:
        """Every selectable part, in reading order."""
        return (document for view in self._views for document in view.documents)

    def show_messages(self, messages: Sequence[Message]) -> None:
        """Takes away what there is and begins to show these, the newest first."""
        self._clear()
        self._set_following(True)
        if messages:
            self._unbuilt = list(messages)
            self._work.start(self._build())

    def show_branch(self, messages: Sequence[Message]) -> None:
        """Shows these in the place of those that there are, whose beginning they share. What both have stays
        where it is, so that a reader who pages finds the buttons under the mouse.
        """
        if self._unbuilt or self._unadded:  # what there is isn't known from its beginning
            self.show_messages(messages)
            return
        pairs = zip(self._views, messages, strict=False)
        num_kept = sum(1 for _ in takewhile(lambda pair: pair[0].message_id == pair[1].id, pairs))
        for view, message in zip(self._views[:num_kept], messages, strict=False):
            view.set_versions(message)
        self._set_following(False)
        self._dispose(self._views[num_kept:])
        del self._views[num_kept:]
        self._unadded = list(messages[num_kept:])
        if self._unadded:
            self._add_next()  # at once, or the chat would jump while it is empty there
        self._place()
        if self._unadded:
            self._work.start(self._build_branch())

    def add(self, message: Message) -> MessageView:
        """Shows one more message at the end and goes there."""
        while self._unadded:
            self._add_next()
        view = self._make(message)
        self._views.append(view)
        self._set_following(True)
        self._place()
        return view

    def begin_answer(self, message: Message) -> None:
        """The turn of an answer that waited has come; nothing if it isn't among what is shown."""
        view = self.view(message.id)
        if isinstance(view, AnswerView):
            view.begin(message)
        self._replace_unbuilt(message)

    def set_busy(self, busy: bool) -> None:
        """An answer is being written: messages can't be edited or answered anew."""
        self._busy = busy
        for view in self._views:
            view.set_busy(busy)

    def set_left_out(self, first_read_id: str, count: int) -> None:
        """Says above a message that `count` messages before it are not read by the model; 0: nowhere."""
        before, self._left_out = self._left_out, (first_read_id, count)
        if before == self._left_out:
            return
        for message_id, shown in ((before[0], 0), self._left_out):
            if (view := self.view(message_id)) is not None:
                view.set_left_out(shown)

    def extend_answer(self, message_id: str, delta: AnswerDelta) -> None:
        """More of an answer that grows; nothing if it isn't in this conversation."""
        view = self.view(message_id)
        if isinstance(view, AnswerView):
            view.extend(delta)
        for waiting in (self._unbuilt, self._unadded):
            for place, message in enumerate(waiting):
                if message.id == message_id:
                    waiting[place] = replace(
                        message, text=message.text + delta.text, thinking=message.thinking + delta.thinking
                    )

    def finish_answer(self, message: Message) -> None:
        """How an answer ended."""
        view = self.view(message.id)
        if isinstance(view, AnswerView):
            view.finish(message)
        self._replace_unbuilt(message)

    def _replace_unbuilt(self, message: Message) -> None:
        for waiting in (self._unbuilt, self._unadded):
            waiting[:] = [message if one.id == message.id else one for one in waiting]

    @property
    def focused_view(self) -> MessageView | None:
        """The message that has the keyboard focus somewhere in it."""
        focus = QApplication.focusWidget()
        return next((view for view in self._views if focus is not None and view.isAncestorOf(focus)), None)

    def view(self, message_id: str) -> MessageView | None:
        return next((view for view in reversed(self._views) if view.message_id == message_id), None)

    def jump_to_end(self) -> None:
        self._set_following(True)
        self._scroll_to_end()

    def apply_theme(self) -> None:
        """The messages that are seen at once, the others in slices."""
        self._work.start(self._restyle(), first=True)

    def selected_text(self) -> str:
        return self._selection.text()

    def _clear(self) -> None:
        self._work.cancel_all()
        self._rearranging = False
        self._selection.forget()
        self._unbuilt = []
        self._unadded = []
        self._left_out = ("", 0)
        old, self._views, self._sizes = self._views, [], {}
        self._dispose(old)
        self._place()

    def _dispose(self, views: Sequence[MessageView]) -> None:
        for view in views:
            view.hide()
            self._sizes.pop(view, None)
        if views:
            self._selection.forget()
            self._disposal.start(_delete(list(views)))

    def _build(self) -> Iterator[None]:
        # What is sent while older messages still come stands at the end; it is not among these.
        while self._unbuilt:
            view = self._make(self._unbuilt.pop())
            self._views.insert(0, view)
            self._place()
            yield

    def _build_branch(self) -> Iterator[None]:
        while self._unadded:
            self._add_next()
            self._place()
            yield

    def _add_next(self) -> None:
        self._views.append(self._make(self._unadded.pop(0)))

    def _make(self, message: Message) -> MessageView:
        view = message_view(message, self._work, self._content)
        view.height_changed.connect(lambda: self._on_height_changed(view))
        view.link_activated.connect(self.link_activated)
        view.document_added.connect(self._selection.watch)
        view.asked.connect(lambda action: self.asked.emit(action, view.message_id))
        view.set_busy(self._busy)
        if message.id == self._left_out[0]:
            view.set_left_out(self._left_out[1])
        for document in view.documents:
            self._selection.watch(document)
        view.show()
        return view

    def _restyle(self) -> Iterator[None]:
        seen = [view for view in self._views if self._is_seen(view)]
        for view in seen:
            view.apply_theme()
            self._sizes.pop(view, None)
        self._place()
        yield
        for view in [view for view in self._views if view not in seen]:
            view.apply_theme()
            self._sizes.pop(view, None)
            self._place()
            yield

    def _is_seen(self, view: MessageView) -> bool:
        top = self.verticalScrollBar().value()
        return view.y() < top + self.viewport().height() and view.y() + view.height() > top

    def _on_height_changed(self, view: MessageView) -> None:
        if self._sizes.pop(view, None) is not None:
            self._place()

    def _on_scrolled(self) -> None:
        if not self._arranging:
            self._set_following(self.at_bottom)

    def _set_following(self, following: bool) -> None:
        if following != self._following:
            self._following = following
            self.at_bottom_changed.emit(following)

    def _scroll_to_end(self) -> None:
        self._arranging = True
        self.verticalScrollBar().setValue(self.verticalScrollBar().maximum())
        self._arranging = False

    def _height(self, view: MessageView, column: int) -> int:
        """A view that is out of sight keeps the height it had at another width until its turn comes."""
        size = self._sizes.get(view)
        if size is not None and size.width() != column and not self._is_seen(view):
            if not self._rearranging:
                self._rearranging = True
                self._work.start(self._rearrange())
        elif size is None or size.width() != column:
            size = self._sizes[view] = QSize(column, view.arrange(column))
        return size.height()

    def _place(self) -> None:
        """Gives every view its place. Only views that have changed are arranged anew."""
        width = self.viewport().width()
        column = max(120, min(TEXT_COLUMN_WIDTH, width - 2 * SPACE_XL))
        left = (width - column) // 2
        anchor = None if self._following else self._anchor()
        self._arranging = True
        top = _TOP
        for index, view in enumerate(self._views):
            if index:
                top += _AFTER_ANSWER if isinstance(self._views[index - 1], AnswerView) else _AFTER_QUESTION
            height = self._height(view, column)
            view.setGeometry(left, top, column, height)
            top += height
        total = top + _BOTTOM if self._views else 0
        self._content.resize(width, max(total, self.viewport().height()))
        bar = self.verticalScrollBar()
        if self._following:
            bar.setValue(bar.maximum())
        elif anchor is not None:
            view, offset = anchor
            bar.setValue(view.y() - offset)
        self._arranging = False
        if not self._following and self.at_bottom:
            self._set_following(True)

    def _anchor(self) -> tuple[MessageView, int] | None:
        """The first view that is seen, and where it stands in the viewport: it is to stay there."""
        top = self.verticalScrollBar().value()
        for view in self._views:
            if view in self._sizes and view.y() + view.height() > top:
                return view, view.y() - top
        return None

    def _rearrange(self) -> Iterator[None]:
        """Steps that bring views of another width up to date; they keep their old heights until then."""
        for view in reversed(self._views):
            size = self._sizes.get(view)
            if size is not None and size.width() != view.width():
                del self._sizes[view]
                self._place()
                yield
        self._rearranging = False

    # Qt overrides

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place()


def _delete(views: list[MessageView]) -> Iterator[None]:
    for view in views:
        shiboken6.delete(view)  # deleteLater would have all of them deleted at once
        yield
