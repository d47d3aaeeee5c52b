"""A file that is written bit by bit over minutes and appears under its name whole, or not at all.

Until then it lies beside that place under a name of its own, locked by the process that writes it. The lock
ends with the process, however that ends, so whoever finds such a file unlocked may remove it. The same lock,
shared, tells that a finished file is being read.
"""

from __future__ import annotations

import errno
import io
import os
import secrets
import sys
from pathlib import Path

from engine.durability import sync_folder

_ATTEMPTS = 8
_MOST_AT_ONCE = 2**30  # bytes a call: some systems take less than 2 GiB
_UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL})


class PartFile:
    """Every method raises OSError when the system does; then `abort` is what is left to do."""

    def __init__(self, path: Path) -> None:
        """Makes the folder where it is missing, and an empty file in it."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor, self.part_path = _new_part(path)

    def write(self, data: memoryview, offset: int) -> None:
        """All of `data` (bytes), from `offset` on."""
        os.lseek(self._descriptor, offset, os.SEEK_SET)
        done = 0
        while done < len(data):
            count = os.write(self._descriptor, data[done : done + _MOST_AT_ONCE])
            if count == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            done += count

    def sync(self) -> None:
        """Returns when the disk has everything. May take as long as writing took."""
        os.fsync(self._descriptor)

    def finish(self) -> None:
        """Puts the file at its place; one that was there is replaced."""
        if sys.platform == "win32":  # open files can't be renamed there, and locks aren't needed (see below)
            self._close()
        os.replace(self.part_path, self._path)
        self._close()
        try:
            sync_folder(self._path.parent)
        except OSError:  # some file systems can't; a power cut now may undo the rename, and nothing else
            pass

    def abort(self) -> None:
        """Removes what was written. After `finish` it does nothing."""
        try:
            self._close()
        finally:
            self.part_path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


def lock_for_reading(handle: io.FileIO) -> None:
    """Keeps `remove_unused` from the file until the handle is closed.

    Without the lock the file may go while it is read, which the open handle survives.
    """
    try:
        _lock(handle.fileno(), shared=True)
    except OSError:
        pass


def remove_unused(path: Path) -> bool:
    """Removes the file unless somebody, here or in another process, has it open. True: it is gone.

    Raises OSError where the system doesn't let it be removed.
    """
    if sys.platform == "win32":
        try:
            path.unlink(missing_ok=True)
        except PermissionError:  # what Windows says of files that are open
            return False
        return True
    try:
        descriptor = os.open(path, os.O_RDWR)  # network file systems lock nothing that is open for reading
    except FileNotFoundError:
        return True
    try:
        if not _lock(descriptor, shared=False):
            return False
        path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)
    return True


def _new_part(path: Path) -> tuple[int, Path]:
    """Another process that tidies up may meet the file before it is locked; then a second one is made."""
    for _ in range(_ATTEMPTS):
        part_path = path.with_name(f"{path.stem}.{secrets.token_hex(6)}.part")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        descriptor = os.open(part_path, flags, 0o600)
        try:
            if _lock(descriptor, shared=False) and os.fstat(descriptor).st_nlink > 0:
                return descriptor, part_path
        except BaseException:
            os.close(descriptor)
            part_path.unlink(missing_ok=True)
            raise
        os.close(descriptor)
    raise OSError(errno.EAGAIN, "another program removes new files from this folder")


def _lock(descriptor: int, *, shared: bool) -> bool:
    """False: another handle holds a lock that excludes this one.

    True where the file system has no locks: there, the worst is that strips have to be made again. Windows
    needs none: it refuses to remove a file that is open.
    """
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        if error.errno not in _UNSUPPORTED:
            raise
    return True
