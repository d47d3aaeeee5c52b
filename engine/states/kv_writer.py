"""Writes states to disk on a thread of its own: no answer waits for the disk.

A state that is being written stays in memory until its file is whole. The thread starts with the first one,
ends when there are none, and the interpreter does not end before it: what is being written at the end of the
program is written to the end.
"""

from __future__ import annotations

import errno
import os
import threading
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import Cancelled
from engine.notices import Notice
from engine.states.kv_file import KvKey, WritingStopped, write_kv_file

if TYPE_CHECKING:
    import torch

_SECONDS_BETWEEN_LOOKS = 0.05  # at what may cancel a wait

MakeRoom = Callable[["StoredState"], bool]
OnEnd = Callable[[OSError | None], None]  # why it could not be written; None: it was


class StoredState:
    """One state's file: being written, there, or gone. See `engine.states.state.DiskCopy`."""

    def __init__(
        self,
        writer: KvWriter,
        path: Path,
        key: KvKey,
        *,
        conversation: str,
        ids: array[int],
        used_ns: int,
        pages: Sequence[torch.Tensor] = (),
        ready: bool = True,
    ) -> None:
        """pages: what is to be written, where the file isn't `ready`."""
        self.path = path
        self.key = key
        self.conversation = conversation
        self.ids = ids
        self.used_ns = used_ns
        self.ready = ready
        self.failed = False
        self._writer = writer
        self._pages = pages
        self._stop = threading.Event()

    @property
    def pages(self) -> Sequence[torch.Tensor]:
        """What is still to be written, from any thread: none as soon as it is, or will never be."""
        return self._pages

    def is_there(self) -> bool:
        return self.ready and self.path.exists()

    def remove(self) -> None:
        """The file is gone, and if it is only being written, there will never be one."""
        self._writer.stop(self)
        with self._writer.lock:  # a file that is just put at its place is there then, and removed
            self.ready, self.failed = False, True
            self._writer.unlink(self.path)

    @property
    def is_stopped(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        """Called by the writer, see there."""
        self._stop.set()

    def give_up(self) -> None:
        """It can't be written, ever."""
        self.failed, self._pages = True, ()

    def write(self, make_room: MakeRoom, on_end: OnEnd) -> None:
        """Called by the writer's thread."""
        try:
            if not self._stop.is_set() and make_room(self):
                self._write()
                on_end(None)
        except WritingStopped:
            pass
        except OSError as error:
            on_end(error)
        finally:
            self._pages = ()
            self.failed = not self.ready

    def _write(self) -> None:
        file = write_kv_file(
            self.path,
            self.key,
            conversation=self.conversation,
            ids=self.ids,
            pages=self._pages,
            stop=self._stop,
        )
        try:
            with self._writer.lock:
                if self._stop.is_set():
                    raise WritingStopped
                file.finish()
                self.ready = True
                self._date()
        finally:
            file.abort()  # does nothing to a file that is at its place

    def _date(self) -> None:
        try:
            os.utime(self.path, ns=(self.used_ns, self.used_ns))
        except OSError:  # it counts as used just now, then, and goes a little later than it should
            pass


class KvWriter:
    """The thread of one folder. All methods may be called from any thread."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # held while a file appears or goes
        self.limit_bytes = 0  # for all files of the folder
        self.stuck: list[Path] = []  # files that could not be removed
        self.notices: list[Notice] = []  # of what could not be written; a store may be gone by then
        self.has_failed = False  # the last write did; that is told once
        self._jobs: deque[tuple[StoredState, MakeRoom, OnEnd]] = deque()  # the first is being written
        self._idle = threading.Condition(self.lock)
        self._running = False

    @property
    def num_pending(self) -> int:
        with self.lock:
            return len(self._jobs)

    def pending(self) -> list[StoredState]:
        """What is still to be written, by whatever store it was given here."""
        with self.lock:
            return [state for state, _, _ in self._jobs if not state.is_stopped]

    def submit(self, state: StoredState, make_room: MakeRoom, on_end: OnEnd) -> None:
        """An older write of the same file is given up: it would be replaced, and what is no longer true of
        the state would appear with it.
        """
        with self.lock:
            for older in [older for older, _, _ in self._jobs if older.path == state.path]:
                self.stop(older)
            self._jobs.append((state, make_room, on_end))
            if not self._running:
                self._start()

    def stop(self, state: StoredState) -> None:
        """There will be no file of it, unless it is put at its place in this instant."""
        state.stop()
        with self.lock:
            waiting = list(self._jobs)[1:]  # the first is left to the thread: it may be in the middle of it
            if any(each is state for each, _, _ in waiting):
                self._jobs = deque([self._jobs[0], *(job for job in waiting if job[0] is not state)])
                state.give_up()

    def forget(self, conversation: str | None) -> None:
        """Nothing more is written of it (None: of any), by whatever store it was given here."""
        with self.lock:
            states = [state for state, _, _ in self._jobs if conversation in (None, state.conversation)]
        for state in states:
            state.remove()

    def pages(self) -> list[torch.Tensor]:
        """What is still to be written, in memory, whether its file is still wanted or not."""
        with self.lock:
            return [page for state, _, _ in self._jobs for page in state.pages]

    def wait_for_a_file(self, seconds: float) -> None:
        """Until one more is written, or so long."""
        with self._idle:
            self._idle.wait(seconds)

    def wait(self, cancel: threading.Event | None = None) -> None:
        """Until nothing is left to be written. Raises Cancelled once `cancel` is set."""
        interval = None if cancel is None else _SECONDS_BETWEEN_LOOKS
        with self._idle:
            while not self._idle.wait_for(lambda: not self._running, interval):
                if cancel is not None and cancel.is_set():
                    raise Cancelled

    def unlink(self, path: Path) -> None:
        """Never raises: a file that can't be removed is kept in `stuck`."""
        try:
            path.unlink(missing_ok=True)
        except NotADirectoryError:  # its folder is no folder, so the file isn't there either
            pass
        except OSError:
            with self.lock:
                self.stuck.append(path)

    def _start(self) -> None:
        """A thread for the jobs that there are; the lock is held."""
        thread = threading.Thread(target=self._run, name="kv-writer", daemon=False)
        try:
            thread.start()
        except RuntimeError as error:  # the system has none left, or the interpreter is about to end
            self._running = False
            while self._jobs:
                state, _, on_end = self._jobs.popleft()
                state.give_up()
                on_end(OSError(errno.EAGAIN, str(error)))
            self._idle.notify_all()
        else:
            self._running = True

    def _run(self) -> None:
        try:
            while self._write_next():
                pass
        except BaseException:  # the program itself is at fault: told by the thread's end
            with self.lock:
                self._start()  # whoever waits must not wait for ever
            raise

    def _write_next(self) -> bool:
        with self.lock:
            if not self._jobs:
                self._running = False  # from here on, a new job needs a new thread
                self._idle.notify_all()
                return False
            state, make_room, on_end = self._jobs[0]
        try:
            state.write(make_room, on_end)
        finally:
            with self.lock:
                self._jobs.popleft()
                self._idle.notify_all()
        return True


def pending_bytes() -> int:
    """What states take in memory that are still to be written, to whatever folder; any thread."""
    pages = {id(page): page.nbytes for writer in _all_writers() for page in writer.pages()}
    return sum(pages.values())


def wait_for_a_file(seconds: float) -> None:
    """Until one more of them is written, or so long."""
    for writer in _all_writers():
        if writer.num_pending:
            writer.wait_for_a_file(seconds)
            return


_writers: dict[Path, KvWriter] = {}  # never let go: what went wrong may have to be told by the next load
_writers_lock = threading.Lock()


def _all_writers() -> list[KvWriter]:
    with _writers_lock:
        return list(_writers.values())


def writer_of(root: Path) -> KvWriter:
    """The writer of a folder: one in this process, so that a model that is loaded again finds what is still
    being written since it was unloaded.
    """
    with _writers_lock:
        writer = _writers.get(root)
        if writer is None:
            writer = _writers[root] = KvWriter()
        return writer
