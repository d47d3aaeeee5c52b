"""Exports and imports in the background: files are read and written on a thread of their own, and the store
is asked only for what goes into it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import TypeVar

from PySide6.QtCore import QObject, Signal

from app.archive import ArchivedConversation
from app.conversation_archive import read_archived
from app.conversation_database import open_reader
from app.conversation_records import storable
from app.conversations import ConversationStore, ConversationSummary
from app.export_json import as_json
from app.export_markdown import as_markdown
from app.files import write_pieces
from app.import_file import read_conversations
from app.operations import BackgroundRunner
from app.store_session import StoreSession
from engine.notices import Notice

T = TypeVar("T")


class ExportFormat(Enum):
    MARKDOWN = auto()
    JSON = auto()


class TransferSession(QObject):
    """Everything ends in a notice. Its thread begins with the first file."""

    imported = Signal(list, list)  # ids of new conversations, list[ConversationSummary]
    notice_raised = Signal(object)

    def __init__(self, store: StoreSession, path: Callable[[], Path], parent: QObject | None = None) -> None:
        """path: where the conversations are now."""
        super().__init__(parent)
        self._store = store
        self._path = path
        self._runner: BackgroundRunner | None = None
        self._closed = False

    def export(self, conversation_ids: Sequence[str], target: Path, form: ExportFormat) -> None:
        """Write these conversations into one file; it replaces one that is there when it is whole."""
        path = self._path()
        self._run(
            lambda: export_conversations(path, conversation_ids, target, form),
            lambda count: self.notice_raised.emit(_exported(count, target)),
            doing="exporting the conversations",
        )

    def import_files(self, paths: Sequence[Path]) -> None:
        """Read files and add what is in them, file by file: each as a whole or not at all."""
        for path in paths:
            self._run(
                lambda path=path: read_conversations(path),
                lambda conversations, path=path: self._add(conversations, path),
                doing=f"importing {path.name}",
            )

    def shutdown(self) -> bool:
        """False: the thread did not end in time."""
        self._closed = True
        return self._runner.shutdown() if self._runner is not None else True

    def _add(self, conversations: list[ArchivedConversation], path: Path) -> None:
        def add(store: ConversationStore) -> tuple[list[str], list[ConversationSummary]]:
            return store.add_archived(conversations), store.summaries()

        def on_added(added: tuple[list[str], list[ConversationSummary]]) -> None:
            self.imported.emit(*added)
            self.notice_raised.emit(_imported(len(added[0]), path))

        if not self._closed:
            self._store.run(add, on_added, self.notice_raised.emit, doing=f"importing {path.name}")

    def _run(self, function: Callable[[], T], on_success: Callable[[T], None], *, doing: str) -> None:
        if self._closed:
            return
        if self._runner is None:
            self._runner = BackgroundRunner("transfer", self)
        self._runner.run(function, on_success, self.notice_raised.emit, doing=doing)


def export_conversations(
    path: Path, conversation_ids: Sequence[str], target: Path, form: ExportFormat
) -> int:
    """Write conversations of the store at `path` into a file; gives how many there were. Raises OSError and
    StoreError.
    """
    reader = open_reader(path).connection
    try:
        found = (read_archived(reader, one) for one in conversation_ids)
        texts = _Counted(one for one in found if one is not None)
        pieces = _as_list(map(as_json, texts)) if form is ExportFormat.JSON else map(as_markdown, texts)
        write_pieces(target, map(storable, pieces))
        return texts.count
    finally:
        reader.close()


class _Counted:
    """Passes conversations on and counts them."""

    def __init__(self, conversations: Iterator[ArchivedConversation]) -> None:
        self._conversations = conversations
        self.count = 0

    def __iter__(self) -> Iterator[ArchivedConversation]:
        for conversation in self._conversations:
            self.count += 1
            yield conversation


def _as_list(values: Iterator[str]) -> Iterator[str]:
    before = "[\n"
    for value in values:
        yield before + value
        before = ",\n"
    yield "\n]\n" if before == ",\n" else "[]\n"


def _exported(count: int, target: Path) -> Notice:
    if count == 1:
        return Notice("conversations-exported", f"The conversation is in {target}.")
    return Notice("conversations-exported", f"{count:,} conversations are in {target}.")


def _imported(count: int, path: Path) -> Notice:
    if count == 1:
        message = f"One conversation was imported from {path.name}."
    else:
        message = f"{count:,} conversations were imported from {path.name}."
    hint = "Conversations stand where their dates put them in the list."
    return Notice("conversations-imported", message, hint)
