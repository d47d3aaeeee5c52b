"""One answer's tokens on the card, one step ahead of whoever waits for them. See `engine.backend.Drawing`."""

from __future__ import annotations

import threading
from collections.abc import Sequence as Several
from typing import TYPE_CHECKING

from engine.backend import PagePool, Sequence
from engine.cuda.drawing import DrawSlot
from engine.cuda.page_pool import CudaPagePool
from engine.drawing import no_numbers

if TYPE_CHECKING:
    from engine.cuda.backend import CudaBackend


class CardDrawing:
    """A step that was launched ahead writes the row of a token that nobody may want, and draws behind it: the
    row counts only once that token is run, and the draw only once it is taken.
    """

    def __init__(self, backend: CudaBackend, slot: DrawSlot) -> None:
        """slot: begun, and this answer's until `close`."""
        self._backend = backend
        self._slot: DrawSlot | None = slot

    @property
    def runs_ahead(self) -> bool:
        return self._backend.runs_ahead

    def prefill(
        self,
        ids: Several[int],
        sequence: Sequence,
        pool: PagePool,
        *,
        cancel: threading.Event | None = None,
    ) -> int:
        assert isinstance(pool, CudaPagePool)
        slot = self._open_slot()
        assert not slot.in_flight
        self._backend.run_drawn(ids, sequence, pool, slot, cancel)
        return _drawn(slot)

    def decode(
        self,
        token: int,
        sequence: Sequence,
        pool: PagePool,
        *,
        ahead: bool = False,
        cancel: threading.Event | None = None,
    ) -> int:
        assert isinstance(pool, CudaPagePool)
        slot, backend = self._open_slot(), self._backend
        if slot.in_flight:
            sequence.length += 1  # its step was launched ahead
        else:
            backend.run_drawn([token], sequence, pool, slot, cancel)
        # Where another answer was computed meanwhile, the card has to be told the token, once that is known.
        # Answers that take turns have a step each there, so it has those of the others to do until then.
        is_ahead = ahead and backend.run_ahead(sequence.length, None, sequence, pool, slot)
        following = _drawn(slot)
        if ahead and not is_ahead:
            backend.run_ahead(sequence.length, following, sequence, pool, slot)
        return following

    def close(self) -> None:
        if self._slot is not None:
            self._backend.end_drawing(self._slot)
            self._slot = None

    def _open_slot(self) -> DrawSlot:
        assert self._slot is not None, "the drawing was closed"
        return self._slot


def _drawn(slot: DrawSlot) -> int:
    token = slot.take()
    if token is None:
        raise no_numbers()
    return token
