"""Products with strips, without ever having a whole matrix as float32.

One row of x, which is what decoding is, goes straight over the codes: it reads an eighth (4 bits) or a
quarter (8 bits) of what float32 weights would be, and decoding is limited by reading. Several rows are
limited by arithmetic; there the codes are widened some rows at a time, into scratch of a few megabytes,
for the same product that float32 weights use.

Both agree with the strip's definition as float32 products do, only the order of sums differs: results are
within 1e-6 * sum over k of |x[k] * w[k]| of the exact ones.
"""

from __future__ import annotations

import torch

from engine.config import Activations
from engine.cpu.activations import rounded
from engine.cpu.ops import matrix_product
from engine.cpu.strip_kernels import StripDot, strip_kernels
from engine.weights.strips import Strip, dequantise, take_rows

_SCRATCH_BYTES = 8 * 2**20  # 64 rows by (3072, 576): 0.58 ms; 2 MiB take 0.76, half a MiB 0.88, 16 MiB 0.58


class StripMatrix:
    """A linear map (N outputs, K inputs) whose weight is a strip; `bias` (N,) is float32. Inputs are rounded
    as `activations` says.
    """

    def __init__(
        self, strip: Strip, bias: torch.Tensor | None = None, activations: Activations = "float"
    ) -> None:
        self.strip = strip
        self.bias = bias
        self._activations = activations
        self._kernels = strip_kernels()
        self._dot = None if self._kernels is None else StripDot(self._kernels, strip)
        rows = max(1, _SCRATCH_BYTES // (4 * strip.columns))
        self._blocks = [
            take_rows(strip, start, min(start + rows, strip.rows)) for start in range(0, strip.rows, rows)
        ]

    @property
    def num_bytes(self) -> int:
        return self.strip.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x (T, K) float32 -> (T, N) float32. From two rows on, a row has the same bits whatever T is."""
        x = rounded(x, self._activations)
        y = self._dot(x.contiguous()) if x.shape[0] == 1 and self._dot is not None else self._several(x)
        return y if self.bias is None else y.add_(self.bias)

    def _several(self, x: torch.Tensor) -> torch.Tensor:
        if len(self._blocks) == 1:
            return matrix_product(x, self._widened(self._blocks[0], None))
        y = torch.empty(x.shape[0], self.strip.rows)
        scratch = torch.empty(self._blocks[0].rows, self.strip.columns)
        first = 0
        for block in self._blocks:
            last = first + block.rows
            y[:, first:last] = matrix_product(x, self._widened(block, scratch))
            first = last
        return y

    def _widened(self, block: Strip, scratch: torch.Tensor | None) -> torch.Tensor:
        """`dequantise(block)`, in the front of `scratch` where it can be."""
        if self._kernels is None:
            return dequantise(block)
        out = torch.empty(block.rows, block.columns) if scratch is None else scratch[: block.rows]
        self._kernels.widen(block, out)
        return out
