"""Who writes answers into a file of conversations: several windows may be open on it at once.

Each writer holds a lock on a small file of its own beside it, named in the answers that it writes. The lock
ends with the process, however that ends, so an answer whose writer's file is gone or not locked will not go
on. Where the file system has no locks, the file's contents say which process it is.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import sys
from pathlib import Path
from uuid import uuid4

from app.processes import is_at_work, start_of

_SUFFIX = ".writer"
_ATTEMPTS = 8
_LOCKED_BYTE = 2**20  # behind the contents: Windows keeps others from reading what is locked
_UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL})


class Writers:
    """The writers of one file: this one, which is at work until `close`, and the others."""

    def __init__(self, path: Path) -> None:
        """Removes what writers of the file at `path` left behind that are gone. Raises OSError."""
        self._file = path
        self.own, self._descriptor = self._begin()
        for entry in path.parent.iterdir():
            name = entry.name.removeprefix(f"{path.name}.").removesuffix(_SUFFIX)
            if entry == self._path(name) and name != self.own:
                _is_held(entry, else_remove=True)

    def close(self) -> None:
        """This writer is gone."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
            _remove(self._path(self.own))

    def at_work(self, writer: str | None) -> bool:
        """Whether answers of this writer may still grow. None: one of a version that left no mark."""
        if writer is None:
            return False
        if writer == self.own:
            return self._descriptor >= 0
        return _is_held(self._path(writer))

    def _begin(self) -> tuple[str, int]:
        """Another process that tidies up may meet the file before it is locked; then a second one is made."""
        for _ in range(_ATTEMPTS):
            writer = uuid4().hex
            path = self._path(writer)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
            descriptor = os.open(path, flags, 0o600)
            try:
                os.write(descriptor, json.dumps(_identity()).encode())
                if _lock(descriptor) is not False and os.fstat(descriptor).st_nlink > 0:
                    return writer, descriptor
            except BaseException:
                os.close(descriptor)
                _remove(path)
                raise
            os.close(descriptor)
        raise OSError(errno.EAGAIN, "another program removes new files from this folder")

    def _path(self, writer: str) -> Path:
        return self._file.with_name(f"{self._file.name}.{writer}{_SUFFIX}")


def _is_held(path: Path, *, else_remove: bool = False) -> bool:
    """Whether the writer of this mark is at work. Another may be about to lock its new mark: it is removed
    under a lock, so that one which holds it has it.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    except OSError:  # gone, or of another person; if that one does end its answer, it still counts
        return False
    try:
        locked_now = _lock(descriptor)
        held = not locked_now if locked_now is not None else _says_at_work(path)
        if else_remove and not held and sys.platform != "win32":
            _remove(path)
    finally:
        os.close(descriptor)
    if else_remove and not held and sys.platform == "win32":  # what anybody has open stays there
        _remove(path)
    return held


def _identity() -> dict[str, object]:
    return {"computer": platform.node(), "process": os.getpid(), "started": start_of(os.getpid())}


def _says_at_work(path: Path) -> bool:
    """By the file's contents. A process of another computer can't be seen, and counts as gone."""
    try:
        identity = json.loads(path.read_text(encoding="utf-8"))
        if identity["computer"] != platform.node():
            return False
        return is_at_work(identity["process"], identity["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _lock(descriptor: int) -> bool | None:
    """False: somebody else holds the lock. None: there are no locks here. It ends with the descriptor."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            return False
        if error.errno not in _UNSUPPORTED:
            raise
        return None
    return True


def _remove(path: Path) -> None:
    """A file that stays is tried again at the next start."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        pass
