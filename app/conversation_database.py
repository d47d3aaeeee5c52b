"""Opening the SQLite file of the conversations, whatever state it is in. Nothing here ever deletes one.

- no file yet: made
- an older version: migrated, all or nothing
- a newer version, or a place where nothing may be written: opened for reading, with a notice
- damaged: kept under another name, a new one begun, with a notice
- locked, no space, no permission: a StoreError
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path

from app.conversation_schema import APPLICATION_ID, MIGRATIONS, SCHEMA_VERSION
from app.files import free_name
from engine.notices import Notice

BUSY_TIMEOUT_MS = 5_000
_DAMAGED = "damaged"  # in the name of a file that was set aside
_COMPANIONS = ("", "-wal", "-shm")  # SQLite keeps these beside the file


class StoreError(Exception):
    """Conversations could not be read or saved. `message` is one sentence, `hint` says what to do."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


@dataclass(frozen=True)
class OpenedDatabase:
    connection: sqlite3.Connection
    read_only: bool = False
    notice: Notice | None = None


def open_database(path: Path, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> OpenedDatabase:
    """Open or make the file at `path`. Raises StoreError."""
    path = path.absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not _writable(path):
            return _open_read_only(path, busy_timeout_ms, _no_permission(path))
        try:
            return _open_for_writing(path, busy_timeout_ms)
        except _DamagedError as damage:
            kept = _set_aside(path)
            opened = _open_for_writing(path, busy_timeout_ms)
            return OpenedDatabase(opened.connection, notice=_damaged(kept, str(damage)))
    except sqlite3.Error as error:
        raise store_error(error, path, doing="opening the conversations") from error
    except OSError as error:
        raise unavailable(path, error) from error


def open_reader(path: Path, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> OpenedDatabase:
    """A second connection to a file that is open already, which only reads; what is written shows in it as
    soon as it is on disk. `read_only` says whether anything can be written beside the file. Raises
    StoreError.
    """
    path = path.absolute()
    try:
        opened = _open_read_only(path, busy_timeout_ms, _no_permission(path))
        (version,) = opened.connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.Error as error:
        raise store_error(error, path, doing="reading the conversations") from error
    return OpenedDatabase(opened.connection, read_only=not _writable(path) or version > SCHEMA_VERSION)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Everything inside is on disk when this returns, or nothing is and it raises."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if (
            connection.in_transaction
        ):  # SQLite has rolled back by itself after some errors, a full disk among them
            connection.execute("ROLLBACK")
        raise


def store_error(error: sqlite3.Error, path: Path, *, doing: str) -> StoreError:
    """The sentence for an error of SQLite. `doing` begins it, e.g. "saving the message"."""
    primary = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    begun = doing[:1].upper() + doing[1:]
    if primary == sqlite3.SQLITE_FULL:
        return StoreError("disk-full", f"{begun} failed: the disk is full.", "Free some space and try again.")
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(
            "store-locked",
            f"{begun} failed: another program is using {path}.",
            "Close the other program, or wait until it is done, and try again.",
        )
    if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return StoreError(
            "store-read-only",
            f"{begun} failed: {path} can't be written.",
            "Make the file and its folder writable and try again.",
        )
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreError(
            "store-damaged",
            f"{begun} failed: {path} is damaged.",
            "Start the program again; the damaged file is then kept under another name and a new one begun.",
        )
    return StoreError("store-failed", f"{begun} failed: {error}.", f"Check the disk that holds {path}.")


def unavailable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        "store-unavailable",
        f"The conversations can't be kept in {path.parent}: {error.strerror or error}.",
        "Make that folder writable and try again.",
    )


class _DamagedError(Exception):
    """What is at the path is not a sound store of ours. Says how."""


def _open_for_writing(path: Path, busy_timeout_ms: int) -> OpenedDatabase:
    connection = _connect(path, busy_timeout_ms)
    try:
        version = _sound_version(connection)
        if version > SCHEMA_VERSION:
            connection.close()
            return _open_read_only(path, busy_timeout_ms, _newer(path))
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")  # a power cut loses nothing that was acknowledged
        _migrate(connection)
    except BaseException:
        connection.close()
        raise
    return OpenedDatabase(connection)


def _open_read_only(path: Path, busy_timeout_ms: int, notice: Notice) -> OpenedDatabase:
    connection = _connect(path, busy_timeout_ms, mode="mode=ro")
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        # Where no file can be made, SQLite can't share its log; with no log to read, the file alone is
        # everything.
        connection.close()
        log = path.with_name(path.name + "-wal")
        if log.exists() and log.stat().st_size > 0:
            raise
        connection = _connect(path, busy_timeout_ms, mode="mode=ro&immutable=1")
    return OpenedDatabase(_as_of_today(connection), read_only=True, notice=notice)


def _as_of_today(connection: sqlite3.Connection) -> sqlite3.Connection:
    """A file of an older version that may not be written is migrated in memory."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID or version >= SCHEMA_VERSION:
        return connection
    copy = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.backup(copy)
        _migrate(copy)
    except BaseException:
        copy.close()
        raise
    finally:
        connection.close()
    return copy


def _connect(path: Path, busy_timeout_ms: int, *, mode: str = "mode=rwc") -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.as_uri()}?{mode}",
        uri=True,
        timeout=busy_timeout_ms / 1000,
        isolation_level=None,  # transactions are begun by `transaction` alone
    )
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _sound_version(connection: sqlite3.Connection) -> int:
    """The file's version, 0 for a new one. Raises _DamagedError; other errors (locked, unreadable) pass
    through.
    """
    try:
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if tables and application != APPLICATION_ID:
            raise _DamagedError("it holds the tables of another program")
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        primary = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise _DamagedError(str(error)) from error
        raise
    if verdict != "ok":
        raise _DamagedError(str(verdict))
    return int(version)


def _migrate(connection: sqlite3.Connection) -> None:
    """Bring the file to SCHEMA_VERSION. Each migration is on disk whole or not at all."""
    while True:
        with transaction(connection):  # the version is read inside: another window may have been faster
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version >= SCHEMA_VERSION:
                return
            for statement in MIGRATIONS[version]:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {version + 1}")


def _writable(path: Path) -> bool:
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


def _set_aside(path: Path) -> Path:
    """Rename the file and its companions to a name that nothing has yet; returns that name."""
    kept = free_name(path, _DAMAGED)
    for companion in _COMPANIONS:
        part = path.with_name(path.name + companion)
        if part.exists():
            part.rename(kept.with_name(kept.name + companion))
    return kept


def damaged_copies(path: Path) -> list[Path]:
    """What was set aside of damaged files that lay at `path`, with their companions."""
    return list(path.parent.glob(f"{escape(path.stem)}.{_DAMAGED}-*"))


def _damaged(kept: Path, how: str) -> Notice:
    return Notice(
        "store-damaged",
        f"The file with the conversations is damaged ({how}), so a new one was begun.",
        f"The damaged file is kept as {kept}.",
    )


def _newer(path: Path) -> Notice:
    return Notice(
        "store-newer",
        f"The conversations in {path} were written by a newer version of this program,"
        " so they can only be read.",
        "Install the newer version to go on with them.",
    )


def _no_permission(path: Path) -> Notice:
    return Notice(
        "store-read-only",
        f"The conversations in {path} can only be read, because nothing can be written there.",
        "Make the file and its folder writable, then start the program again.",
    )
