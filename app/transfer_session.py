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
from app.threads import Mailbox
from app.transfer_job import OnStep, TransferJob, TransferProgress, TransferStage, unwatched
from engine.errors import Cancelled
from engine.notices import Notice

T = TypeVar("T")


class ExportFormat(Enum):
    MARKDOWN = auto()
    JSON = auto()


class TransferSession(QObject):
    """Everything ends in a notice. Its thread begins with the first file."""

    imported = Signal(list, list)  # ids of new conversations, list[ConversationSummary]
    progressed = Signal(object)  # TransferProgress, of what takes long; None: nothing is under way now
    notice_raised = Signal(object)

    def __init__(self, store: StoreSession, path: Callable[[], Path], parent: QObject | None = None) -> None:
        """path: where the conversations are now."""
        super().__init__(parent)
        self._store = store
        self._path = path
        self._runner: BackgroundRunner | None = None
        self._mailbox = Mailbox(self)
        self._jobs: list[TransferJob] = []  # that have not ended
        self._closed = False

    def export(self, conversation_ids: Sequence[str], target: Path, form: ExportFormat) -> None:
        """Write these conversations into one file; it replaces one that is there when it is whole."""
        path = self._path()
        job = self._new_job(target.name)
        step = job.watcher(TransferStage.WRITING, len(conversation_ids))

        def on_exported(count: int) -> None:
            self._end(job)
            self.notice_raised.emit(_exported(count, target))

        self._run(
            job,
            lambda: export_conversations(path, conversation_ids, target, form, on_step=step),
            on_exported,
            _EXPORT_CANCELLED,
            doing="exporting the conversations",
        )

    def import_files(self, paths: Sequence[Path]) -> None:
        """Read files and add what is in them, file by file: each as a whole or not at all."""
        for path in paths:
            job = self._new_job(path.name)
            self._run(
                job,
                lambda path=path, job=job: read_conversations(path, job.watcher(TransferStage.READING)),
                lambda conversations, path=path, job=job: self._add(job, conversations, path),
                _import_cancelled(path),
                doing=f"importing {path.name}",
            )

    def cancel(self) -> None:
        """Give up all that has not ended: of each file nothing is written, or nothing added."""
        for job in self._jobs:
            job.cancel.set()

    def shutdown(self) -> bool:
        """False: the thread did not end in time."""
        self._closed = True
        self._mailbox.close()
        return self._runner.shutdown() if self._runner is not None else True

    def _add(self, job: TransferJob, conversations: list[ArchivedConversation], path: Path) -> None:
        step = job.watcher(TransferStage.ADDING, len(conversations))

        def add(store: ConversationStore) -> tuple[list[str], list[ConversationSummary]]:
            return store.add_archived(conversations, step), store.summaries()

        def on_added(added: tuple[list[str], list[ConversationSummary]] | None) -> None:
            self._end(job)
            if added is None:
                self.notice_raised.emit(_import_cancelled(path))
                return
            self.imported.emit(*added)
            self.notice_raised.emit(_imported(len(added[0]), path))

        if not self._closed:
            self._store.run(
                lambda store: _unless_cancelled(lambda: add(store)),
                on_added,
                lambda notice: self._fail(job, notice),
                doing=f"importing {path.name}",
            )

    def _run(
        self,
        job: TransferJob,
        function: Callable[[], T],
        on_success: Callable[[T], None],
        cancelled: Notice,
        *,
        doing: str,
    ) -> None:
        if self._closed:
            return
        if self._runner is None:
            self._runner = BackgroundRunner("transfer", self)

        def on_done(result: T | None) -> None:
            if result is None:
                self._fail(job, cancelled)
            else:
                on_success(result)

        self._runner.run(
            lambda: _unless_cancelled(function),
            on_done,
            lambda notice: self._fail(job, notice),
            doing=doing,
        )

    def _new_job(self, name: str) -> TransferJob:
        def report(progress: TransferProgress) -> None:
            self._mailbox.post(lambda: self._on_progress(job, progress))

        job = TransferJob(name, report)
        self._jobs.append(job)
        return job

    def _on_progress(self, job: TransferJob, progress: TransferProgress) -> None:
        if job in self._jobs:
            self.progressed.emit(progress)

    def _fail(self, job: TransferJob, notice: Notice) -> None:
        self._end(job)
        self.notice_raised.emit(notice)

    def _end(self, job: TransferJob) -> None:
        self._jobs.remove(job)
        if not self._jobs:
            self.progressed.emit(None)


def export_conversations(
    path: Path,
    conversation_ids: Sequence[str],
    target: Path,
    form: ExportFormat,
    *,
    on_step: OnStep = unwatched,
) -> int:
    """Write conversations of the store at `path` into a file; gives how many there were. Raises OSError and
    StoreError, and what `on_step` raises; then no file is left.
    """
    reader = open_reader(path).connection
    try:
        found = (read_archived(reader, one) for one in _watched(conversation_ids, on_step))
        texts = _Counted(one for one in found if one is not None)
        pieces = _as_list(map(as_json, texts)) if form is ExportFormat.JSON else map(as_markdown, texts)
        write_pieces(target, map(storable, pieces))
        return texts.count
    finally:
        reader.close()


def _watched(conversation_ids: Sequence[str], on_step: OnStep) -> Iterator[str]:
    for number, one in enumerate(conversation_ids):
        on_step(number)
        yield one


def _unless_cancelled(function: Callable[[], T]) -> T | None:
    """None: it was cancelled."""
    try:
        return function()
    except Cancelled:
        return None


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


_EXPORT_CANCELLED = Notice("transfer-cancelled", "The export was cancelled; no file was written.")


def _import_cancelled(path: Path) -> Notice:
    return Notice("transfer-cancelled", f"The import of {path.name} was cancelled; nothing of it was added.")


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
