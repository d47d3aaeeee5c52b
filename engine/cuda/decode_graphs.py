"""The step of one token, recorded once for a range of lengths and then started as one.

Some three hundred launches a token cost the computer more time than the card. What is recorded holds no
length, no page and no token: these come with each step, in the card's memory. Only how many splits attention
has room for is a part of it, so there is a recording for up to one split, two, four and so on; splits behind
the token's own return at once.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.cuda.driver import CardDriver, Recording
from engine.kv_geometry import KvFormat

Launch = Callable[[int], None]
"""Launches the step of one token, with room for so many splits."""


class DecodeGraphs:
    """Of one model. What is recorded holds addresses: after any of them has changed, `forget` all."""

    def __init__(self, driver: CardDriver) -> None:
        self._driver = driver
        self._recordings: dict[tuple[KvFormat, int], Recording] = {}

    @staticmethod
    def room_for(splits: int) -> int:
        """How many splits the recording for so many has."""
        return 1 << (splits - 1).bit_length()

    def prepare(self, form: KvFormat, splits: int, launch: Launch) -> None:
        """Record everything for up to so many splits. form: of the pages."""
        room = 1
        while True:
            self._recording(form, room, launch)
            if room >= splits:
                return
            room *= 2

    def run(self, form: KvFormat, splits: int, launch: Launch) -> None:
        """Start the step; records it first where nobody prepared it."""
        self._driver.replay(self._recording(form, self.room_for(splits), launch))

    def forget(self) -> None:
        while self._recordings:
            _, recording = self._recordings.popitem()
            self._driver.discard(recording)

    def _recording(self, form: KvFormat, room: int, launch: Launch) -> Recording:
        key = (form, room)
        if key not in self._recordings:
            self._recordings[key] = self._driver.record(lambda: launch(room))
        return self._recordings[key]
