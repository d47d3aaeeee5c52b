"""One line on a terminal that says what is being done. Where nobody watches, nothing is written."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TextIO

from engine.progress import LoadProgress

_SECONDS_BETWEEN = 0.1  # of what changes all the time
_CLEAR = "\r\x1b[K"


class ProgressLine:
    """A `ProgressCallback`, too. The line is gone when its `with` ends."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._watched = stream.isatty()
        self._written = 0.0

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._write(_CLEAR)

    def __call__(self, progress: LoadProgress) -> None:
        now = time.monotonic()
        fraction = progress.fraction
        if fraction is None:
            self.say(f"loading: {progress.stage}")
        elif fraction == 1 or now - self._written >= _SECONDS_BETWEEN:
            self._written = now
            self.say(f"loading: {progress.stage}, {fraction:.0%} of {progress.total / 1e9:,.1f} GB")

    def say(self, text: str) -> None:
        self._write(f"{_CLEAR}{text} …")

    def _write(self, text: str) -> None:
        if self._watched:
            self._stream.write(text)
            self._stream.flush()
