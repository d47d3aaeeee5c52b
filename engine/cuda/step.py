"""What the host tells the card of the tokens of one step: everything in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.cuda.driver import Address, as_bytes
from engine.cuda.memory import CardMemory, Use
from engine.kv_geometry import pages_for

if TYPE_CHECKING:
    import torch

_LONG_BYTES, _FLOAT_BYTES = 8, 4
_ALIGNMENT = 16


class StepBuffer:
    """Hidden states (T, H), which layers change in place, and behind them the first position and the
    addresses of pages (`Step` in `kernels/step.cuh`).
    """

    def __init__(self, memory: CardMemory, *, rows: int, width: int, context: int) -> None:
        self._memory = memory
        self._width = width
        self._size = self._hidden_bytes(rows) + _LONG_BYTES * (1 + pages_for(context))
        self.hidden = memory.allocate(self._size, Use.WORKSPACE)

    def send(self, hidden: torch.Tensor, first: int, pages: Sequence[Address]) -> None:
        """hidden (T, H) float32."""
        import numpy as np

        hidden_bytes = self._hidden_bytes(len(hidden))
        whole = np.zeros(hidden_bytes + _LONG_BYTES * (1 + len(pages)), np.uint8)
        assert len(whole) <= self._size
        numbers = as_bytes(hidden)
        whole[: len(numbers)] = numbers
        whole[hidden_bytes:] = np.array([first, *pages], np.uint64).view(np.uint8)
        self._memory.driver.upload(self.hidden, whole)

    def step_of(self, rows: int) -> Address:
        """Where position and pages of a step with so many tokens are."""
        return Address(self.hidden + self._hidden_bytes(rows))

    def free(self) -> None:
        self._memory.free(self.hidden)

    def _hidden_bytes(self, rows: int) -> int:
        size = _FLOAT_BYTES * rows * self._width
        return -(-size // _ALIGNMENT) * _ALIGNMENT
