"""What the inputs of one matrix are like over some text: by this 4-bit codes are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_GRAIN = 256  # blocks are cut at its multiples, which groups of any size keep to
_STRIP = 256  # columns of a block whose sums are taken at a time, down to the diagonal


@dataclass(frozen=True)
class InputStatistics:
    """mean_squares: E[x_k ** 2] (K,). moments: E[x xᵀ] (W, W), float32, of each block of neighbouring inputs
    in turn; None where only mean squares are known. num_tokens: how many inputs were seen, at least one.
    """

    mean_squares: torch.Tensor
    moments: Sequence[torch.Tensor] | None
    num_tokens: int


class InputObserver:
    """Takes the inputs of one matrix, some at a time."""

    def __init__(self, num_inputs: int, *, widest_block: int) -> None:
        """widest_block: of the moments; 0 leaves them out."""
        import torch

        self._squares = torch.zeros(num_inputs, dtype=torch.float64)
        self.num_inputs = num_inputs
        self._widths = block_widths(num_inputs, widest_block) if widest_block else []
        self._moments = [torch.zeros(width, width) for width in self._widths]
        self.num_tokens = 0

    def add(self, x: torch.Tensor) -> None:
        """x (T, K)"""
        import torch

        self._squares += x.double().square().sum(0)
        self.num_tokens += len(x)
        if self._moments:
            for total, block in zip(self._moments, torch.split(x.float(), self._widths, 1), strict=True):
                _add_products(total, block)

    def take_in(self, other: InputObserver) -> None:
        """Mean squares as if the inputs of `other` had come here; no moments."""
        self._squares += other._squares
        self.num_tokens += other.num_tokens

    def statistics(self) -> InputStatistics | None:
        """None before anything was added, or if not all of it were numbers. To be called once."""
        count = self.num_tokens
        if count == 0 or not bool(self._squares.isfinite().all()):
            return None
        moments = []
        while self._moments:  # each is freed as soon as there is what it became
            moments.append(_mirrored(self._moments.pop(0).div_(count)))
        usable = bool(moments) and all(bool(each.isfinite().all()) for each in moments)
        return InputStatistics(self._squares / count, moments if usable else None, count)


def _add_products(total: torch.Tensor, block: torch.Tensor) -> None:
    """block (T, W): adds blockᵀ block to `total` (W, W), but not to all of what lies below the diagonal. Of a
    wide block that takes three quarters of the time.
    """
    for start in range(0, block.shape[1], _STRIP):
        stop = min(start + _STRIP, block.shape[1])
        total[:stop, start:stop].addmm_(block[:, :stop].t(), block[:, start:stop])


def _mirrored(upper: torch.Tensor) -> torch.Tensor:
    """Symmetric, with what lies on the diagonal and above it."""
    return upper.triu() + upper.triu(1).t()


def block_widths(num_inputs: int, widest: int) -> list[int]:
    """How `num_inputs` are cut into as few blocks as may be, of nearly the same width."""
    grains = -(-num_inputs // _GRAIN)
    count = -(-grains // max(1, widest // _GRAIN))
    pieces, longer = divmod(grains, count)
    widths = [(pieces + (index < longer)) * _GRAIN for index in range(count)]
    widths[-1] -= grains * _GRAIN - num_inputs
    return widths
