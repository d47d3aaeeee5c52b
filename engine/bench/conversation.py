"""A sequence in pages of its own, which is filled, read on from and put back, over and over."""

from __future__ import annotations

import threading
from collections.abc import Sequence as Several

import torch

from engine.backend import Backend, PagePool, Sequence
from engine.errors import OutOfMemoryError
from engine.kv_geometry import PAGE, KvGeometry, pages_for
from engine.wording import format_size, format_tokens

_SEED = 7
_DISTINCT_PAGES = 4  # of random ones: what they hold costs no time
_CODE_SCALE = 1 / 73.6  # so that codes stand for numbers of size 1


class Conversation:
    """Of one pool. Its pages are the pool's again after `close`."""

    def __init__(self, backend: Backend, pool: PagePool, *, cancel: threading.Event | None = None) -> None:
        self._backend = backend
        self._pool = pool
        self._cancel = cancel
        self._sequence = Sequence()
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

    def random_ids(self, count: int) -> list[int]:
        vocabulary = self._backend.spec.vocab_size
        return [int(i) for i in torch.randint(vocabulary, (count,), generator=self._generator)]

    def read(self, ids: Several[int]) -> int:
        """The most probable token behind them."""
        self.reserve(self.length + len(ids))
        logits = self._backend.prefill(ids, self._sequence, self._pool, cancel=self._cancel)
        return int(logits.argmax())

    def step(self, token: int) -> int:
        """The most probable token behind one more."""
        logits = self._backend.decode(token, self._sequence, self._pool, cancel=self._cancel)
        return int(logits.argmax())

    def write(self, token: int, count: int) -> int:
        """The same, `count` times. There have to be pages for it."""
        for _ in range(count):
            token = self.step(token)
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
