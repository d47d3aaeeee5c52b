"""How long each stage of a load takes."""

from __future__ import annotations

import time
from collections import defaultdict

from engine.progress import LoadProgress, LoadStage, ProgressCallback


class LoadTimes:
    """A `ProgressCallback` that passes on what it hears."""

    def __init__(self, on_progress: ProgressCallback) -> None:
        self._on_progress = on_progress
        self._seconds: defaultdict[LoadStage, float] = defaultdict(float)
        self._stage = LoadStage.OPEN
        self._start = self._since = time.perf_counter()
        self._end: float | None = None

    def __call__(self, progress: LoadProgress) -> None:
        if progress.stage is not self._stage:
            self._finish_stage()
            self._stage = progress.stage
        self._on_progress(progress)

    def finish(self) -> None:
        """The model is loaded."""
        self._finish_stage()
        self._end = self._since

    @property
    def total(self) -> float:
        """Seconds, of a load that is finished."""
        assert self._end is not None
        return self._end - self._start

    @property
    def stages(self) -> dict[str, float]:
        """Seconds of each stage that there was, in order."""
        return {stage.value: self._seconds[stage] for stage in LoadStage if stage in self._seconds}

    def _finish_stage(self) -> None:
        now = time.perf_counter()
        self._seconds[self._stage] += now - self._since
        self._since = now
