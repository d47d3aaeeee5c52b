"""The scrolled column of messages.

Only messages near to what is seen have views; they are made in slices, those that are seen first, and taken
away when they are far off. So a conversation of any length opens at once and scrolls alike everywhere. Where
a reader is stays where it is while heights above turn out to be others than was thought. The column follows
its end only as long as the reader is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, takewhile
from typing import TYPE_CHECKING

import shiboken6
from PySide6.QtCore import Qt, QUrl, Signal
from PySide6.QtGui import QResizeEvent, QWheelEvent
from PySide6.QtWidgets import QApplication, QFrame, QScrollArea, QWidget

from app.conversations import Message
from app.language import tr
from app.ui.document_view import DocumentView
from app.ui.message_actions import MessageAction
from app.ui.message_view import AnswerView, MessageView, message_view
from app.ui.sliced_work import SlicedWork
from app.ui.text_size import scaled, text_size
from app.ui.theme import SPACE_XL, TEXT_COLUMN_WIDTH
from app.ui.transcript_entries import (
    NUM_BUILT,
    NUM_KEPT,
    NUM_LAST,
    Entry,
    estimated_height,
    nearest,
    seen_range,
)
from app.ui.transcript_jump import TranscriptJump
from app.ui.transcript_selection import TranscriptSelection

if TYPE_CHECKING:
    from app.worker import AnswerDelta

_TOP = 28  # pixels above the first message
_BOTTOM = 20
_NOTCH = 120  # of a wheel; touchpads tell of parts
_NEAR_BOTTOM = 8  # pixels from the end that still count as being there


class Transcript(QScrollArea):
    """Signals: link_activated(QUrl); at_bottom_changed(bool); asked(MessageAction, message id);
    text_size_asked(int): larger by so many steps, or smaller.
    """

    asked = Signal(MessageAction, str)
    link_activated = Signal(QUrl)
    at_bottom_changed = Signal(bool)
    text_size_asked = Signal(int)
    resized = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._work = SlicedWork(self)
        self._disposal = SlicedWork(self)
        self._entries: list[Entry] = []  # oldest first
        self._by_id: dict[str, Entry] = {}
        self._building = False
        self._busy = False
        self._left_out: tuple[str, int] = ("", 0)  # the first message that the model reads, and how many not
        self._column = (0, 0)  # left and width of what is placed now
        self._rearranging = False
        self._following = True
        self._arranging = False
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setAccessibleName(tr("Conversation"))
        self._content = QWidget()
        self._content.setAccessibleName(tr("Messages"))
        self.setWidget(self._content)
        self.viewport().setAutoFillBackground(False)
        self._content.setAutoFillBackground(False)
        self.verticalScrollBar().valueChanged.connect(self._on_scrolled)
        self.verticalScrollBar().setSingleStep(24)
        self._read_place: tuple[Entry, float] | None = None  # while text gets another size
        text_size().changed.connect(self._keep_read_place)
        self._turned = 0  # eighths of a degree of the wheel that have made no step yet
        self._selection = TranscriptSelection(self)
        self._jump = TranscriptJump(self)

    @property
    def views(self) -> tuple[MessageView, ...]:
        """Those that there are, from the oldest to the newest."""
        return tuple(entry.view for entry in self._entries if entry.view is not None)

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
        return (document for view in self.views for document in view.documents)

    @property
    def read_id(self) -> str:
        """The first message that is seen; "" at the end, which is followed."""
        anchor = None if self._following else self._anchor()
        return anchor[0].message.id if anchor is not None else ""

    def show_messages(self, messages: Sequence[Message]) -> None:
        """Takes away what there is and begins to show these, the newest first."""
        self._clear()
        self._set_following(True)
        for message in messages:
            self._append(message)
        self._place()

    def show_branch(self, messages: Sequence[Message]) -> None:
        """Shows these in the place of those that there are, whose beginning they share. What both have stays
        where it is, so that a reader who pages finds the buttons under the mouse.
        """
        pairs = zip(self._entries, messages, strict=False)
        num_kept = sum(1 for _ in takewhile(lambda pair: pair[0].message.id == pair[1].id, pairs))
        for entry, message in zip(self._entries[:num_kept], messages, strict=False):
            entry.message = replace(message, text=entry.message.text, thinking=entry.message.thinking)
            if entry.view is not None:
                entry.view.set_versions(message)
        self._set_following(False)
        gone = self._entries[num_kept:]
        del self._entries[num_kept:]
        for entry in gone:
            del self._by_id[entry.message.id]
        self._dispose(gone)
        for message in messages[num_kept:]:
            self._append(message)
        if num_kept < len(messages):
            self._build_view(self._entries[num_kept])  # at once, or it would be empty where the mouse is
        self._place()

    def add(self, message: Message) -> MessageView:
        """Shows one more message at the end and goes there."""
        entry = self._append(message)
        view = self._build_view(entry)
        self._set_following(True)
        self._place()
        return view

    def begin_answer(self, message: Message) -> None:
        """The turn of an answer that waited has come; nothing if it isn't among what is shown."""
        entry = self._by_id.get(message.id)
        if entry is None:
            return
        entry.message = message
        if isinstance(entry.view, AnswerView):
            entry.view.begin(message)

    def set_busy(self, busy: bool) -> None:
        """An answer is being written: messages can't be edited or answered anew."""
        self._busy = busy
        for view in self.views:
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
        entry = self._by_id.get(message_id)
        if entry is None:
            return
        if isinstance(entry.view, AnswerView):
            entry.view.extend(delta)
        else:
            message = entry.message
            entry.message = replace(
                message, text=message.text + delta.text, thinking=message.thinking + delta.thinking
            )

    def finish_answer(self, message: Message) -> None:
        """How an answer ended."""
        entry = self._by_id.get(message.id)
        if entry is None:
            return
        entry.message = message
        if isinstance(entry.view, AnswerView):
            entry.view.finish(message)

    @property
    def focused_view(self) -> MessageView | None:
        """The message that has the keyboard focus somewhere in it."""
        focus = QApplication.focusWidget()
        return next((view for view in self.views if focus is not None and view.isAncestorOf(focus)), None)

    def view(self, message_id: str) -> MessageView | None:
        """None for a message that isn't here, or that is too far off to have a view."""
        entry = self._by_id.get(message_id)
        return entry.view if entry is not None else None

    def jump_to_end(self) -> None:
        self._set_following(True)
        self._scroll_to_end()

    def jump_to(self, message_id: str, terms: Sequence[str] = ()) -> None:
        """Show a message, and in it the first place of one of these (folded) words, marked."""
        entry = self._by_id.get(message_id)
        if entry is None:
            return
        self._set_following(False)
        self._build_view(entry)
        self._place()
        # Then it is the first one that is seen, so it stays there.
        self.verticalScrollBar().setValue(entry.top - 1)
        self._jump.begin(message_id, terms)

    def select(self, document: DocumentView, start: int, stop: int) -> None:
        """Nothing else is selected then."""
        self._selection.select(document, start, stop)

    def apply_theme(self) -> None:
        """The messages that are seen at once, the others in slices."""
        self._work.start(self._restyle(), first=True)

    def selected_text(self) -> str:
        return self._selection.text()

    def _clear(self) -> None:
        self._work.cancel_all()
        self._rearranging = self._building = False
        self._selection.forget()
        self._jump.forget()
        self._left_out = ("", 0)
        old, self._entries, self._by_id = self._entries, [], {}
        self._dispose(old)
        self._place()

    def _append(self, message: Message) -> Entry:
        entry = Entry(message, len(self._entries))
        self._entries.append(entry)
        self._by_id[message.id] = entry
        return entry

    def _dispose(self, entries: Sequence[Entry]) -> None:
        """Takes away the views of entries."""
        views = [entry.view for entry in entries if entry.view is not None]
        for entry in entries:
            entry.view = None
        for view in views:
            view.hide()
        if views:
            self._disposal.start(_delete(views))

    # Views near to what is seen

    def _wanted(self, count: int) -> Iterator[int]:
        """Indices of what should have a view, the first one first."""
        top = self.verticalScrollBar().value()
        seen = seen_range(self._entries, top, top + self.viewport().height())
        num_entries = len(self._entries)
        last = range(num_entries - 1, max(-1, num_entries - 1 - NUM_LAST), -1)
        return chain(nearest(num_entries, seen, count, upwards=self._following), last)

    def _next_unbuilt(self) -> Entry | None:
        entries = self._entries
        return next((entries[one] for one in self._wanted(NUM_BUILT) if entries[one].view is None), None)

    def _start_building(self) -> None:
        if not self._building and self._next_unbuilt() is not None:
            self._building = True
            self._work.start(self._build())

    def _build(self) -> Iterator[None]:
        """What is seen changes meanwhile, so the next one is looked for anew each time."""
        while (entry := self._next_unbuilt()) is not None:
            self._build_view(entry)
            self._place(entry.index)
            self._drop_far()
            yield
        self._building = False

    def _build_view(self, entry: Entry) -> MessageView:
        if entry.view is None:
            entry.view = self._make(entry)
            entry.width = 0
        return entry.view

    def _drop_far(self) -> None:
        """Takes away views that are far off, unless a person has changed something in them."""
        num_views = sum(entry.view is not None for entry in self._entries)
        if num_views <= NUM_KEPT + NUM_LAST:
            return
        near = set(self._wanted(NUM_KEPT))
        focused = self.focused_view
        far = [
            entry
            for entry in self._entries
            if entry.view is not None
            and entry.index not in near
            and entry.view is not focused
            and not entry.view.pinned
            and not self._selection.touches(entry.view)
        ]
        self._dispose(far)

    def _make(self, entry: Entry) -> MessageView:
        message = entry.message
        view = message_view(message, self._work, self._content)
        view.height_changed.connect(lambda: self._on_height_changed(entry))
        view.link_activated.connect(self.link_activated)
        view.document_added.connect(self._selection.watch)
        view.asked.connect(lambda action: self.asked.emit(action, view.message_id))
        view.set_busy(self._busy)
        if message.id == self._left_out[0]:
            view.set_left_out(self._left_out[1])
        for document in view.documents:
            self._selection.watch(document)
        below = (other.view for other in self._entries[entry.index + 1 :] if other.view is not None)
        if (following := next(below, None)) is not None:
            view.stackUnder(following)  # screen readers take the order from this
        view.show()
        return view

    def _restyle(self) -> Iterator[None]:
        built = [entry for entry in self._entries if entry.view is not None]
        seen = [entry for entry in built if self._is_seen(entry)]
        for entry in seen:
            _restyle(entry)
        self._place()
        self._go_to_read_place()
        yield
        for entry in built:
            if entry not in seen:
                _restyle(entry)
                self._place(entry.index)
                yield

    def _is_seen(self, entry: Entry) -> bool:
        top = self.verticalScrollBar().value()
        return entry.top < top + self.viewport().height() and entry.bottom > top

    def _on_height_changed(self, entry: Entry) -> None:
        if entry.view is not None and entry.width:
            entry.width = 0
            self._place(entry.index)

    def _on_scrolled(self) -> None:
        if not self._arranging:
            self._set_following(self.at_bottom)
            self._start_building()

    def _set_following(self, following: bool) -> None:
        if following != self._following:
            self._following = following
            self.at_bottom_changed.emit(following)

    def _scroll_to_end(self) -> None:
        self._arranging = True
        self.verticalScrollBar().setValue(self.verticalScrollBar().maximum())
        self._arranging = False
        self._start_building()

    # Places

    def _fit(self, entry: Entry, column: int) -> None:
        """Finds the height at a width. A view that is out of sight keeps the one it had at another width
        until its turn comes.
        """
        if entry.width == column:
            return
        if entry.view is None:
            entry.height, entry.width = estimated_height(entry.message, column), column
        elif entry.width and not self._is_seen(entry):
            if not self._rearranging:
                self._rearranging = True
                self._work.start(self._rearrange())
        else:
            entry.width = column  # first, for a view may say meanwhile that it has changed
            entry.height = entry.view.arrange(column)

    def _place(self, first: int = 0) -> None:
        """Gives every message from the first one on its place. Only views that have changed are arranged
        anew.
        """
        width = self.viewport().width()
        whole = self.width()  # with the scroll bar: text stays where it is when that comes or goes
        column = max(120, min(scaled(TEXT_COLUMN_WIDTH), whole - 2 * SPACE_XL))
        left = (whole - column) // 2
        if (left, column) != self._column:
            self._column, first = (left, column), 0
        anchor = None if self._following else self._anchor()
        self._arranging = True
        top = _TOP if not first else self._entries[first - 1].bottom + self._entries[first - 1].gap
        for index in range(first, len(self._entries)):
            entry = self._entries[index]
            self._fit(entry, column)
            entry.top = top
            if entry.view is not None:
                entry.view.setGeometry(left, top, column, entry.height)
            top = entry.bottom + entry.gap
        total = self._entries[-1].bottom + _BOTTOM if self._entries else 0
        self._content.resize(width, max(total, self.viewport().height()))
        bar = self.verticalScrollBar()
        if self._following:
            bar.setValue(bar.maximum())
        elif anchor is not None:
            entry, offset = anchor
            bar.setValue(entry.top - offset)
        self._arranging = False
        if not self._following and self.at_bottom:
            self._set_following(True)
        self._start_building()

    def _anchor(self) -> tuple[Entry, int] | None:
        """The first message that is seen, and where it stands in the viewport: it is to stay there."""
        top = self.verticalScrollBar().value()
        for index in seen_range(self._entries, top, top + self.viewport().height()):
            entry = self._entries[index]
            if entry.width and entry.bottom > top:
                return entry, entry.top - top
        return None

    def _keep_read_place(self) -> None:
        """Of a message that is higher than the window, what is read is to stay, not its beginning."""
        anchor = None if self._following else self._anchor()
        self._read_place = (anchor[0], -anchor[1] / max(1, anchor[0].height)) if anchor is not None else None

    def _go_to_read_place(self) -> None:
        place, self._read_place = self._read_place, None
        if place is not None and place[0] in self._entries:
            self.verticalScrollBar().setValue(round(place[0].top + place[1] * place[0].height))

    def _rearrange(self) -> Iterator[None]:
        """Steps that bring views of another width up to date; they keep their old heights until then."""
        for entry in reversed(self._entries):
            if entry.view is not None and entry.width and entry.width != self._column[1]:
                entry.width = 0
                self._place(entry.index)
                yield
        self._rearranging = False

    # Qt overrides

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place()
        self.resized.emit()

    def wheelEvent(self, event: QWheelEvent) -> None:
        if not event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            self._turned = 0
            super().wheelEvent(event)
            return
        event.accept()
        self._turned += event.angleDelta().y()
        steps = int(self._turned / _NOTCH)
        if steps:
            self._turned -= steps * _NOTCH
            self.text_size_asked.emit(steps)


def _restyle(entry: Entry) -> None:
    if entry.view is not None:
        entry.view.apply_theme()
        entry.width = 0


def _delete(views: list[MessageView]) -> Iterator[None]:
    for view in views:
        shiboken6.delete(view)  # deleteLater would have all of them deleted at once
        yield
