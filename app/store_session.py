"""The conversation store on its own thread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from app.conversations import ConversationStore, StoreError
from app.operations import BackgroundRunner
from engine.notices import Notice

T = TypeVar("T")


class StoreSession:
    """Runs functions of the store in order, on the thread that owns it, and opens it when the first one
    comes.

    A store that could not be opened is tried again by the next call, so that freeing some space is all it
    takes.
    """

    def __init__(
        self,
        path: Path,
        *,
        runner: BackgroundRunner,
        on_notice: Callable[[Notice], None],
        is_chosen: bool = False,
    ) -> None:
        """`on_notice` is told what was found when the file was opened, on the thread that made the runner.
        is_chosen: a person chose the folder, so it is there, or on a drive that is not connected now; a new
        one made in its place would seem to have lost everything.
        """
        self._path = path
        self._is_chosen = is_chosen
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

    def current_path(self) -> Path:
        """The file, wherever it is now."""
        return self._path

    @property
    def folder(self) -> Path:
        return self._path.parent

    def move(
        self,
        folder: Path,
        on_success: Callable[[bool], None],
        on_error: Callable[[Notice], None],
    ) -> None:
        """Go on in another folder: with the conversations that are there (then True is given), or else with a
        copy of all there are. The old file stays where it is. Where it can't be done, nothing is changed.
        """

        def work() -> bool:
            path = folder / self._path.name
            found = path.exists()
            if not found:
                self._opened().copy_to(path)
            moved = ConversationStore(path)
            if moved.read_only:
                moved.close()
                raise StoreError(
                    "store-read-only",
                    f"The conversations in {folder} can only be read.",
                    "Choose another folder, or make this one writable.",
                )
            self._close()
            self._store, self._path, self._is_chosen = moved, path, True
            self._untold = moved.notices
            return found

        self._runner.run(work, on_success, on_error, doing="moving the conversations")

    def close(self, on_error: Callable[[Notice], None]) -> None:
        """Close the file once everything queued before is done."""
        self._runner.run(self._close, lambda _: None, on_error, doing="closing the conversations")

    def _opened(self) -> ConversationStore:
        if self._store is None:
            if self._is_chosen and not self.folder.is_dir():
                raise StoreError(
                    "store-unavailable",
                    f"The folder of the conversations, {self.folder}, is not there.",
                    "Connect the drive that holds it and open a conversation again,"
                    " or choose another folder in the settings.",
                )
            self._store = ConversationStore(self._path)
            self._untold = self._store.notices
        return self._store

    def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()
