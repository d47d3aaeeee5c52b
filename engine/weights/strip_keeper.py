"""Keeps the strips of one load on a thread of its own: neither quantiser nor person waits for the disk.

The thread has nothing in memory that the model hasn't, and takes hardly any time of a processor; but a disk
may need many seconds for a gigabyte. It goes on behind a load that has succeeded, whatever becomes of the
model, and the interpreter does not end before it: it is no daemon.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Self

from engine.notices import Notice
from engine.weights.strip_cache import StripCache
from engine.weights.strip_file import StripKey
from engine.weights.strip_writer import WritingStopped

if TYPE_CHECKING:
    from engine.weights.strips import Strip

_LOOK_SECONDS = 0.03  # how often somebody who waits is asked whether to go on waiting

_at_work: dict[Path, StripKeeper] = {}  # those whose file isn't at its place yet
_lock = threading.Lock()


class StripKeeper:
    """`with` waits until everything is removed that was written, unless `commit` was reached: then the rest
    is the thread's. All methods are for one thread, but `take_notices`.
    """

    def __init__(self, cache: StripCache, key: StripKey, names: Iterable[str]) -> None:
        self._cache = cache
        self._key = key
        self._names = tuple(names)
        self._jobs: SimpleQueue[tuple[str, Strip] | None] = SimpleQueue()  # None: that was all
        self._stop = threading.Event()
        self._notices: list[Notice] = []
        self._told = False
        self._committed = False
        self._thread = threading.Thread(target=self._run, name="strip-keeper", daemon=False)
        with _lock:
            _at_work[cache.path(key)] = self
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._committed:
            self._stop.set()
            self._jobs.put(None)
            self._thread.join()

    def add(self, name: str, strip: Strip) -> None:
        self._jobs.put((name, strip))

    def commit(self) -> None:
        """Every strip was added, and is to be kept."""
        self._committed = True
        self._jobs.put(None)

    def wait(self, check: Callable[[], None] = lambda: None) -> None:
        """Until the file is at its place, or given up. What `check` raises ends the waiting, not the work."""
        while self._thread.is_alive():
            check()
            self._thread.join(_LOOK_SECONDS)

    def take_notices(self) -> tuple[Notice, ...]:
        """What went wrong since the last time this was asked."""
        with _lock:
            found, self._notices = tuple(self._notices), []
        return found

    def _run(self) -> None:
        try:
            with self._cache.writer(self._key, self._names, stop=self._stop) as writer:
                while (job := self._jobs.get()) is not None:
                    writer.add_strip(*job)
                    self._tell(writer.notices)
                if not self._stop.is_set():
                    writer.commit()
                    self._tell(writer.notices)
        except WritingStopped:
            pass  # the load was given up, and with it everything that was written
        finally:
            with _lock:
                path = self._cache.path(self._key)
                if _at_work.get(path) is self:
                    del _at_work[path]

    def _tell(self, notices: tuple[Notice, ...]) -> None:
        """A writer has one notice at most: then it has given up."""
        with _lock:
            if notices and not self._told:
                self._notices += notices
                self._told = True


def wait_for_keeper(path: Path, check: Callable[[], None]) -> None:
    """Until no load of this process is still about to put a file there."""
    with _lock:
        keeper = _at_work.get(path)
    if keeper is not None:
        keeper.wait(check)
