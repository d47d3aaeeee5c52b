"""The strips of one model between two loads: read where they are kept, else kept while they are made.

A load is run on a `Shelf` and need not know which of the two it is: it asks for each parameter's strips, and
gives those that it had to make.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Protocol, TypeVar

from engine.notices import Notice
from engine.weights.strip_cache import StripCache
from engine.weights.strip_file import StripFile, StripFileError, StripKey
from engine.weights.strip_keeper import StripKeeper, wait_for_keeper

if TYPE_CHECKING:
    from engine.weights.strips import Strip

Loaded = TypeVar("Loaded")

_READERS = 2  # threads: one waits for the disk or checks sums while the other's bytes are copied
_LOOK_SECONDS = 0.03  # how often a load that waits for them is asked whether to go on


class Shelf(Protocol):
    """Where a load looks before it makes strips, and leaves those that it made."""

    filled: bool
    """Whether every strip is there: then nothing has to be made, or prepared for."""

    def read(self, name: str, count: int) -> Sequence[Strip] | None:
        """The `count` matrices of a parameter; None if they have to be made. Raises StripFileError."""

    def add(self, name: str, strips: Sequence[Strip]) -> None: ...


class NoShelf:
    """For loads whose strips nobody keeps."""

    filled = False

    def read(self, name: str, count: int) -> Sequence[Strip] | None:
        return None

    def add(self, name: str, strips: Sequence[Strip]) -> None:
        return


class StripShelf:
    """A model's place in the cache. A load never fails by what goes wrong with it: notices say so."""

    def __init__(self, cache: StripCache, key: StripKey, model_now: Callable[[], str]) -> None:
        """model_now: the identity of the model's files, which may have changed while they were read."""
        self._cache = cache
        self._key = key
        self._model_now = model_now
        self._notices: list[Notice] = []
        self._begun = False
        self._kept: _Filled | None = None
        self._keeper: StripKeeper | None = None

    def begin(self, check: Callable[[], None]) -> None:
        """Look for strips, and begin to read those that are kept, while the caller does other things. `run`
        or `close` has to follow. Torch need not be there.

        check: called now and then while nothing but waiting can be done; may raise.
        """
        self._begun = True
        wait_for_keeper(self._cache.path(self._key), check)
        lookup = self._cache.open(self._key)
        self._notices += lookup.notices
        if lookup.file is not None:
            self._kept = _Filled(lookup.file, check)

    def run(self, names: Collection[str], load: Callable[[Shelf], Loaded]) -> Loaded:
        """`load` on the strips that are kept. If there are none, or they turn out damaged while they are
        read, `load` makes them, all of `names` (see `strip_names`), and they are kept: that may go on behind
        the load. Begins by itself where nobody did.
        """
        if not self._begun:
            self.begin(lambda: None)
        if self._kept is not None:
            try:
                return load(self._kept)
            except StripFileError as error:
                self._notices.append(self._cache.discard(self._kept.file, error))
            finally:
                self.close()
        with StripKeeper(self._cache, self._key, names) as keeper:
            loaded = load(_Filling(keeper))
            if self._model_now() == self._key.model:
                keeper.commit()
        self._keeper = keeper
        return loaded

    def close(self) -> None:
        """Ends the reading, if it still goes on. What is written goes on."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()

    def take_notices(self) -> tuple[Notice, ...]:
        """What went wrong since the last time this was asked."""
        found, self._notices = tuple(self._notices), []
        return found if self._keeper is None else (*found, *self._keeper.take_notices())

    def wait(self) -> None:
        """Until strips that are still written are at their place, or given up: no notice comes after that."""
        if self._keeper is not None:
            self._keeper.wait()


def strip_names(name: str, count: int) -> list[str]:
    """The names of a parameter's `count` matrices."""
    return [name] if count == 1 else [f"{name}.{index}" for index in range(count)]


class _GivenUp(Exception):  # noqa: N818  (it is no error: somebody wanted it)
    pass


class _Filled:
    """Reads all that the file has, by several threads; what has come waits until it is asked for. That takes
    no more memory than the model will.
    """

    filled = True

    def __init__(self, file: StripFile, check: Callable[[], None]) -> None:
        self.file = file
        self._check = check
        self._given_up = threading.Event()
        self._pool = ThreadPoolExecutor(_READERS, "strip-reader")
        self._coming = {
            name: self._pool.submit(file.read_parts, name, self._on_bytes) for name in file.in_order
        }

    def close(self) -> None:
        self._given_up.set()
        self._pool.shutdown(cancel_futures=True)
        self._coming.clear()  # a reading that was ended lies there with its stack, which leads back here
        self.file.close()

    def read(self, name: str, count: int) -> Sequence[Strip] | None:
        names = strip_names(name, count)
        if not all(each in self._coming for each in names):
            return None
        return [self._result(each) for each in names]

    def _result(self, name: str) -> Strip:
        coming = self._coming.pop(name)
        while not wait([coming], _LOOK_SECONDS).done:
            self._check()
        return self.file.strip_of(name, coming.result())

    def _on_bytes(self, _: int) -> None:
        if self._given_up.is_set():
            raise _GivenUp

    def add(self, name: str, strips: Sequence[Strip]) -> None:
        return  # it came from here


class _Filling:
    filled = False

    def __init__(self, keeper: StripKeeper) -> None:
        self._keeper = keeper

    def read(self, name: str, count: int) -> Sequence[Strip] | None:
        return None

    def add(self, name: str, strips: Sequence[Strip]) -> None:
        for each, strip in zip(strip_names(name, len(strips)), strips, strict=True):
            self._keeper.add(each, strip)
