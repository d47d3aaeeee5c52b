"""Matrices that stay in a GGUF type's own blocks: a few rows are looked up at a time, and only these become
numbers.

That is what an embedding is for. As float32 it would take up to seven times the memory, and the time to
dequantise all of it at every load.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.weights.gguf_package import dequantize_into

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class BlockMatrix:
    """One matrix (N, K). raw: uint8 (N, bytes of a row), each row whole blocks of the type `dtype`."""

    raw: torch.Tensor
    dtype: str
    columns: int

    @property
    def num_bytes(self) -> int:
        return self.raw.nbytes

    @property
    def shape(self) -> tuple[int, int]:
        return self.raw.shape[0], self.columns

    def __getitem__(self, rows: slice, /) -> torch.Tensor:
        """Neighbouring rows as `rows` gives them, without a copy of their blocks."""
        return self._numbers(self.raw[rows])

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """ids (T,) int64 -> a new float32 (T, K), bit for bit what dequantising the whole gives."""
        return self._numbers(self.raw.index_select(0, ids))

    def _numbers(self, raw: torch.Tensor) -> torch.Tensor:
        import torch

        found = torch.empty(len(raw), self.columns)
        dequantize_into(found.view(-1).numpy(), raw.view(-1).numpy(), self.dtype)
        return found
