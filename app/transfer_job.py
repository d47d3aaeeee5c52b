"""How far a long export or import is, and whether it is still wanted. No Qt."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from engine.errors import Cancelled

FIRST_SECONDS = 0.4  # what is done sooner than that shows nothing
INTERVAL_SECONDS = 0.1

OnStep = Callable[[int], None]
"""Called before each conversation with how many are done. Raises Cancelled."""


def unwatched(_done: int) -> None:
    """Of work that nobody waits for."""


class TransferStage(Enum):
    READING = auto()  # a file that is imported
    ADDING = auto()  # what was in it
    WRITING = auto()  # an export


@dataclass(frozen=True)
class TransferProgress:
    """name: of the file. done, total: conversations; None: how many there are isn't known."""

    stage: TransferStage
    name: str
    done: int = 0
    total: int | None = None


class TransferJob:
    """One file on its way. cancel: set by any thread, and the next step raises Cancelled."""

    def __init__(self, name: str, report: Callable[[TransferProgress], None]) -> None:
        """report: called now and then by whichever thread does the work."""
        self.name = name
        self.cancel = threading.Event()
        self._report = report
        self._next = time.monotonic() + FIRST_SECONDS

    def watcher(self, stage: TransferStage, total: int | None = None) -> OnStep:
        def step(done: int) -> None:
            if self.cancel.is_set():
                raise Cancelled
            if time.monotonic() >= self._next:
                self._next = time.monotonic() + INTERVAL_SECONDS
                self._report(TransferProgress(stage, self.name, done, total))

        return step
