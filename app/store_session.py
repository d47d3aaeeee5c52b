"""The conversation store on its own thread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from app.conversations import ConversationStore
from app.operations import BackgroundRunner
from engine.notices import Notice

T = TypeVar("T")


class StoreSession:
    """Runs functions of the store in order, on the thread that owns it, and opens it when the first one
    comes.

    A store that could not be opened is tried again by the next call, so that freeing some space is all it
    takes.
    """

    def __init__(self, path: Path, *, runner: BackgroundRunner, on_notice: Callable[[Notice], None]) -> None:
        """`on_notice` is told what was found when the file was opened, on the thread that made the runner."""
        self._path = path
        self._runner = runner
        self._on_notice = on_notice
        self._store: ConversationStore | None = None  # these two are touched on the runner's thread alone
        self._untold: tuple[Notice, ...] = ()

    def run(
        self,
        function: Callable[[ConversationStore], T],
        on_success: Callable[[T], None],
        on_error: Callable[[Notice], None],
        *,
        doing: str,
    ) -> None:
        def work() -> tuple[T, tuple[Notice, ...]]:
            result = function(self._opened())
            notices, self._untold = self._untold, ()
            return result, notices

        def on_done(done: tuple[T, tuple[Notice, ...]]) -> None:
            result, notices = done
            for notice in notices:
                self._on_notice(notice)
            on_success(result)

        self._runner.run(work, on_done, on_error, doing=doing)

    def close(self, on_error: Callable[[Notice], None]) -> None:
        """Close the file once everything queued before is done."""
        self._runner.run(self._close, lambda _: None, on_error, doing="closing the conversations")

    def _opened(self) -> ConversationStore:
        if self._store is None:
            self._store = ConversationStore(self._path)
            self._untold = self._store.notices
        return self._store

    def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()
