"""Collects Python's cyclic garbage on the GUI thread, and never while it would hold the window up.

By itself Python collects on whatever thread allocates next. On the engine's thread that would destroy Qt
objects where they must not be destroyed, and while torch is being imported (some half a million objects) full
collections stop every thread, the window's too, for 75 to 130 ms each. So automatic collection is off; here a
timer does the same in small steps, pauses during that import, and leaves what it brought out of later ones.
"""

from __future__ import annotations

import gc
import sys

from PySide6.QtCore import QObject, QTimer, Slot

from app.controller import ModelState
from engine.progress import LoadStage

_INTERVAL_MS = 500


class GarbageCollector(QObject):
    """Made on the GUI thread, once what the window needs is imported. `close` gives collection back to
    Python.
    """

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._thresholds = gc.get_threshold()
        self._importing = False
        gc.disable()
        gc.freeze()  # modules: a full collection takes 1 ms without them, 20 with them
        self._timer = QTimer(self)
        self._timer.setInterval(_INTERVAL_MS)
        self._timer.timeout.connect(self.step)
        self._timer.start()

    @Slot(object)
    def watch(self, state: ModelState) -> None:
        """Connect it to the model's state, which tells when torch is being imported."""
        runtime_starts = state.progress is not None and state.progress.stage is LoadStage.RUNTIME
        if runtime_starts and "torch" not in sys.modules:
            self._importing = True
        elif self._importing and not runtime_starts:
            self._importing = False
            gc.freeze()  # costs nothing, while one collection of all that was imported would be felt

    @Slot()
    def step(self) -> None:
        """Collect as much as Python itself would have by now."""
        if self._importing:
            return
        counts = gc.get_count()
        for generation in (2, 1, 0):
            if counts[generation] > self._thresholds[generation]:
                gc.collect(generation)
                return

    def close(self) -> None:
        self._timer.stop()
        gc.enable()
