"""What was told, in this run of the program and before it: in memory, and behind that on disk."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from app.notice_file import append_notices, read_notices, rewrite_notices, trim_notices
from app.notice_log import MAX_KEPT, NoticeLog, PastNotice
from app.operations import BackgroundRunner
from engine.notices import Notice


class NoticeKeeper:
    """A `NoticeLog` that the disk follows. What goes wrong there is told once."""

    def __init__(self, path: Path, *, runner: BackgroundRunner, on_notice: Callable[[Notice], None]) -> None:
        self._path = path
        self._runner = runner
        self._on_notice = on_notice
        self._log = NoticeLog()
        self._num_lines = 0  # of the file, about
        self._failure_told = False
        self._follows = False  # the disk, from `read` to `close`

    @property
    def past(self) -> tuple[PastNotice, ...]:
        """Newest first."""
        return self._log.past

    def read(self) -> None:
        """What earlier runs left comes before what is there already."""
        self._follows = True
        self._run(lambda: read_notices(self._path), self._on_read)
        if early := tuple(reversed(self._log.past)):
            self._run(lambda: append_notices(self._path, early))

    def add(self, notice: Notice, *, details: str = "", at: datetime | None = None) -> PastNotice:
        past = self._log.add(notice, details=details, at=at)
        last = PastNotice(past.at, notice, details)
        self._run(lambda: append_notices(self._path, (last,)))
        self._num_lines += 1
        if self._num_lines > 2 * MAX_KEPT:
            self._trim()
        return past

    def clear(self) -> None:
        self._log.clear()
        self._num_lines = 0
        self._run(lambda: rewrite_notices(self._path, ()))

    def close(self) -> None:
        """What is told from now on stays in memory."""
        self._follows = False

    def _trim(self) -> None:
        """What another window has added since is in the file alone, and stays."""
        self._num_lines = MAX_KEPT
        self._run(lambda: trim_notices(self._path))

    def _on_read(self, found: tuple[tuple[PastNotice, ...], int]) -> None:
        past, num_damaged = found
        self._log.begin_with(past)
        self._num_lines += len(past)
        if num_damaged:
            self._trim()
            self._on_notice(_damaged(num_damaged))
        elif len(past) == MAX_KEPT:  # there may be many more
            self._trim()

    def _run(self, function: Callable[[], object], on_success: Callable[..., None] | None = None) -> None:
        if self._follows:
            self._runner.run(
                function, on_success or (lambda _: None), self._on_failed, doing="keeping past notices"
            )

    def _on_failed(self, notice: Notice) -> None:
        """Telling it is one more to be kept: without an end, were it told each time."""
        if not self._failure_told:
            self._failure_told = True
            self._on_notice(notice)


def _damaged(count: int) -> Notice:
    return Notice(
        "notices-damaged",
        f"The list of past notices is damaged: {count:,} of its lines could not be read and are left out.",
    )
