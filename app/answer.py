"""The answer that is being written now, and its way to disk: about once a second while it grows, and at
its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter

from PySide6.QtCore import QObject, QTimer, Signal, Slot

from app.conversations import AnswerStats, ConversationStore, Message, MessageStatus
from app.engine_commands import AnswerDelta
from app.store_session import StoreSession
from engine.notices import Notice

SAVE_INTERVAL_MS = 1_000
RETRY_INTERVAL_MS = 5_000

SAVED_AFTER_ALL = Notice("answer-saved", "The answer that could not be saved before is on disk now.")


class AnswerRecorder(QObject):
    """At most one answer grows at a time. What could not be saved stays in memory and is tried again until
    it is.
    """

    finished = Signal(object)  # Message: on disk, or told by notice_raised that it isn't yet
    orphaned = Signal(object)  # Message: its conversation was deleted meanwhile, so it is nowhere on disk
    idle = Signal()  # after the end of every answer, also of one whose conversation was deleted
    notice_raised = Signal(object)

    def __init__(
        self,
        store: StoreSession,
        parent: QObject | None = None,
        *,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        super().__init__(parent)
        self._store = store
        self._clock = clock  # seconds
        self._message: Message | None = None
        self._thinking: list[str] = []
        self._text: list[str] = []
        self._thinking_began: float | None = None
        self._thinking_seconds = 0.0
        self._num_unsaved_deltas = 0
        self._saving = False
        self._growth_failed = False  # told once for an answer, not every second
        self._unsaved: dict[str, Message] = {}  # ended answers by id
        self._closed = False
        self._growth_timer = QTimer(self, interval=SAVE_INTERVAL_MS)
        self._growth_timer.timeout.connect(self._save_growth)
        self._retry_timer = QTimer(self, interval=RETRY_INTERVAL_MS)
        self._retry_timer.timeout.connect(self.retry_unsaved)

    @property
    def begun(self) -> Message | None:
        """The growing answer as it was when it began, or None: says which one it is, at no cost."""
        return self._message

    @property
    def message(self) -> Message | None:
        """The growing answer as far as it has come, or None."""
        if self._message is None:
            return None
        return replace(self._message, text="".join(self._text), thinking="".join(self._thinking))

    @property
    def unsaved(self) -> tuple[Message, ...]:
        """Answers that have ended and are not on disk as they ended."""
        return tuple(self._unsaved.values())

    def begin(self, message: Message) -> None:
        assert self._message is None, "two answers at a time"
        self._message = message
        self._thinking.clear()
        self._text.clear()
        self._thinking_began, self._thinking_seconds = None, 0.0
        self._num_unsaved_deltas = 0
        self._growth_failed = False
        self._growth_timer.start()

    def extend(self, delta: AnswerDelta) -> None:
        self._time_thinking(delta)
        self._thinking.append(delta.thinking)
        self._text.append(delta.text)
        self._num_unsaved_deltas += 1

    def finish(self, status: MessageStatus, stats: AnswerStats | None) -> None:
        """End the growing answer. `finished` and `idle` follow when the disk has answered."""
        message = self.message
        assert message is not None, "no answer grows"
        self._message = None
        self._growth_timer.stop()
        if stats is not None:
            self._end_thinking()
            stats = replace(stats, thinking_seconds=self._thinking_seconds)
        self._save_end(replace(message, status=status, stats=stats), then=self.idle.emit)

    def _time_thinking(self, delta: AnswerDelta) -> None:
        if delta.thinking and self._thinking_began is None and not self._thinking_seconds:
            self._thinking_began = self._clock()
        if delta.text.strip():
            self._end_thinking()

    def _end_thinking(self) -> None:
        if self._thinking_began is not None:
            self._thinking_seconds = self._clock() - self._thinking_began
            self._thinking_began = None

    def end_unbegun(self, final: Message) -> None:
        """Save how an answer ended that never began to grow. `finished` follows, and no `idle`."""
        self._save_end(final, then=lambda: None)

    def _save_end(self, final: Message, *, then: Callable[[], None]) -> None:
        def on_saved(saved: Message | None) -> None:
            if saved is not None:
                self.finished.emit(saved)
            else:
                self.orphaned.emit(final)
            then()

        def on_error(notice: Notice) -> None:
            self._unsaved[final.id] = final
            if not self._closed:
                self._retry_timer.start()
            self.notice_raised.emit(_not_saved(notice, "It stays on the screen and saving it is tried again"))
            self.finished.emit(final)
            then()

        self._store.run(lambda store: save_end(store, final), on_saved, on_error, doing="saving the answer")

    def forget_unsaved(self, messages: Sequence[Message]) -> None:
        """Someone else has saved these."""
        for message in messages:
            self._unsaved.pop(message.id, None)
        if not self._unsaved:
            self._retry_timer.stop()

    @Slot()
    def retry_unsaved(self) -> None:
        """Try again to save what could not be saved; a failure is silent, as it has been told."""
        messages = self.unsaved
        if not messages:
            return

        def on_saved(_: None) -> None:
            self.forget_unsaved(messages)
            self.notice_raised.emit(SAVED_AFTER_ALL)

        self._store.run(
            lambda store: save_ends(store, messages), on_saved, lambda _: None, doing="saving the answer"
        )

    def close(self) -> None:
        """Try a last time to save what is unsaved; afterwards nothing is queued any more."""
        self._closed = True
        self._growth_timer.stop()
        self._retry_timer.stop()
        self.retry_unsaved()

    @Slot()
    def _save_growth(self) -> None:
        message = self.message
        if message is None or self._saving or self._num_unsaved_deltas == 0:
            return
        num_saved = self._num_unsaved_deltas
        self._saving = True

        def on_saved(_: bool) -> None:
            self._saving = False
            if self._message is not None and self._message.id == message.id:
                self._num_unsaved_deltas -= num_saved

        def on_error(notice: Notice) -> None:
            self._saving = False
            if not self._growth_failed:
                self._growth_failed = True
                self.notice_raised.emit(_not_saved(notice, "It goes on and saving it is tried again"))

        self._store.run(
            lambda store: store.extend_answer(message.id, text=message.text, thinking=message.thinking),
            on_saved,
            on_error,
            doing="saving the answer",
        )


def save_end(store: ConversationStore, message: Message) -> Message | None:
    return store.finish_answer(
        message.id, text=message.text, thinking=message.thinking, status=message.status, stats=message.stats
    )


def save_ends(store: ConversationStore, messages: Sequence[Message]) -> None:
    for message in messages:
        save_end(store, message)


def _not_saved(notice: Notice, what_happens: str) -> Notice:
    return replace(notice, hint=f"{what_happens}. {notice.hint}".strip())
