"""Searching while a person types: on a thread of its own, of which only the last wish counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QObject, QTimer, Signal, Slot

from app.operations import BackgroundRunner
from app.search import ConversationSearch, SearchOvertakenError, SearchResult
from engine.notices import Notice

_SETTLE_MS = 2_000  # after a change, before the index takes it in
_PAUSE_MS = 20  # between two steps of the index: a search that is asked for meanwhile goes first


class SearchSession(QObject):
    """Its thread begins with the first search or change."""

    found = Signal(object)  # SearchResult of what was asked for last
    failed = Signal(object)  # Notice

    def __init__(self, path: Callable[[], Path], parent: QObject | None = None) -> None:
        """path: where the conversations are now."""
        super().__init__(parent)
        self._path = path
        self._runner: BackgroundRunner | None = None
        self._search: ConversationSearch | None = None  # this one is touched on the runner's thread alone
        self._wish = 0
        self._indexing = False
        self._closed = False
        self._settle = QTimer(self, interval=_SETTLE_MS, singleShot=True)
        self._settle.timeout.connect(self._index)
        self._pause = QTimer(self, interval=_PAUSE_MS, singleShot=True)
        self._pause.timeout.connect(self._step)

    def search(self, query: str) -> None:
        """Ends in `found` or `failed`, unless something else is asked for meanwhile."""
        self._wish += 1
        wish = self._wish

        def find() -> SearchResult | None:
            if wish != self._wish:
                return None
            try:
                return self._opened().find(query, wanted=lambda: wish == self._wish)
            except SearchOvertakenError:
                return None

        def on_found(result: SearchResult | None) -> None:
            if result is not None and wish == self._wish:
                self.found.emit(result)

        def on_error(notice: Notice) -> None:
            if wish == self._wish:
                self.failed.emit(notice)

        self._run(find, on_found, on_error)

    def forget(self) -> None:
        """Nothing is looked for any more."""
        self._wish += 1

    @Slot()
    def refresh(self) -> None:
        """Conversations have changed, or are read for the first time."""
        if not self._closed and not self._indexing:
            self._settle.start()

    @Slot()
    def reopen(self) -> None:
        """The conversations are in another place now."""
        self._run(self._close, lambda _: self.refresh(), lambda _: None)

    def shutdown(self) -> bool:
        """False: the thread did not end in time."""
        if self._closed:
            return True
        self._wish += 1
        self._settle.stop()
        self._pause.stop()
        if self._runner is None:
            self._closed = True
            return True
        self._run(self._close, lambda _: None, lambda _: None)
        self._closed = True
        return self._runner.shutdown()

    def _index(self) -> None:
        if not self._closed and not self._indexing:
            self._indexing = True
            self._step()

    def _step(self) -> None:
        def on_done(more: bool) -> None:
            self._indexing = more
            if more and not self._closed:
                self._pause.start()

        def on_error(_notice: Notice) -> None:
            self._indexing = False  # a search that is asked for meets it, too, and tells

        self._run(lambda: self._opened().advance(), on_done, on_error)

    def _run(self, function: Callable, on_success: Callable, on_error: Callable) -> None:  # type: ignore[type-arg]
        if self._closed:
            return
        if self._runner is None:
            self._runner = BackgroundRunner("search", self)
        self._runner.run(function, on_success, on_error, doing="searching the conversations")

    def _opened(self) -> ConversationSearch:
        if self._search is None:
            self._search = ConversationSearch(self._path())
        return self._search

    def _close(self) -> None:
        search, self._search = self._search, None
        if search is not None:
            search.close()
