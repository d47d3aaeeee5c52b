"""Where weights are to be: what stays on the card, and how many layers are there at a time.

Sizes alone decide it, so the same is asked before a load, when there is nothing but headers, and by the load
itself (`weights.py`). No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.cpu.memory import mebibytes
from engine.cuda.memory import taken_bytes
from engine.cuda.page_pool import cache_bytes
from engine.cuda.residency import Sizes, buffers_for, widest_matrices, widest_window
from engine.errors import OutOfMemoryError
from engine.kv_geometry import KvGeometry, pages_for

SHORT_TOKENS = 4096  # of a conversation that weights leave room for in any case
RESERVE_BYTES = 256 * 2**20
"""Of the card's memory, left to the driver and to what else is on the screen where nobody says how much."""


@dataclass(frozen=True)
class Rest:
    """What the weights have to leave, in bytes. other: what this model is going to take beside them.
    short_cache: a conversation of some length, without which the card is of no use. cache: one of any length.
    """

    other: int
    short_cache: int
    cache: int

    @classmethod
    def of(cls, geometry: KvGeometry, *, context: int, other: int) -> Rest:
        """For pages of that form, and conversations of up to `context` tokens."""
        return cls(
            other=other,
            short_cache=cache_bytes(geometry, pages_for(min(context, SHORT_TOKENS))),
            cache=cache_bytes(geometry, pages_for(context)),
        )


@dataclass(frozen=True)
class LayerSizes:
    """Bytes of each layer's matrices. stays: as they stay. comes: as they come, and wait in a window."""

    stays: Sizes
    comes: Sizes

    @property
    def passage(self) -> int:
        """Of the largest that comes through."""
        return max(map(max, self.comes))

    def on_card(self, window: int | None) -> Sequence[int]:
        """Of each buffer that such a window takes; None: all layers."""
        if window is None:
            return [size for each in self.stays for size in each]
        buffers = buffers_for(self.comes, window)
        return [*widest_matrices(self.stays), *buffers.elements()]


def takes_embedding(
    embedding: int, sizes: LayerSizes, available: int, rest: Rest, *, window: int = 0
) -> bool:
    """Whether an embedding of so many bytes is to be on the card. A token reads one row of it: that is not
    worth a layer's place. available: with the head there, which came first. window: asked for; 0: nobody did.
    """
    if 0 < window < len(sizes.stays):
        return False
    room = available - taken_bytes(embedding) - rest.other
    beside = max(rest.short_cache, taken_bytes(sizes.passage))
    return bool(window) or widest_window(sizes.stays, room - beside, taken_bytes) == len(sizes.stays)


def chosen_window(sizes: LayerSizes, available: int, rest: Rest, *, window: int = 0) -> int | None:
    """Layers at a time; None: all. window: asked for; 0: nobody did. Raises OutOfMemoryError."""
    if window:
        return window if window < len(sizes.stays) else None
    return fitting_window(sizes.stays, sizes.comes, available, rest, passage=sizes.passage)


def fitting_window(
    sizes: Sizes, raw_sizes: Sizes, available: int, rest: Rest, *, passage: int = 0
) -> int | None:
    """How many layers of such matrices the card has room for at a time, None where it has for all. sizes: as
    they stay. raw_sizes: as they come, and wait in a window; beside it, one layer is as it stays. passage:
    bytes through which all come where they stay; free again once they are there.

    Having to read weights at every token costs far more than a conversation that goes on on the CPU once it
    is long: so all stay if there is room for a short one. Where not all do, a long one has room.
    Raises OutOfMemoryError where not even one layer has any.
    """
    room = available - rest.other
    beside = max(rest.short_cache, taken_bytes(passage))
    if widest_window(sizes, room - beside, taken_bytes) == len(sizes):
        return None
    room -= sum(map(taken_bytes, widest_matrices(sizes)))
    for cache, least in ((rest.cache, 2), (rest.short_cache, 1)):  # with one, uploads and work take turns
        widest = min(widest_window(raw_sizes, room - cache, taken_bytes), len(sizes) - 1)
        if widest >= least:
            return widest
    raise OutOfMemoryError(
        f"The card has no room for even one layer of the model beside a short conversation: "
        f"{mebibytes(max(0, room))} are left.",
        "Close other programs that use the card, raise the VRAM budget, or pick a smaller model.",
    )
