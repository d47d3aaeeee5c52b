"""Tokens per second of an answer that is being written. No widget, no clock of its own."""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 3.0


class TokenRate:
    """Of the last few seconds; `now` is in seconds and only ever grows."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()
        self._sum = 0  # of what is counted
        self._began: float | None = None

    def begin(self, now: float) -> None:
        self._counts.clear()
        self._sum = 0
        self._began = now

    def add(self, tokens: int, now: float) -> None:
        self._counts.append((now, tokens))
        self._sum += tokens

    def at(self, now: float) -> float | None:
        """None before anything was measured."""
        if self._began is None:
            return None
        begin = max(self._began, now - WINDOW_SECONDS)
        while self._counts and self._counts[0][0] <= begin and begin > self._began:
            self._sum -= self._counts.popleft()[1]
        if now <= begin or not self._counts:
            return None
        return self._sum / (now - begin)
