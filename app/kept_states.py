"""What is kept of conversations beside their messages: how much that may be, how much it is, and where.

It only saves time: whatever is removed is computed again from the messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QObject, Signal

from app.conversation_database import damaged_copies
from app.conversations import ConversationStore
from app.operations import BackgroundRunner
from app.settings_keeper import SettingsKeeper
from app.store_session import StoreSession
from app.worker import EngineWorker
from engine.notices import Notice


@dataclass(frozen=True)
class KeptStates:
    """What lies on disk, of all models, and what is taken where nothing is chosen."""

    folder: Path
    num_bytes: int
    default_ram_bytes: int
    default_disk_bytes: int


def measure(folder: Path) -> KeptStates:
    """Its modules are imported on the thread that measures."""
    from engine.conversation_states import default_ram_budget
    from engine.states.kv_folder import default_limit, used_bytes

    return KeptStates(folder, used_bytes(folder), default_ram_budget(), default_limit(folder))


def remove_leftovers(store: ConversationStore, folder: Path) -> tuple[Notice, ...]:
    """Removes what is kept of conversations that are not in the store: the program may have ended in the
    middle of a deletion, and another window may have written a file after it. The notices say what stays.

    Only a store that can be written says what there is. While a damaged one is kept beside it, nothing is
    removed: it may be mended, and times don't tell which files are of its conversations, for a copy of the
    folder has others.
    """
    if store.read_only or damaged_copies(store.path) or not folder.is_dir():
        return ()
    from engine.states.kv_folder import forget_all_but

    return forget_all_but(folder, store.all_ids)


class KeptStatesSession(QObject):
    """Limits, measures and removes it, without waiting for an answer that is being written."""

    measured = Signal(object)  # KeptStates
    notice_raised = Signal(object)

    def __init__(
        self,
        worker: EngineWorker,
        settings: SettingsKeeper,
        *,
        folder: Path,
        disk: BackgroundRunner,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._worker = worker
        self._settings = settings
        self._folder = folder
        self._disk = disk
        self._closed = False

    def close(self) -> None:
        """What is asked for from now on is not done."""
        self._closed = True

    def remove_leftovers(self, store: StoreSession) -> None:
        """See the function. On the store's thread."""

        def on_removed(notices: tuple[Notice, ...]) -> None:
            for notice in notices:
                self.notice_raised.emit(notice)

        store.run(
            lambda opened: remove_leftovers(opened, self._folder),
            on_removed,
            self.notice_raised.emit,
            doing="removing what is kept of deleted conversations",
        )

    def measure(self) -> None:
        """Ends in `measured`."""
        if self._closed:
            return
        self._disk.run(
            lambda: measure(self._folder),
            self.measured.emit,
            self.notice_raised.emit,
            doing="looking at what is kept of conversations",
        )

    def limit(self, *, ram_bytes: int | None, disk_bytes: int | None) -> None:
        """From now on, and for what is kept already. None: chosen by itself; 0: nothing is kept. Ends in
        `measured`.
        """
        if self._closed:
            return
        self._settings.change(state_ram_bytes=ram_bytes, state_disk_bytes=disk_bytes)
        self._worker.limit_states(ram_bytes=ram_bytes, disk_bytes=disk_bytes)

        def shortened() -> KeptStates:
            from engine.states.kv_folder import limit_folder

            limit_folder(self._folder, disk_bytes)
            return measure(self._folder)

        self._disk.run(
            shortened,
            self.measured.emit,
            self.notice_raised.emit,
            doing="limiting what is kept of conversations",
        )

    def remove_all(self) -> None:
        """Of all conversations and models; they are read again when they go on. Ends in `measured`. An answer
        that is being written keeps what it needs until its end.
        """
        if self._closed:
            return
        self._worker.forget_all()

        def removed() -> KeptStates:
            from engine.states.kv_folder import shorten

            shorten(self._folder, 0)  # what can't be removed is told by the engine's thread
            return measure(self._folder)

        self._disk.run(
            removed,
            self.measured.emit,
            self.notice_raised.emit,
            doing="removing what is kept of conversations",
        )
