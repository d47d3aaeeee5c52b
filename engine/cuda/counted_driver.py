"""A card's driver that counts what goes through it once for a token: copies, and launches that were recorded.
Single launches are counted by `KernelSet`, which makes them: through here they go as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.cuda.driver import Address, CardDriver, CardInfo, Mark, Recording

if TYPE_CHECKING:
    from engine.cuda.driver import Bytes


class CountedDriver:
    """A `CardDriver`: the one it was made for, and numbers."""

    def __init__(self, driver: CardDriver) -> None:
        self._driver = driver
        self.num_uploads = 0
        self.num_downloads = 0
        self.num_replays = 0
        self.free_bytes = driver.free_bytes
        self.allocate = driver.allocate
        self.free = driver.free
        self.copy = driver.copy
        self.fill = driver.fill
        self.load = driver.load
        self.launch = driver.launch
        self.record = driver.record
        self.discard = driver.discard
        self.open_letterbox = driver.open_letterbox
        self.new_mark = driver.new_mark
        self.mark_work = driver.mark_work
        self.work_waits = driver.work_waits
        self.upload_ahead = driver.upload_ahead
        self.mark_uploads = driver.mark_uploads
        self.uploads_wait = driver.uploads_wait
        self.synchronize = driver.synchronize
        self.close = driver.close

    @property
    def info(self) -> CardInfo:
        return self._driver.info

    def upload(self, target: Address, source: Bytes) -> None:
        self._driver.upload(target, source)
        self.num_uploads += 1

    def download(self, target: Bytes, source: Address) -> None:
        self._driver.download(target, source)
        self.num_downloads += 1

    def wait(self, mark: Mark) -> None:
        """Somebody waits for what a kernel writes into the computer's memory: that is a copy as well."""
        self._driver.wait(mark)
        self.num_downloads += 1

    def replay(self, recording: Recording) -> None:
        self._driver.replay(recording)
        self.num_replays += 1
