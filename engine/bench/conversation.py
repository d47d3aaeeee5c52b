"""A sequence in pages of its own, which is filled, read on from and put back, over and over."""

from __future__ import annotations

import threading
from collections.abc import Sequence as Several

import torch

from engine.backend import Backend, PagePool, Sequence
from engine.drawing import Drawings
from engine.errors import OutOfMemoryError
from engine.generation import SamplingParams
from engine.kv_geometry import PAGE, KvGeometry, pages_for
from engine.sampling import Sampler
from engine.wording import format_size, format_tokens

_SEED = 7
_GREEDY = SamplingParams(temperature=0.0)
_DISTINCT_PAGES = 4  # of random ones: what they hold costs no time
_CODE_SCALE = 1 / 73.6  # so that codes stand for numbers of size 1


class Conversation:
    """Of one pool. Its pages are the pool's again after `close`."""

    def __init__(self, backend: Backend, pool: PagePool, *, cancel: threading.Event | None = None) -> None:
        self._backend = backend
        self._pool = pool
        self._cancel = cancel
        self._sequence = Sequence()
        self._history: list[int] = []
        self._drawings = Drawings(Sampler(_GREEDY), self._history)
        self._generator = torch.Generator().manual_seed(_SEED)

    @property
    def length(self) -> int:
        return self._sequence.length

    def reserve(self, length: int) -> None:
        """Have pages for so many tokens. Raises OutOfMemoryError, which says how many there is room for."""
        pages = self._sequence.pages
        while len(pages) < pages_for(length):
            page = self._pool.allocate()
            if page is None:
                needed = pages_for(length) * self._pool.geometry.page_bytes
                raise OutOfMemoryError(
                    f"A cache of {format_tokens(length)} takes {format_size(needed)}, and there is room for "
                    f"{format_tokens(len(pages) * PAGE)} beside the weights.",
                    "Choose a smaller depth, fewer bits for the weights, or close other programs.",
                )
            pages.append(page)

    def rewind(self, length: int) -> None:
        assert 0 <= length <= self.length
        self._sequence.length = length

    def begin_anew(self) -> None:
        """As another answer would: nothing of the one before counts, whatever its device did to it."""
        self._drawings.close()

    def random_ids(self, count: int) -> list[int]:
        vocabulary = self._backend.spec.vocab_size
        return [int(i) for i in torch.randint(vocabulary, (count,), generator=self._generator)]

    def read(self, ids: Several[int]) -> int:
        """The most probable token behind them."""
        self.reserve(self.length + len(ids))
        drawing = self._drawings.on(self._backend)
        return drawing.prefill(ids, self._sequence, self._pool, cancel=self._cancel)

    def step(self, token: int, *, ahead: bool = False) -> int:
        """The most probable token behind `token`, the one that was drawn last. ahead: its step may begin, as
        in an answer that goes on. There have to be pages for it.
        """
        drawing = self._drawings.on(self._backend)
        follows = ahead and drawing.runs_ahead
        return drawing.decode(token, self._sequence, self._pool, ahead=follows, cancel=self._cancel)

    def write(self, token: int, count: int, *, ahead: bool = True) -> int:
        """`count` tokens behind one, as an answer has them."""
        for written in range(1, count + 1):
            token = self.step(token, ahead=ahead and written < count)
        return token

    def fill(self, length: int) -> None:
        """With random tokens, which are read."""
        if length > self.length:
            self.read(self.random_ids(length - self.length))

    def fill_by_pages(self, length: int) -> None:
        """With pages of random numbers, which no token stands behind."""
        self.reserve(length)
        data = [_random_page(self._pool.geometry, self._generator) for _ in range(_DISTINCT_PAGES)]
        for index, page in enumerate(self._sequence.pages[: pages_for(length)]):
            self._pool.write(page, data[index % len(data)])
        self._sequence.length = length

    def close(self) -> None:
        self._drawings.close()
        self._sequence.length = 0
        while self._sequence.pages:
            self._pool.free(self._sequence.pages.pop())


def _random_page(geometry: KvGeometry, generator: torch.Generator) -> torch.Tensor:
    """Keys and values of size 1, see `engine/kv_geometry.py`."""
    parts: list[torch.Tensor] = []
    for heads, width in geometry.layers:
        shape = (2 * heads * PAGE, width)
        if geometry.format == "native":
            parts.append(torch.randn(shape, generator=generator))
        else:
            parts.append(torch.randint(-127, 128, shape, dtype=torch.int8, generator=generator))
            parts.append(torch.full((2 * heads * PAGE,), _CODE_SCALE))
    return torch.cat([part.flatten().view(torch.uint8) for part in parts])
