"""What every backend speaks: a model that turns token ids into logits, and pages of what it has read.

A pool holds pages (`engine/kv_geometry.py`) and computes with them where they are. Which tokens a page
stands for, who shares it and when it may be freed is kept by `engine/states/`.
"""

from __future__ import annotations

import collections.abc
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from engine.generation import SamplingParams
from engine.kv_geometry import KvFormat, KvGeometry
from engine.metrics import MemoryUse, Work
from engine.models.spec import ModelSpec
from engine.notices import Notice

if TYPE_CHECKING:
    import torch


class Cache(Protocol):
    """What is kept of one sequence of tokens. Not safe to use from two threads at once."""

    @property
    def length(self) -> int:
        """The number of tokens that the cache is valid for."""

    def truncate(self, length: int) -> None:
        """Forget every token from `length` on; 0 <= length <= self.length. Takes no time, frees no memory."""

    def close(self) -> None:
        """Frees the memory; nothing may be called any more."""


@dataclass
class Sequence:
    """A page table: in which pages the tokens are, and how many tokens they are valid for.

    Token i is in row i % 64 of page `pages[i // 64]`. There may be more pages than the tokens fill. Rows at
    or behind `length` hold anything at all; no result ever depends on them.
    """

    pages: list[int] = field(default_factory=list)
    length: int = 0


class PagePool(Protocol):
    """Pages of one geometry. It counts nothing and shares nothing. Not safe to use from two threads at once.

    Memory is taken when a page is allocated and given back when it is freed.
    """

    @property
    def geometry(self) -> KvGeometry: ...

    @property
    def capacity(self) -> int:
        """The pages that it may hold in all."""

    def allocate(self) -> int | None:
        """A page of zeros; None when there are `capacity` of them, or no memory for one more."""

    def free(self, page: int) -> None:
        """Its number may be given out again."""

    def copy(self, source: int, target: int) -> None:
        """`target` holds what `source` does, until either is written to."""

    def read(self, page: int) -> torch.Tensor:
        """uint8 (page_bytes,) in the computer's memory, a copy. Raises OutOfMemoryError."""

    def write(self, page: int, data: torch.Tensor) -> None:
        """Makes the page what `read` gave."""


class Drawing(Protocol):
    """The tokens of one answer, each drawn from logits as soon as they are there. To be closed by whoever
    started it.
    """

    @property
    def runs_ahead(self) -> bool:
        """Whether it can begin with a token's step before anybody knows which token that is."""

    def prefill(
        self,
        ids: collections.abc.Sequence[int],
        sequence: Sequence,
        pool: PagePool,
        *,
        cancel: threading.Event | None = None,
    ) -> int:
        """Runs `ids` as `Backend.prefill` does, and draws the token behind them. Raises what that raises, and
        ComputeFaultError where any logit is no finite number: `ids` may be in the sequence then.
        """

    def decode(
        self,
        token: int,
        sequence: Sequence,
        pool: PagePool,
        *,
        ahead: bool = False,
        cancel: threading.Event | None = None,
    ) -> int:
        """The same for the token that was drawn last, in the quickest way. ahead: the step of the token that
        is drawn now may begin, which leaves something in the row behind this one's: there is a page for it.
        """

    def close(self) -> None:
        """Nothing more is drawn. What has begun ahead changes nothing that counts."""


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

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What a person should know of how it was loaded and runs."""

    @property
    def work(self) -> Work:
        """What was asked of the device so far. Takes next to no time."""

    def memory_use(self) -> MemoryUse:
        """What the model takes where it computes. On a card, the driver is asked once a second at most."""

    def new_pool(self, geometry: KvGeometry, capacity: int) -> PagePool:
        """An empty pool, valid until the backend is dropped. `geometry` is the model's, in any format."""

    def prefill(
        self,
        ids: collections.abc.Sequence[int],
        sequence: Sequence,
        pool: PagePool,
        *,
        all_logits: bool = False,
        cancel: threading.Event | None = None,
    ) -> torch.Tensor:
        """Run `ids` (at least one) behind the tokens of `sequence`, into pages of it that are there already
        and that nobody shares.

        Returns float32 logits (V,) after the last id, or (T, V) after every id; the tensor is the caller's.
        Their bits and those of the pages' new rows depend on all ids up to each row and on nothing else: not
        on where a prompt was cut into calls of `prefill`, nor on what is in the pages behind.

        Long inputs run in blocks; `sequence.length` grows when a block is finished and never otherwise, so
        after `Cancelled` or an error it is valid for exactly the blocks that were completed.

        Raises Cancelled when `cancel` is set (looked at in every layer), OutOfMemoryError.
        """

    def decode(
        self,
        token: int,
        sequence: Sequence,
        pool: PagePool,
        *,
        cancel: threading.Event | None = None,
    ) -> torch.Tensor:
        """Run one id as `prefill` does, in the quickest way: float32 logits (V,), which may differ from those
        of `prefill` by rounding. They depend on the rows before and on the token alone.
        """

    def start_drawing(
        self, params: SamplingParams, *, seed: int | None, history: collections.abc.Sequence[int]
    ) -> Drawing | None:
        """For one answer, whose tokens are drawn where logits are computed. seed: None where the answer is
        greedy. history: its prompt. None: whoever asks draws from logits (`engine/drawing.py`).
        """

    def new_cache(self, kv_format: KvFormat = "native") -> Cache:
        """An empty cache with pages of its own, valid until the backend is dropped."""

    def forward(
        self,
        ids: collections.abc.Sequence[int],
        cache: Cache,
        *,
        all_logits: bool = False,
        cancel: threading.Event | None = None,
    ) -> torch.Tensor:
        """`decode` for one id, `prefill` for several, behind the tokens that `cache` holds.

        Raises what they raise, OutOfMemoryError also when the cache can't grow.
        """

    def close(self) -> None:
        """Gives back what the device holds for it; nothing may be called any more. Doing it twice does
        nothing.
        """
