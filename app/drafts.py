"""What stands unsent in each chat: kept while it is typed, and there again after a start."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QObject, QTimer

from app.attachments import Attachment
from app.draft_files import DraftFiles
from app.store_session import StoreSession
from engine.notices import Notice

_SAVE_AFTER_MS = 1_000  # of no typing
MAX_SAVED = 2_000_000  # characters; what is longer is kept as long as the program runs
TOO_LONG = Notice(
    "draft-too-long",
    f"What stands in this chat is longer than {MAX_SAVED:,} characters, so it isn't there after a restart.",
    "Send it, or attach it as a file.",
)


class Drafts(QObject):
    """By conversation; None is the new chat."""

    def __init__(
        self, store: StoreSession, on_error: Callable[[Notice], None], parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._store = store
        self._on_error = on_error
        self._texts: dict[str, str] = {}
        self._files: dict[str, DraftFiles] = {}
        self._unsaved: set[str] = set()
        self._unsaved_files: set[str] = set()
        self._told_too_long = False
        self._told = False  # a draft that can't be saved is told once, not with every word
        self._closed = False
        self._timer = QTimer(self, interval=_SAVE_AFTER_MS, singleShot=True)
        self._timer.timeout.connect(self.save)

    def read(self, then: Callable[[], None]) -> None:
        """Know what the last run left, where nothing newer was written meanwhile; then do `then`."""

        def on_read(found: tuple[dict[str, str], dict[str, DraftFiles]]) -> None:
            texts, files = found
            self._texts, self._files = texts | self._texts, files | self._files
            then()

        self._store.run(
            lambda store: (store.drafts(), store.draft_files()),
            on_read,
            lambda _: None,  # whoever reads the conversations meets the same, and tells
            doing="reading what was being written",
        )

    def text(self, conversation_id: str | None) -> str:
        return self._texts.get(conversation_id or "", "")

    def files(self, conversation_id: str | None) -> DraftFiles:
        return self._files.get(conversation_id or "", DraftFiles())

    def keep_files(
        self, conversation_id: str | None, ready: Sequence[Attachment], unread: Sequence[str] = ()
    ) -> None:
        """These stand there now; of those that aren't read yet, the names."""
        key, files = conversation_id or "", DraftFiles.within_bounds(ready, unread)
        if files != self._files.get(key, DraftFiles()):
            self._files[key] = files
            self._unsaved_files.add(key)
            self._timer.start()

    def keep(self, conversation_id: str | None, text: str) -> None:
        """This stands there now."""
        key = conversation_id or ""
        if text == self._texts.get(key, ""):
            return
        self._texts[key] = text
        if len(text) <= MAX_SAVED:
            self._unsaved.add(key)
            self._timer.start()
        elif not self._told_too_long:
            self._told_too_long = True
            self._on_error(TOO_LONG)

    def save(self) -> None:
        """Write what has changed."""
        self._timer.stop()
        texts = {key: self._texts.get(key, "") for key in self._unsaved}
        files = {key: self._files.get(key, DraftFiles()) for key in self._unsaved_files}
        self._unsaved.clear()
        self._unsaved_files.clear()
        if not (texts or files) or self._closed:
            return

        def on_error(notice: Notice) -> None:
            self._unsaved |= texts.keys()
            self._unsaved_files |= files.keys()
            if not self._told:
                self._told = True
                self._on_error(notice)

        self._store.run(
            lambda store: None if store.read_only else store.marks.save_drafts(texts, files),
            lambda _: None,
            on_error,
            doing="saving what was being written",
        )

    def close(self) -> None:
        self.save()
        self._closed = True
