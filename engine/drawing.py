"""Where the tokens of one answer are drawn: on the device that computes their logits, or here."""

from __future__ import annotations

import threading
from collections.abc import Sequence as Several
from typing import TYPE_CHECKING

from engine.backend import Backend, Drawing, PagePool, Sequence
from engine.errors import ComputeFaultError
from engine.sampling import Sampler

if TYPE_CHECKING:
    import torch


class Drawings:
    """The `Drawing` of one answer, and another one when the answer goes on elsewhere: random numbers depend
    on seed and number of the token alone, so that the tokens are those that one device would have drawn.
    """

    def __init__(self, sampler: Sampler, history: Several[int]) -> None:
        """history: prompt and answer so far, as it is at any time."""
        self._sampler = sampler
        self._history = history
        self._backend: Backend | None = None
        self._drawing: Drawing | None = None

    def on(self, backend: Backend) -> Drawing:
        """On this one; what there was on another is closed."""
        if self._drawing is None or backend is not self._backend:
            self.close()
            self._drawing = self._started(backend)
            self._backend = backend
        return self._drawing

    def close(self) -> None:
        if self._drawing is not None:
            self._drawing.close()
        self._drawing = self._backend = None

    def _started(self, backend: Backend) -> Drawing:
        sampler = self._sampler
        if not sampler.num_drawn:  # a device that comes later doesn't know how many there were
            found = backend.start_drawing(sampler.params, seed=sampler.seed, history=self._history)
            if found is not None:
                return found
        return HostDrawing(backend, sampler, self._history)


class HostDrawing:
    """Logits come to the computer, and a `Sampler` draws."""

    runs_ahead = False

    def __init__(self, backend: Backend, sampler: Sampler, history: Several[int]) -> None:
        self._backend = backend
        self._sampler = sampler
        self._history = history

    def prefill(
        self,
        ids: Several[int],
        sequence: Sequence,
        pool: PagePool,
        *,
        cancel: threading.Event | None = None,
    ) -> int:
        return self._draw(self._backend.prefill(ids, sequence, pool, cancel=cancel))

    def decode(
        self,
        token: int,
        sequence: Sequence,
        pool: PagePool,
        *,
        ahead: bool = False,
        cancel: threading.Event | None = None,
    ) -> int:
        return self._draw(self._backend.decode(token, sequence, pool, cancel=cancel))

    def close(self) -> None:
        """It holds nothing."""

    def _draw(self, logits: torch.Tensor) -> int:
        check_finite(logits)
        return self._sampler.sample(logits, self._history)


def check_finite(logits: torch.Tensor) -> None:
    """Raises ComputeFaultError when any logit is infinite or not a number."""
    if not logits.isfinite().all():
        raise no_numbers()


def no_numbers() -> ComputeFaultError:
    """For logits of which any is infinite or not a number."""
    return ComputeFaultError(
        "The model computed values that are not numbers.",
        "Its weights are damaged or too large for this arithmetic: load it again, or choose another.",
    )
