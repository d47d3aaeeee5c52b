"""How far a load is, and whether it is to go on: asked every few milliseconds, inside a large tensor too."""

from __future__ import annotations

import threading

from engine.errors import Cancelled
from engine.progress import LoadProgress, LoadStage, ProgressCallback


class LoadMeter:
    """Counts the bytes of the file whose work is done, or a part of it. What it tells grows with every call,
    and comes to the total once: in `finish`.
    """

    def __init__(self, total: int, on_progress: ProgressCallback, cancel: threading.Event | None) -> None:
        self._total = total
        self._on_progress = on_progress
        self.cancel = cancel
        self._done = 0.0
        self._told = 0
        on_progress(LoadProgress(LoadStage.WEIGHTS, 0, total))

    def advance(self, num_bytes: float) -> None:
        """Raises Cancelled."""
        self.check()
        self._done += num_bytes
        done = int(self._done)
        if self._told < done < self._total:  # the sum may be rounded up
            self._told = done
            self._on_progress(LoadProgress(LoadStage.WEIGHTS, done, self._total))

    def check(self) -> None:
        """Raises Cancelled once that is wanted."""
        if self.cancel is not None and self.cancel.is_set():
            raise Cancelled

    def finish(self) -> None:
        self._on_progress(LoadProgress(LoadStage.WEIGHTS, self._total, self._total))
