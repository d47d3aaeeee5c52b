"""The finished strips of models, kept in a folder so that the second load only reads them.

    lookup = cache.open(key)
    if lookup.file is not None:                                  # reading may still raise StripFileError:
        ...                                                      # then cache.discard(lookup.file, error)
    else:
        with cache.writer(key, names) as writer:
            writer.add_strip(name, strip)                        # for each, as soon as it is made
            if model_identity(folder) == key.model:              # nobody changed the files meanwhile
                writer.commit()
        notices += writer.notices

Nothing that happens to the folder (full, read-only, unreadable, another process) is an error: it is told as
a notice, and the load goes on. A file that can't be used stays until the one that is made instead takes its
place. When the files are larger than the limit together, or the disk is nearly full, those that were not
used for the longest time are removed; never one that is open somewhere. When a file was last used is its
modification time, set anew at each opening, since many systems don't keep access times.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from engine.checkpoints.foreign_files import shown
from engine.kept_files import LEAST_FREE_BYTES, kept_files, limit_on_disk, remove_abandoned, remove_oldest
from engine.notices import Notice
from engine.weights.strip_file import StripFile, StripFileError, StripKey
from engine.weights.strip_writer import StripFileWriter

if TYPE_CHECKING:
    import torch

    from engine.weights.strips import Strip

MAX_LIMIT_BYTES = 50 * 10**9
LIMIT_FRACTION = 0.2  # of the disk

_OPEN_TRIES = 3  # of a file that other processes keep replacing; then the strips are made
_FILE_NAME = re.compile(r"[0-9a-f]{32}\.safetensors")
_PART_NAME = re.compile(r"[0-9a-f]{32}\.[0-9a-f]{12}\.part")


def default_limit(root: Path) -> int:
    """Bytes that the folder may hold: a fifth of its disk, but no more than 50 GB."""
    return limit_on_disk(root, LIMIT_FRACTION, MAX_LIMIT_BYTES)


@dataclass(frozen=True)
class Lookup:
    """`file` is None where there is nothing usable; `notices` say why, unless there never was a file."""

    file: StripFile | None
    notices: tuple[Notice, ...] = ()


class StripCache:
    """A folder of strip files. Any number of processes may use it at once."""

    def __init__(self, root: Path, limit_bytes: int | None = None) -> None:
        """Touches nothing; the folder is made when something is written into it."""
        self._root = root
        self._limit = default_limit(root) if limit_bytes is None else limit_bytes

    def path(self, key: StripKey) -> Path:
        """Where the strips for `key` are or would be. Versions share one place: the newer replaces."""
        parts = (key.model, str(key.bits), str(key.group), key.calibration, key.scale_dtype)
        digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
        return self._root / f"{digest}.safetensors"

    def open(self, key: StripKey) -> Lookup:
        """The kept strips; the caller closes the file."""
        remove_abandoned(self._root, _PART_NAME)
        path = self.path(key)
        for _ in range(_OPEN_TRIES):
            there = _identity(path)
            if there is None:
                break
            try:
                file = StripFile(path, key)
            except StripFileError as error:
                if _identity(path) == there:
                    return Lookup(None, (_unusable(error),))
                continue  # another process removed or replaced it meanwhile: nothing is wrong with it
            _touch(path)
            return Lookup(file)
        return Lookup(None)

    def discard(self, file: StripFile, error: StripFileError) -> Notice:
        """For a file that turned out to be damaged while it was read: closes it."""
        file.close()
        return _unusable(error)

    def writer(
        self, key: StripKey, names: Iterable[str], *, stop: threading.Event | None = None
    ) -> StripWriter:
        """For the strips and tensors of these names: each has to be added, in any order, before
        `commit`. Once `stop` is set, adding raises WritingStopped.
        """
        remove_abandoned(self._root, _PART_NAME)
        return StripWriter(self, key, names, stop=stop)

    @property
    def limit_bytes(self) -> int:
        return self._limit

    def make_room(self, num_bytes: int, *, instead_of: Path) -> bool:
        """Removes files until `num_bytes` more are within the limit. The file `instead_of` is not counted:
        the new one takes its place. False: there is no room even then, since the others are in use.
        """
        files = [file for file in kept_files(self._root, _FILE_NAME) if file.path != instead_of]
        return remove_oldest(files, sum(file.num_bytes for file in files) + num_bytes - self._limit)

    def keep_disk_usable(self) -> bool:
        """Removes files until other programs have some disk left. False: there is too little even then."""
        missing = LEAST_FREE_BYTES - shutil.disk_usage(self._root).free
        return missing <= 0 or remove_oldest(list(kept_files(self._root, _FILE_NAME)), missing)


class StripWriter:
    """Passes strips on to a file until something goes wrong: then `notices` say what, and the rest does
    nothing.
    """

    def __init__(
        self, cache: StripCache, key: StripKey, names: Iterable[str], *, stop: threading.Event | None = None
    ) -> None:
        self.notices: tuple[Notice, ...] = ()
        self._cache = cache
        self._path = cache.path(key)
        self._file: StripFileWriter | None = None
        try:
            self._file = StripFileWriter(self._path, key, names, stop=stop)
        except OSError as error:
            self._give_up(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def add_strip(self, name: str, strip: Strip) -> None:
        if self._file is not None:
            self._add(lambda file: file.add_strip(name, strip), self._file)

    def add_tensor(self, name: str, tensor: torch.Tensor) -> None:
        if self._file is not None:
            self._add(lambda file: file.add_tensor(name, tensor), self._file)

    def commit(self) -> bool:
        """Whether the file is in the folder now. May take as long as the disk needs for all of it, so call
        it where nobody waits.
        """
        file = self._file
        if file is None:
            return False
        try:
            file.finish()
            if not self._cache.make_room(file.num_bytes, instead_of=self._path):
                self._give_up(None)
                return False
            file.publish()
        except OSError as error:
            self._give_up(error)
            return False
        self._file = None
        return True

    def abort(self) -> None:
        """Removes what was written. After `commit` it does nothing."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.abort()
            except OSError:  # the next load removes it
                pass

    def _add(self, add: Callable[[StripFileWriter], None], file: StripFileWriter) -> None:
        try:
            add(file)
            if not self._cache.keep_disk_usable():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._give_up(error)
            return
        if file.num_bytes > self._cache.limit_bytes:
            self._give_up(None)

    def _give_up(self, error: OSError | None) -> None:
        """`error` of None: the limit is too low."""
        self.abort()
        folder = shown(self._path.parent)
        if error is None:
            why = f"they need more than the {self._cache.limit_bytes / 1e9:.1f} GB that {folder} may hold"
            hint = "Raise that limit, or the next load will take as long as this one."
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            why, hint = f"the disk of {folder} is full", "Free some space there to have the next load faster."
        else:
            why = f"{folder} can't be written ({error.strerror or error})"
            hint = "Check that folder's permissions and disk to have the next load faster."
        notice = Notice(
            "strips-not-kept", f"The prepared weights are not kept for the next load: {why}.", hint
        )
        self.notices = (*self.notices, notice)


def _unusable(error: StripFileError) -> Notice:
    if error.outdated:
        return Notice(
            "strips-outdated",
            "The prepared weights that were kept for this model come from another version of the program; "
            "they are made again.",
        )
    return Notice(
        "strips-unusable",
        f"The prepared weights that were kept for this model can't be used ({error}); they are made again.",
        "If this happens more than once, check the disk.",
    )


def _identity(path: Path) -> tuple[int, int, int] | None:
    """What tells one file at this place from the next; None where there is none, or none to be reached."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_size)


def _touch(path: Path) -> None:
    try:
        os.utime(path)
    except OSError:  # a folder that is read-only: nothing is removed from it either
        pass
