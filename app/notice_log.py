"""What was told, so that a banner that is gone can be read again. No Qt."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from engine.notices import Notice

MAX_KEPT = 200


@dataclass(frozen=True)
class PastNotice:
    """at: local time. details: what a developer wants to know; "" where there is nothing. times: in a row."""

    at: datetime
    notice: Notice
    details: str = ""
    times: int = 1


class NoticeLog:
    """The newest come first. The same one in a row is kept once, with how often it was told."""

    def __init__(self) -> None:
        self._kept: deque[PastNotice] = deque(maxlen=MAX_KEPT)

    @property
    def past(self) -> tuple[PastNotice, ...]:
        return tuple(reversed(self._kept))

    def add(self, notice: Notice, *, details: str = "", at: datetime | None = None) -> PastNotice:
        at = datetime.now() if at is None else at
        return self._put(PastNotice(at, notice, details))

    def _put(self, past: PastNotice) -> PastNotice:
        if self._kept and self._kept[-1].notice == past.notice:
            past = replace(past, times=past.times + self._kept.pop().times)
        self._kept.append(past)
        return past

    def begin_with(self, past: Iterable[PastNotice]) -> None:
        """Told before all that there is; oldest first."""
        later, self._kept = tuple(self._kept), deque(maxlen=MAX_KEPT)
        for each in (*past, *later):
            self._put(each)

    def clear(self) -> None:
        self._kept.clear()
