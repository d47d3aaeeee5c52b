"""Weights as things that can be multiplied with: how they are stored is nobody else's business.

A quantised weight joins here: an object with the same call takes the place of a `Dense` or `Widened`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from engine.cpu.ops import matrix_product
from engine.weights.strips import Strip, dequantise, pick_rows

_WIDEN_BYTES = 32 * 2**20  # of float32 scratch at a time: large enough to stream, small against the weights


class Matrix(Protocol):
    """A linear map with N outputs and K inputs."""

    @property
    def num_bytes(self) -> int: ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x (T, K) float32 -> (T, N) float32, bias added where there is one."""


class Dense:
    """Float32 weight (N, K), contiguous."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    @property
    def num_bytes(self) -> int:
        return self.weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = matrix_product(x, self.weight)
        return y if self.bias is None else y.add_(self.bias)


class Widened:
    """Weight (N, K) kept in bfloat16 or float16 and widened to float32 some rows at a time, exactly."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias
        self._rows = max(1, _WIDEN_BYTES // (4 * weight.shape[1]))

    @property
    def num_bytes(self) -> int:
        return self.weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        parts = [matrix_product(x, rows.float()) for rows in torch.split(self.weight, self._rows)]
        y = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return y if self.bias is None else y.add_(self.bias)


class Joined:
    """Several matrices of the same inputs, one below the other."""

    def __init__(self, members: Sequence[Matrix], bias: torch.Tensor | None = None) -> None:
        self.members = members
        self.bias = bias

    @property
    def num_bytes(self) -> int:
        return sum(member.num_bytes for member in self.members)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([member(x) for member in self.members], dim=1)
        return y if self.bias is None else y.add_(self.bias)


def matrix(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Matrix:
    """The right kind for how `weight` (N, K) is stored; `bias` (N,) is float32."""
    kind = Dense if weight.dtype == torch.float32 else Widened
    return kind(weight, bias)


class RowLookup(Protocol):
    """Rows of a matrix (V, H) by token id."""

    @property
    def num_bytes(self) -> int:
        """Of memory that is no other weight's, too."""

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """ids (T,) int64 -> a new float32 (T, H)."""


class Embedding:
    """A matrix (V, H) as it is stored, and the same as the head where embeddings are tied."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight

    @property
    def num_bytes(self) -> int:
        return self.weight.nbytes

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self.weight.index_select(0, ids).float()

    def as_head(self) -> Matrix:
        return matrix(self.weight)


class StripRows:
    """Rows of the head's strip, where embeddings are tied and the strip lost nothing."""

    num_bytes = 0  # the strip is the head's

    def __init__(self, strip: Strip) -> None:
        self.strip = strip

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return dequantise(pick_rows(self.strip, ids))
