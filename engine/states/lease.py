"""A state while an answer is computed with it: nobody else has it, and every step is all or nothing."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from engine.errors import ModelUnloadedError
from engine.generation import ReuseReason
from engine.notices import Notice
from engine.states.state import Home, State, as_ids

if TYPE_CHECKING:
    import torch

MakeWritable = Callable[["Lease", int, threading.Event | None], None]


class Lease:
    """`reused` of the prompt's `total` tokens are cached already; `reason` says why it isn't more, and
    `diverged_at` at which token the prompt left what was cached. None: only what is new has to be read.
    """

    def __init__(
        self,
        state: State,
        *,
        total: int,
        reason: ReuseReason | None = None,
        diverged_at: int | None = None,
        make_writable: MakeWritable,
    ) -> None:
        """make_writable: sees to the pages of a step, wherever they can be had. Raises OutOfMemoryError, and
        Cancelled where it has to wait for the disk.
        """
        self.state = state
        self.reused = state.length
        self.total = total
        self.reason = reason
        self.diverged_at = diverged_at
        self._make_writable = make_writable
        self._notices: list[Notice] = []

    @property
    def conversation(self) -> str:
        return self.state.conversation

    @property
    def ids(self) -> array[int]:
        """The tokens that are cached, always."""
        return self.state.ids

    @property
    def length(self) -> int:
        return self.state.length

    @property
    def home(self) -> Home:
        assert self.state.live is not None
        return self.state.live.home

    def prefill(
        self, ids: Sequence[int], *, all_logits: bool = False, cancel: threading.Event | None = None
    ) -> torch.Tensor:
        """Append `ids`; logits (V,) after the last, or (T, V). However it ends, `ids` are what is cached."""
        self._make_writable(self, len(ids), cancel)
        backend, ledger = self.home.backend, self.home.ledger
        assert self.state.live is not None
        sequence = self.state.live.sequence
        try:
            return backend.prefill(ids, sequence, ledger.pool, all_logits=all_logits, cancel=cancel)
        finally:
            self._take_over(ids)

    def decode(self, token: int, *, cancel: threading.Event | None = None) -> torch.Tensor:
        """`prefill` for one token, in the quickest way."""
        self._make_writable(self, 1, cancel)
        backend, ledger = self.home.backend, self.home.ledger
        assert self.state.live is not None
        sequence = self.state.live.sequence
        try:
            return backend.decode(token, sequence, ledger.pool, cancel=cancel)
        finally:
            self._take_over([token])

    def rewind(self, length: int) -> None:
        """Forget the tokens from `length` on."""
        assert self._make_writable is not _refuse, "the state is somebody else's"
        self.state.truncate(length)

    def end(self) -> None:
        """The state was given back: what is asked for from now on raises ModelUnloadedError, for only a store
        that closes takes a state out of an answer's hands. Nothing of the pool is held any more.
        """
        self._make_writable = _refuse

    def add_notice(self, notice: Notice) -> None:
        self._notices.append(notice)

    def take_notices(self) -> tuple[Notice, ...]:
        """What happened since the last time this was asked."""
        found, self._notices = tuple(self._notices), []
        return found

    def _take_over(self, ids: Sequence[int]) -> None:
        """The ids of the tokens by which the sequence has grown."""
        assert self.state.live is not None
        grown = self.state.live.sequence.length - self.state.length
        self.state.ids.extend(as_ids(ids[:grown]))


def _refuse(_lease: Lease, _num_tokens: int, _cancel: threading.Event | None) -> None:
    raise ModelUnloadedError
