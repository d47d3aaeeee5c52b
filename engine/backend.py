"""What every backend speaks: a model that turns token ids into logits, and caches of what it has read.

A cache belongs to the backend that made it and holds keys and values of `length` tokens; whatever lies behind
that is never read. The cache knows positions, not tokens: which ids it stands for is kept by
`engine/states/`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from engine.models.spec import ModelSpec

if TYPE_CHECKING:
    import torch


class Cache(Protocol):
    """What is kept of one sequence of tokens. Not safe to use from two threads at once."""

    @property
    def length(self) -> int:
        """The number of tokens that the cache is valid for."""

    def truncate(self, length: int) -> None:
        """Forget every token from `length` on; 0 <= length <= self.length. Takes no time, frees no memory."""


class Backend(Protocol):
    """The mathematics of one loaded model on one device."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def device(self) -> str:
        """The name of the kind: "cpu" or "cuda"."""

    @property
    def description(self) -> str:
        """The device and the arithmetic in words for people, e.g. "CPU, 8 threads, float32"."""

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take."""

    def new_cache(self) -> Cache:
        """An empty cache, valid until the backend is dropped."""

    def forward(
        self,
        ids: Sequence[int],
        cache: Cache,
        *,
        all_logits: bool = False,
        cancel: threading.Event | None = None,
    ) -> torch.Tensor:
        """Run `ids` (at least one) behind the tokens that `cache` holds.

        Returns float32 logits (V,) after the last id, or (T, V) after every id; the tensor is the caller's.

        Long inputs run in blocks; `cache.length` grows when a block is finished and never otherwise, so after
        `Cancelled` or an error the cache is valid for exactly the blocks that were completed.

        Raises Cancelled when `cancel` is set (looked at in every layer), OutOfMemoryError when the cache
        can't grow.
        """
