"""Which layers' weights are on the card where not all of them fit, and in which of its buffers.

Before a layer runs, it and those that run after it are wanted, as many as the window is wide; after the last
layer the first one is next. What is evicted is always behind: it is needed again only after all of them.
Buffers are made once, by size, and go from one matrix to the next: freeing one would wait for the card.

Only what is to be done stands here, and no card is needed for it. `layer_window.py` does it.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.cuda.driver import Address

NOT_CACHED = 0

Sizes = Sequence[Sequence[int]]
"""Bytes of each layer's matrices."""


def weight_key(layer: int, projection: int) -> int:
    """Which matrix of the model; never `NOT_CACHED`."""
    return (layer << 32) | (projection + 1)


def wanted_layers(layer: int, window: int, num_layers: int) -> tuple[int, ...]:
    """`layer`, which is about to run, and those that run after it."""
    return tuple((layer + i) % num_layers for i in range(min(window, num_layers)))


def buffers_for(sizes: Sizes, window: int) -> Counter[int]:
    """How many buffers of each size hold any layers that are wanted together."""
    if len(set(map(tuple, sizes))) == 1:  # as most models are; a person who moves a slider waits for this
        together = min(window, len(sizes))
        return Counter({size: count * together for size, count in Counter(sizes[0]).items()})
    needed: Counter[int] = Counter()
    for layer in range(len(sizes)):
        wanted = wanted_layers(layer, window, len(sizes))
        needed |= Counter(size for each in wanted for size in sizes[each])
    return needed


def window_bytes(sizes: Sizes, window: int, taken: Callable[[int], int] = lambda size: size) -> int:
    """Bytes of all buffers. taken: what a buffer of that size really takes."""
    return sum(count * taken(size) for size, count in buffers_for(sizes, window).items())


def widest_window(sizes: Sizes, room: int, taken: Callable[[int], int] = lambda size: size) -> int:
    """The most layers whose buffers take at most `room` bytes; 0 where not even one's do."""
    widths = range(1, len(sizes) + 1)
    return bisect.bisect_right(widths, room, key=lambda width: window_bytes(sizes, width, taken))


def widest_matrices(sizes: Sizes) -> list[int]:
    """Bytes of the largest matrix of each projection; layers needn't have the same number of these."""
    return [max(each) for each in itertools.zip_longest(*sizes, fillvalue=0)]


@dataclass(eq=False)
class Buffer:
    """key: of the matrix that is in it. reader: the layer that read it last, whichever matrix that was."""

    address: Address
    num_bytes: int
    key: int = NOT_CACHED
    reader: int | None = None


class Residency:
    """allocate: bytes -> where they are. What it raises comes out of the constructor."""

    def __init__(self, sizes: Sizes, window: int, allocate: Callable[[int], Address]) -> None:
        assert window >= 1
        self._sizes = sizes
        self.window = window
        self._held: dict[int, tuple[Buffer, ...]] = {}  # by layer
        self._spare: defaultdict[int, list[Buffer]] = defaultdict(list)  # by size
        for size, count in buffers_for(sizes, window).items():
            self._spare[size] = [Buffer(allocate(size), size) for _ in range(count)]
        self.num_placed = 0
        self.num_evicted = 0

    @property
    def layers(self) -> frozenset[int]:
        """Those that are on the card, or under way to it."""
        return frozenset(self._held)

    def wanted(self, layer: int) -> tuple[int, ...]:
        return wanted_layers(layer, self.window, len(self._sizes))

    def evict_behind(self, layer: int) -> list[int]:
        """Whatever isn't wanted before `layer` runs. Returns which layers that were."""
        evicted = sorted(self.layers.difference(self.wanted(layer)))
        for each in evicted:
            self.release(each)
        self.num_evicted += len(evicted)
        return evicted

    def place(self, layer: int) -> tuple[Buffer, ...]:
        """A buffer for each of its matrices. Layers that aren't wanted have to be evicted by now."""
        assert layer not in self._held
        buffers = []
        for projection, size in enumerate(self._sizes[layer]):
            buffer = self._spare[size].pop()
            buffer.key = weight_key(layer, projection)
            buffers.append(buffer)
        self._held[layer] = tuple(buffers)
        self.num_placed += 1
        return self._held[layer]

    def release(self, layer: int) -> None:
        for buffer in self._held.pop(layer):
            buffer.key = NOT_CACHED
            self._spare[buffer.num_bytes].append(buffer)

    def buffers(self, layer: int) -> tuple[Buffer, ...]:
        """Of a layer that is on the card."""
        buffers = self._held[layer]
        assert all(each.key == weight_key(layer, i) for i, each in enumerate(buffers))
        return buffers
