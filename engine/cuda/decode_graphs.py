"""The step of one token, recorded once for a range of lengths and then started as one.

Some three hundred launches a token cost the computer more time than the card. What is recorded holds no
length, no page and no token: these come with each step, in the card's memory. Only how many splits attention
has room for is a part of it, so there is a recording for up to one split, two, four and so on; splits behind
the token's own return at once.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.cuda.driver import CardDriver, CardFaultError, CardLostError, Recording
from engine.kv_geometry import KvFormat
from engine.notices import Notice

Launch = Callable[[int], None]
"""Launches the step of one token, with room for so many splits."""


class DecodeGraphs:
    """Of one model. What is recorded holds addresses: after any of them has changed, `forget` all.

    Where a card records nothing, or something else than what it was given, tokens are launched kernel by
    kernel as prompts are. notices: say so.
    """

    def __init__(self, driver: CardDriver) -> None:
        self.notices: tuple[Notice, ...] = ()
        self._driver = driver
        self._recordings: dict[tuple[KvFormat, int], Recording] = {}

    @staticmethod
    def room_for(splits: int) -> int:
        """How many splits the recording for so many has."""
        return 1 << (splits - 1).bit_length()

    def prepare(self, form: KvFormat, splits: int, launch: Launch) -> None:
        """Record everything for up to so many splits. form: of the pages. Raises CardLostError."""
        room = 1
        while self._recording(form, room, launch) is not None and room < splits:
            room *= 2

    @property
    def in_use(self) -> bool:
        return not self.notices

    def refuse(self, why: str) -> None:
        """From now on, launch kernel by kernel. why: a sentence."""
        self.forget()
        self.notices = (
            Notice(
                "card-recording-refused",
                f"Each token is started on the card in some hundred pieces, which takes longer: {why}",
                "Install a newer NVIDIA driver.",
            ),
        )

    def run(self, form: KvFormat, splits: int, launch: Launch) -> None:
        """Start the step; records it first where nobody prepared it. Raises CardFaultError."""
        room = self.room_for(splits)
        recording = self._recording(form, room, launch)
        if recording is None:
            launch(room)
        else:
            self._driver.replay(recording)

    def forget(self) -> None:
        while self._recordings:
            _, recording = self._recordings.popitem()
            self._driver.discard(recording)

    def _recording(self, form: KvFormat, room: int, launch: Launch) -> Recording | None:
        """None where the card records nothing. Raises CardLostError."""
        key = (form, room)
        if self.in_use and key not in self._recordings:
            try:
                self._recordings[key] = self._driver.record(lambda: launch(room))
            except CardLostError:
                raise
            except CardFaultError as error:
                self.refuse(error.message)
        return self._recordings.get(key)
