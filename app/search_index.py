"""Which messages may have a word in them: an index of all runs of three characters (SQLite's FTS5), in a
file beside the conversations.

It answers with candidates; the text itself says whether it has the word. So a search finds the same without
it, only slower, and whatever is wrong with the file (damaged, of another store, not to be written) costs
nothing but time: it is begun anew, or done without. Words of less than three characters, as most Chinese
ones are, have no run of three: there everything is read, which takes about 3 ms a thousand messages.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.attachments import attachments_from_json
from app.search_text import folded

log = logging.getLogger(__name__)

_RUN = 3  # characters
_MAX_RUNS = 32  # of a search: more leave no fewer candidates
_STEP_CHARACTERS = 1_000_000  # that are taken in at once, and no message more: a search waits for the step
_VERSION = 1
_BUSY_TIMEOUT_SECONDS = 2.0
SUFFIX = ".search"
_SCHEMA = (
    "CREATE TABLE state (version INTEGER NOT NULL, store_id TEXT NOT NULL, done INTEGER NOT NULL)",
    "CREATE VIRTUAL TABLE runs USING fts5 (text, tokenize = 'trigram case_sensitive 1', detail = none)",
)
LOGGED = "SELECT number, sequence FROM search_log WHERE number > ? ORDER BY number LIMIT ?"
TEXTS = "SELECT text, thinking, attachments FROM messages WHERE sequence = ?"


@dataclass(frozen=True)
class LookUp:
    done: int  # the number of the last change that the index knows
    candidates: Sequence[int]  # messages that may have all terms, the newest first, as of then


class SearchIndex:
    """The index of one store. `connection` reads the conversations; the index has one of its own. Where there
    can't be an index, `usable` is False and nothing happens.
    """

    def __init__(self, store_path: Path, connection: sqlite3.Connection, *, writable: bool = True) -> None:
        self._store = connection
        self._path = store_path.with_name(store_path.name + SUFFIX)
        self._index: sqlite3.Connection | None = None
        self._store_id = ""
        if writable:
            (self._store_id,) = connection.execute("SELECT id FROM search_store").fetchone()
            self._open()

    @property
    def usable(self) -> bool:
        return self._index is not None

    def close(self) -> None:
        if self._index is not None:
            self._index.close()
            self._index = None

    def advance(self, count: int) -> bool:
        """Take in so many changes more, or fewer where they are long. False: there are no more, or none can
        be taken in now.
        """
        if self._index is None:
            return False
        try:
            return self._advance(self._index, count)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
                return False  # another window is at it, for both
            self._give_up(error)
            return False

    def look_up(self, terms: Sequence[str]) -> LookUp | None:
        """None where it can't tell."""
        runs = dict.fromkeys(term[at : at + _RUN] for term in terms for at in range(len(term) - _RUN + 1))
        if self._index is None or not runs:
            return None
        wanted = " AND ".join('"' + run.replace('"', '""') + '"' for run in list(runs)[:_MAX_RUNS])
        try:
            (done,) = self._index.execute("SELECT done FROM state").fetchone()
            rows = self._index.execute(
                "SELECT rowid FROM runs WHERE runs MATCH ? ORDER BY rowid DESC", (wanted,)
            ).fetchall()
        except sqlite3.Error as error:
            self._give_up(error)
            return None
        return LookUp(done, [sequence for (sequence,) in rows])

    def _advance(self, index: sqlite3.Connection, count: int) -> bool:
        index.execute("BEGIN IMMEDIATE")  # another window may be at it: then it waits, and sees what was done
        try:
            (done,) = index.execute("SELECT done FROM state").fetchone()
            rows = self._store.execute(LOGGED, (done, count)).fetchall()
            characters = 0
            for number, sequence in rows:
                index.execute("DELETE FROM runs WHERE rowid = ?", (sequence,))
                text = text_of(self._store.execute(TEXTS, (sequence,)).fetchone())
                if len(text) >= _RUN:
                    index.execute("INSERT INTO runs (rowid, text) VALUES (?, ?)", (sequence, text))
                done, characters = number, characters + len(text)
                if characters >= _STEP_CHARACTERS:
                    break
            if rows:
                index.execute("UPDATE state SET done = ?", (done,))
            index.execute("COMMIT")
        except BaseException:
            if index.in_transaction:
                index.execute("ROLLBACK")
            raise
        return len(rows) == count or (bool(rows) and done < rows[-1][0])

    def _open(self) -> None:
        try:
            try:
                self._index = self._opened()
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):  # locked, no room, no FTS5
                    raise
                log.warning("the search index %s is begun anew: %s", self._path, error)
                self._remove()
                self._index = self._opened()
        except (sqlite3.Error, OSError) as error:
            self._give_up(error)

    def _opened(self) -> sqlite3.Connection:
        index = sqlite3.connect(self._path, timeout=_BUSY_TIMEOUT_SECONDS, isolation_level=None)
        try:
            index.execute("PRAGMA journal_mode = WAL")
            index.execute("PRAGMA synchronous = NORMAL")  # what a power cut takes is made again
            index.execute("BEGIN IMMEDIATE")
            if not self._fits(index):
                for (name,) in index.execute(
                    "SELECT name FROM sqlite_master WHERE name IN ('runs', 'state')"
                ).fetchall():
                    index.execute(f"DROP TABLE {name}")
                for statement in _SCHEMA:
                    index.execute(statement)
                index.execute("INSERT INTO state VALUES (?, ?, 0)", (_VERSION, self._store_id))
            index.execute("COMMIT")
        except BaseException:
            index.close()
            raise
        return index

    def _fits(self, index: sqlite3.Connection) -> bool:
        """Whether it is of this version and store, and knows no change that the store doesn't: an older copy
        of the conversations may have been put back.
        """
        if not index.execute("SELECT 1 FROM sqlite_master WHERE name = 'state'").fetchone():
            return False
        row = index.execute("SELECT version, store_id, done FROM state").fetchone()
        (newest,) = self._store.execute("SELECT ifnull(max(number), 0) FROM search_log").fetchone()
        return row is not None and row[:2] == (_VERSION, self._store_id) and row[2] <= newest

    def _remove(self) -> None:
        for companion in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + companion).unlink(missing_ok=True)

    def _give_up(self, error: Exception) -> None:
        """Everything is found without it."""
        log.warning("searching without the index %s: %s", self._path, error)
        self.close()


def text_of(row: tuple[str, str, str | None] | None) -> str:
    """Everything that a message says, folded: "" for one that is gone."""
    if row is None:
        return ""
    text, thinking, attachments = row
    parts = [text, thinking]
    for attachment in attachments_from_json(attachments):
        parts += [attachment.name, attachment.text]
    return folded("\n".join(part for part in parts if part))
