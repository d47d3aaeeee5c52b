"""What was told since the program began, so that a banner that is gone can be read again. No Qt."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
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
        times = 1
        if self._kept and self._kept[-1].notice == notice:
            times += self._kept.pop().times
        past = PastNotice(at, notice, details, times)
        self._kept.append(past)
        return past

    def clear(self) -> None:
        self._kept.clear()
