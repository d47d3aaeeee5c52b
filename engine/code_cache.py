"""Machine code that compilers made of kernels, kept in the person's cache folder from one start to the next.

    code = cache.get(key)
    if code is None:
        code = make_it()
        cache.put(key, code)

A key holds all that the code depends on: text, compiler with its version, processor. It only ever saves time:
whatever goes wrong with the folder, the code is made again, some tenths of a second. A file is used if it and
its folder are this user's, nobody else may change either, and its digest is right; whoever can write such
files could as well change the program itself.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from engine.kept_files import kept_files, remove_abandoned, remove_oldest
from engine.weights.part_file import PartFile

LIMIT_BYTES = 64 * 2**20  # a kernel has some 20 KB, and some of them stay behind with every update

_FILE_NAME = re.compile(r"[0-9a-f]{40}\.code")
_PART_NAME = re.compile(r"[0-9a-f]{40}\.[0-9a-f]{12}\.part")
_DIGEST_BYTES = 32


class CodeCache:
    """A folder of code. Any number of threads and processes may use it at once."""

    def __init__(self, root: Path, *, limit_bytes: int = LIMIT_BYTES) -> None:
        """Touches nothing; the folder is made when something is put into it."""
        self._root = root
        self._limit = limit_bytes

    def get(self, key: Sequence[str]) -> bytes | None:
        path = self._path(key)
        try:
            if not _is_trusted(os.stat(self._root)):
                return None
            with open(path, "rb", opener=_open_at_once) as file:
                status = os.fstat(file.fileno())
                if (
                    not stat.S_ISREG(status.st_mode)
                    or not _is_trusted(status)
                    or status.st_size > self._limit
                ):
                    return None
                content = file.read(status.st_size)
            os.utime(path)
        except OSError:
            return None
        digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        return code if digest == _digest(key, code) else None

    def put(self, key: Sequence[str], code: bytes) -> bool:
        """Whether it is kept now."""
        file: PartFile | None = None
        try:
            self._make_own_folder()
            remove_abandoned(self._root, _PART_NAME)
            files = list(kept_files(self._root, _FILE_NAME))
            size = _DIGEST_BYTES + len(code)
            if not remove_oldest(files, sum(each.num_bytes for each in files) + size - self._limit):
                return False
            file = PartFile(self._path(key))
            file.write(memoryview(_digest(key, code) + code), 0)
            file.finish()  # without waiting for the disk: a power cut leaves a file with a wrong digest
        except OSError:
            return False
        finally:
            if file is not None:
                _abort(file)
        return True

    def _make_own_folder(self) -> None:
        """Many systems let a person's group write to what programs make, so it is said otherwise here."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_trusted(self._root.stat()):
            self._root.chmod(0o700)

    def _path(self, key: Sequence[str]) -> Path:
        return self._root / f"{hashlib.blake2b(_joined(key), digest_size=20).hexdigest()}.code"


def _joined(key: Sequence[str]) -> bytes:
    """Different for different keys."""
    return "".join(f"{len(part)}:{part}" for part in key).encode("utf-8")


def _digest(key: Sequence[str], code: bytes) -> bytes:
    of_key = hashlib.sha256(_joined(key)).digest()
    return hashlib.blake2b(of_key + code, digest_size=_DIGEST_BYTES).digest()


def _open_at_once(path: str, flags: int) -> int:
    """Follows no link, which could lead to a file that came from elsewhere, and waits for nobody at the other
    end of a pipe.
    """
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _is_trusted(status: os.stat_result) -> bool:
    """On Windows the folder's own permissions decide, which every folder of a user's has."""
    if not hasattr(os, "geteuid"):
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _abort(file: PartFile) -> None:
    """Does nothing to a file that is at its place."""
    try:
        file.abort()
    except OSError:  # the next one to be put removes it
        pass
