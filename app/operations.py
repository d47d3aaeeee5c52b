"""Slow functions off the GUI thread, with success and failure both written at the call."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import TypeVar

from PySide6.QtCore import QObject

from app.faults import notice_from
from app.threads import LoopThread, Mailbox
from engine.notices import Notice

T = TypeVar("T")
JOIN_TIMEOUT_MS = 10_000


class BackgroundRunner(QObject):
    """One background thread that runs functions one after the other, in the order they were given.

    `on_success` and `on_error` are called on the thread that made the runner. Exactly one of them is called
    for every function, also for those that wait when `shutdown` is called.
    """

    def __init__(self, name: str, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._mailbox = Mailbox(self)
        self._closed = False
        self._thread = LoopThread(name, self._loop)
        self._thread.begin()

    def run(
        self,
        function: Callable[[], T],
        on_success: Callable[[T], None],
        on_error: Callable[[Notice], None],
        *,
        doing: str,
    ) -> None:
        """`doing` says what the function does, for the sentence of an unexpected failure: "saving the
        settings".
        """
        assert not self._closed, "run after shutdown"

        def work() -> None:
            try:
                result = function()
            except Exception as error:  # noqa: BLE001  (nothing may end the thread; every error is reported)
                notice = notice_from(error, doing=doing)
                self._mailbox.post(lambda: on_error(notice))
            else:
                self._mailbox.post(lambda: on_success(result))

        self._work.put(work)

    def shutdown(self, timeout_ms: int = JOIN_TIMEOUT_MS) -> bool:
        """Let everything that waits be done, end the thread, make the last calls. False: it did not end in
        time.
        """
        if self._closed:
            return True
        self._closed = True
        self._work.put(None)
        joined = self._thread.join(timeout_ms)
        self._mailbox.drain()
        self._mailbox.close()
        return joined

    def _loop(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # or its captured records live until the next one comes
