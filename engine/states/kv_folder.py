"""The files of one data folder: a budget, the oldest out first, found again at the next start.

A file's name is made of its conversation and of what computed it, so that a conversation has one for each
model, and whoever deletes a conversation finds them all without knowing a model. A file's time of change is
when its state was used last. Nothing that happens to the folder is an error: what can't be kept or read is
told in notices, and computed again.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engine.checkpoints.foreign_files import shown
from engine.kept_files import (
    LEAST_FREE_BYTES,
    entries,
    kept_files,
    limit_on_disk,
    remove_abandoned,
    remove_oldest,
)
from engine.kv_geometry import KvGeometry
from engine.notices import Notice
from engine.states.kv_file import (
    KvFileError,
    KvFileReplaced,
    KvKey,
    file_bytes,
    read_kv_header,
    read_kv_pages,
    too_long,
)
from engine.states.kv_writer import StoredState, writer_of
from engine.wording import format_size

if TYPE_CHECKING:
    import torch

MAX_LIMIT_BYTES = 10 * 10**9
LIMIT_FRACTION = 0.1  # of the disk

_NAME_DIGITS = 24  # of each half of a file's name
_FILE_NAME = re.compile(r"[0-9a-f]{24}-[0-9a-f]{24}\.safetensors")
_PART_NAME = re.compile(r"[0-9a-f]{24}-[0-9a-f]{24}\.[0-9a-f]{12}\.part")


def default_limit(root: Path) -> int:
    """Bytes that the folder may hold: a tenth of its disk, but no more than 10 GB."""
    return limit_on_disk(root, LIMIT_FRACTION, MAX_LIMIT_BYTES)


def forget_conversation(root: Path, conversation: str) -> tuple[Notice, ...]:
    """Removes what is kept of a conversation, of every model, and what is just being written. Needs no model.
    The notice says that something could not be removed.
    """
    return _forget(root, conversation)


def used_bytes(root: Path) -> int:
    """What the folder's files take, of all models. Needs no model."""
    return sum(file.num_bytes for file in kept_files(root, _FILE_NAME))


def limit_folder(root: Path, limit_bytes: int | None) -> None:
    """Holds the folder to this from now on (None: the default limit), also what is just being written into it
    by whatever load. Needs no model.
    """
    writer = writer_of(root)
    writer.limit_bytes = default_limit(root) if limit_bytes is None else limit_bytes
    shorten(root, writer.limit_bytes)


def shorten(root: Path, limit_bytes: int) -> None:
    """Removes what was used least recently until the rest is within the limit. A file that is being read, or
    can't be removed, stays. Needs no model.
    """
    files = list(kept_files(root, _FILE_NAME))
    remove_oldest(files, sum(file.num_bytes for file in files) - limit_bytes)


def forget_all(root: Path) -> tuple[Notice, ...]:
    """Removes what is kept of every conversation, of every model, and what is just being written. Needs no
    model. The notices say what could not be removed.
    """
    return _forget(root, None)


class KvFolder:
    """What is kept on disk of one model's conversations. To be used from one thread."""

    def __init__(self, root: Path, key: KvKey, *, context: int, limit_bytes: int | None = None) -> None:
        """Touches nothing; the folder is made when something is written into it. context: tokens. The limit
        is the folder's, whoever writes into it; 0 keeps nothing, and that is not told; None is the default.
        """
        self.root = root
        self._key = key
        self._own = _digest(key.as_json())
        self._context = context
        self._writer = writer_of(root)
        self._writer.limit_bytes = default_limit(root) if limit_bytes is None else limit_bytes
        self._notices: list[Notice] = []

    @property
    def num_pending(self) -> int:
        """States that are still to be written, by whomever."""
        return self._writer.num_pending

    def wait(self, cancel: threading.Event | None = None) -> None:
        """Until nothing is left to be written. Raises Cancelled once `cancel` is set."""
        self._writer.wait(cancel)

    def limit(self, num_bytes: int | None) -> None:
        """Hold the folder to this from now on, as when it was made."""
        limit_folder(self.root, num_bytes)

    @property
    def _limit(self) -> int:
        return self._writer.limit_bytes

    @property
    def geometry(self) -> KvGeometry:
        return self._key.geometry

    def path(self, conversation: str) -> Path:
        return self.root / f"{_digest(conversation)}-{self._own}.safetensors"

    def index(self) -> list[StoredState]:
        """What is there of this model, by headers alone, and what it left just now that is still being
        written. What can't be used is removed, with a notice, and what is beyond the limit, which may have
        been a higher one.
        """
        remove_abandoned(self.root, _PART_NAME)
        shorten(self.root, self._limit)
        pending = {stored.path: stored for stored in self._writer.pending() if self._is_mine(stored.path)}
        files = [kept.path for kept in kept_files(self.root, _FILE_NAME)]  # in this order: none is missed
        found = [self._checked(stored) for stored in pending.values()]
        found += [self._look_at(path) for path in files if self._is_mine(path) and path not in pending]
        return [stored for stored in found if stored is not None]

    def find(self, conversation: str) -> StoredState | None:
        """What is there now of a conversation, as `index` says it."""
        return self._look_at(self.path(conversation))

    def has_other_model(self, conversation: str) -> bool:
        """Whether something is kept of the conversation, but of another model."""
        name, own = _digest(conversation), self.path(conversation)
        paths = [*(stored.path for stored in self._writer.pending()), *entries(self.root)]
        return any(path.name.startswith(f"{name}-") and path != own for path in paths)

    def read(self, stored: StoredState, count: int) -> list[torch.Tensor] | None:
        """The first `count` pages. None: the file had to make room for others, or another process has put
        another in its place, see `find`. Raises KvFileError if it can't be used; it is removed then, and a
        notice says so.
        """
        while (seen := _identity(stored.path)) is not None:
            try:
                return read_kv_pages(
                    stored.path, self._key, context=self._context, ids=stored.ids, count=count
                )
            except KvFileReplaced:
                return None
            except KvFileError as error:
                if self._remove(stored.path, seen):
                    self._unusable(error)
                    raise
        return None

    def write(
        self, conversation: str, ids: array[int], pages: Sequence[torch.Tensor], *, used_ns: int
    ) -> StoredState:
        """Begins to write; `ready` or `failed` say what has become of it. An older file of the conversation
        is replaced.
        """
        stored = StoredState(
            self._writer,
            self.path(conversation),
            self._key,
            conversation=conversation,
            ids=ids,
            used_ns=used_ns,
            pages=pages,
            ready=False,
        )
        self._writer.submit(stored, self._make_room, self._on_end)
        return stored

    def forget(self, conversation: str) -> None:
        """Removes what is kept of a conversation, of every model."""
        self._notices += forget_conversation(self.root, conversation)

    def take_notices(self) -> tuple[Notice, ...]:
        """What went wrong since the last time this was asked."""
        with self._writer.lock:
            found = (*self._notices, *self._writer.notices)
            self._notices.clear()
            self._writer.notices.clear()
            stuck, self._writer.stuck[:] = tuple(self._writer.stuck), []
        return (*found, *(_stuck(path) for path in stuck))

    def _is_mine(self, path: Path) -> bool:
        """Whether this model, computing as it does now, wrote the file."""
        return path.stem.partition("-")[2] == self._own

    def _checked(self, pending: StoredState) -> StoredState | None:
        """What `_look_at` says of a file that isn't there yet."""
        if len(pending.ids) <= self._context:
            return pending
        pending.remove()
        self._unusable(too_long(len(pending.ids), self._context))
        return None

    def _look_at(self, path: Path) -> StoredState | None:
        """The state in a file, by its header alone. None: there is none; what can't be used is removed."""
        while (seen := _identity(path)) is not None:
            try:
                header = read_kv_header(path, self._key, context=self._context)
                if self.path(header.conversation) != path:
                    raise KvFileError("its name belongs to another conversation")
            except KvFileError as error:
                if self._remove(path, seen):
                    self._unusable(error)
                    return None
            else:
                return StoredState(
                    self._writer,
                    path,
                    self._key,
                    conversation=header.conversation,
                    ids=header.ids,
                    used_ns=seen.st_mtime_ns,
                )
        return None

    def _remove(self, path: Path, seen: os.stat_result) -> bool:
        """Removes a file that can't be used. False: it is not the one that was seen, but what another process
        has put in its place since.
        """
        with self._writer.lock:
            now = _identity(path)
            if now is None or not _same(now, seen):
                return False
            self._writer.unlink(path)
            return True

    def _make_room(self, stored: StoredState) -> bool:
        """Before a write, on the writer's thread. What was used later than this state stays; False: then
        there is no room.
        """
        if self._limit == 0:  # as was chosen
            return False
        self.root.mkdir(parents=True, exist_ok=True)
        num_bytes = file_bytes(self._key, len(stored.ids))
        files = [file for file in kept_files(self.root, _FILE_NAME) if file.path != stored.path]
        older = [file for file in files if file.used_ns <= stored.used_ns]
        excess = sum(file.num_bytes for file in files) + num_bytes - self._limit
        if num_bytes > self._limit:
            self._tell_once(
                f"one needs {format_size(num_bytes)}, and all together may take {format_size(self._limit)}",
                "Raise the disk space for conversations to keep it.",
            )
            return False
        missing = num_bytes + LEAST_FREE_BYTES - shutil.disk_usage(self.root).free
        if not remove_oldest(older, max(excess, missing)):
            if missing > excess:
                raise OSError(errno.ENOSPC, "the disk is full")
            return False  # it is the oldest itself
        return True

    def _on_end(self, error: OSError | None) -> None:
        folder = shown(self.root)
        if error is None:
            self._writer.has_failed = False
            shorten(self.root, self._limit)  # it may be another than when the write began
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            self._tell_once(f"the disk of {folder} is full", "Free some space there.")
        else:
            self._tell_once(
                f"{folder} can't be written ({error.strerror or error})",
                "Check that folder's permissions and disk.",
            )

    def _tell_once(self, why: str, hint: str) -> None:
        """Not for every state: the folder stays as it is until somebody does something about it."""
        with self._writer.lock:
            if self._writer.has_failed:
                return
            self._writer.has_failed = True
            self._writer.notices.append(
                Notice(
                    "states-not-kept",
                    f"What is computed of conversations can't be kept on disk: {why}; it may have to be "
                    "computed again.",
                    hint,
                )
            )

    def _unusable(self, error: KvFileError) -> None:
        self._notices.append(
            Notice(
                "state-outdated",
                "What was kept of a conversation comes from another version of the program; it is computed "
                "again.",
            )
            if error.outdated
            else Notice(
                "state-unusable",
                f"What was kept of a conversation can't be used ({error}); it is computed again.",
                "If this happens more than once, check the disk.",
            )
        )


def forget_all_but(root: Path, known: Callable[[], Iterable[str]]) -> tuple[Notice, ...]:
    """Removes what is kept of conversations that there are none of any more, of every model. Needs no model.

    known: the conversations that there are. It is called when the files have been listed: whatever another
    process begins and writes meanwhile is none of them. The notices say what could not be removed.
    """
    files = list(kept_files(root, _FILE_NAME))
    if not files:
        return ()
    names = {_digest(conversation) for conversation in known()}
    writer = writer_of(root)
    with writer.lock:
        for file in files:
            if file.path.name.partition("-")[0] not in names:
                writer.unlink(file.path)
        stuck, writer.stuck[:] = tuple(writer.stuck), []
    return tuple(_stuck(path) for path in stuck)


def _forget(root: Path, conversation: str | None) -> tuple[Notice, ...]:
    """Of all conversations where none is given."""
    writer = writer_of(root)
    writer.forget(conversation)
    of_it = "" if conversation is None else f"{_digest(conversation)}-"
    with writer.lock:
        for path in entries(root):
            if _FILE_NAME.fullmatch(path.name) and path.name.startswith(of_it):
                writer.unlink(path)
        stuck, writer.stuck[:] = tuple(writer.stuck), []
    return tuple(_stuck(path) for path in stuck)


def _identity(path: Path) -> os.stat_result | None:
    """None: there is no such file, or none that can be reached."""
    try:
        return path.stat()
    except OSError:
        return None


def _same(one: os.stat_result, other: os.stat_result) -> bool:
    """Whether both are of one file, unchanged."""
    return (one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns) == (
        other.st_dev,
        other.st_ino,
        other.st_size,
        other.st_mtime_ns,
    )


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_NAME_DIGITS // 2).hexdigest()


def _stuck(path: Path) -> Notice:
    return Notice(
        "state-file-stays",
        f"The file {shown(path)} holds what was computed of a conversation and can't be removed.",
        "Check its folder's permissions, and remove it yourself.",
    )
