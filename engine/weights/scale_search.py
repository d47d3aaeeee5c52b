"""Codes and scales of many groups at once, on numpy arrays. What is searched for, and why, is in
`quantise.py`.

Groups lie side by side: arrays are (G, M), one group a column. Then all work is on long rows, and sums over
a group can be folded in an order that does not depend on M.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from engine.weights.strips import BLOCK, LARGEST_CODE, SMALLEST_CODE, Bits

Floats = npt.NDArray[np.float32]
ScaleDtype = Literal["float16", "bfloat16", "float32"]

# Where the largest weight may come to lie among the codes; a negative number turns the sign of the scale.
# The first two of 4 bits and the first of 8 are plain rounding. Denser grids gain under 1% of the error.
_TARGETS = {
    4: (7.0, -8.0, -8.4, -7.75, -7.1, -6.45, -5.8, 7.4, 6.8, 6.2, 5.6, 5.0),
    8: (127.0, 127.4, 125.8, 124.2, 122.7, 121.1, 119.5, 117.9, 116.3, 114.7, 113.2, 111.6, 110.0),
}
# Then scales near the best of those, as factors; then the least-squares scale of the best one's codes, so
# often.
_STEPS = {4: (0.97, 0.985, 1.015, 1.03), 8: (0.998, 1.002)}
_REFITS = {4: 2, 8: 1}

_FLOAT16_SMALLEST, _FLOAT16_LARGEST = 2.0**-24, 65504.0


@dataclass(frozen=True)
class ScaleType:
    """What scales may be. A group without a weight beyond `negligible` is one of zeros."""

    narrow: Callable[[Floats], Floats]  # to the nearest that the type holds, with its sign and never 0
    negligible: float


def _as_it_is(scales: Floats) -> Floats:
    return scales


def _to_float16(scales: Floats) -> Floats:
    magnitudes = np.clip(np.abs(scales), _FLOAT16_SMALLEST, _FLOAT16_LARGEST)
    return np.copysign(magnitudes.astype(np.float16).astype(np.float32), scales)


def _to_bfloat16(scales: Floats) -> Floats:
    """The upper half of a float32, rounded to nearest, ties to even."""
    bits = scales.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


# With float16, what is negligible comes to code 0 under the smallest scale. Otherwise nothing that a
# float32 sum could notice is.
SCALE_TYPES = {
    "float16": ScaleType(_to_float16, _FLOAT16_SMALLEST / 2),
    "bfloat16": ScaleType(_to_bfloat16, 2.0**-100),
    "float32": ScaleType(_as_it_is, 2.0**-100),
}


class ScaleSearch:
    """Buffers for groups of one size, reused from chunk to chunk. One thread at a time.

    x: (G, max_groups) float32, to be filled by the caller before `run`.
    """

    def __init__(self, bits: Bits, group: int, max_groups: int, scale_dtype: ScaleDtype) -> None:
        self.x = np.empty((group, max_groups), np.float32)
        self._buffers = [np.empty_like(self.x) for _ in range(3)]
        self._bits: Bits = bits
        self._limits = SMALLEST_CODE[bits], LARGEST_CODE[bits]
        self._type = SCALE_TYPES[scale_dtype]

    def run(self, num_groups: int, importance: Floats | None) -> tuple[npt.NDArray[np.int8], Floats]:
        """Codes (G, M) and scales (M,) of the first M groups in `x`; importance is None or (G, M) in [0, 1].

        A group whose codes are all 0 has the scale 1.
        """
        x = self.x[:, :num_groups]
        extremes = _extremes(x, self._type.negligible)
        targets = _TARGETS[self._bits]
        best = self._candidate(extremes, targets[0])
        errors = self._errors(best, extremes, importance)

        def consider(scales: Floats) -> None:
            found = self._errors(scales, extremes, importance)
            better = found < errors
            np.copyto(errors, found, where=better)
            np.copyto(best, scales, where=better)

        for target in targets[1:]:
            consider(self._candidate(extremes, target))
        around = best.copy()
        for step in _STEPS[self._bits]:
            consider(self._type.narrow(around * np.float32(step)))
        for _ in range(_REFITS[self._bits]):
            consider(self._refitted(best, importance))
        _, codes = self._scaled_and_codes(best)
        best[~codes.any(axis=0)] = 1
        return codes.astype(np.int8), best

    def _candidate(self, extremes: Floats, target: float) -> Floats:
        """Scales with which the largest weight lies at `target`. Codes of 8 bits are symmetric: their
        scales are positive.
        """
        peaks: Floats = extremes if self._bits == 4 else np.abs(extremes)
        return self._type.narrow(peaks / np.float32(target))

    def _scaled_and_codes(self, scales: Floats) -> tuple[Floats, Floats]:
        """x / scale and its codes, in the first two buffers."""
        scaled, codes, _ = (buffer[:, : len(scales)] for buffer in self._buffers)
        np.multiply(self.x[:, : len(scales)], 1 / scales, out=scaled)
        np.rint(scaled, out=codes)
        np.clip(codes, *self._limits, out=codes)
        return scaled, codes

    def _errors(self, scales: Floats, extremes: Floats, importance: Floats | None) -> Floats:
        """The weighted square error of each group, in units of its largest weight: nothing can overflow."""
        scaled, codes = self._scaled_and_codes(scales)
        np.subtract(scaled, codes, out=scaled)
        np.multiply(scaled, scaled, out=scaled)
        if importance is not None:
            np.multiply(scaled, importance, out=scaled)
        errors: Floats = _folded(scaled) * np.square(scales / extremes)
        return errors

    def _refitted(self, scales: Floats, importance: Floats | None) -> Floats:
        """The scale that is best for the codes that `scales` give, by least squares."""
        scaled, codes = self._scaled_and_codes(scales)
        weighted = codes
        if importance is not None:
            weighted = self._buffers[2][:, : len(scales)]
            np.multiply(codes, importance, out=weighted)
        np.multiply(scaled, weighted, out=scaled)
        np.multiply(codes, weighted, out=weighted)
        products, squares = _folded(scaled), _folded(weighted)
        usable = (products > 0) & (squares > 0)
        return self._type.narrow(np.where(usable, scales * (products / np.where(usable, squares, 1)), scales))


def packed(codes: npt.NDArray[np.int8]) -> npt.NDArray[np.uint8]:
    """`strips.pack` for groups that are columns: (G, M) -> (G / 2, M)."""
    blocks = codes.view(np.uint8).reshape(-1, 2, BLOCK // 2, codes.shape[1])
    nibbles: npt.NDArray[np.uint8] = (blocks[:, 0] & np.uint8(15)) | (blocks[:, 1] << np.uint8(4))
    return nibbles.reshape(-1, codes.shape[1])


def _extremes(x: Floats, negligible: float) -> Floats:
    """The weight of each group that is furthest from 0, with its sign (M,); 1 for groups of zeros."""
    high, low = x.max(axis=0), x.min(axis=0)
    extremes = np.where(high >= -low, high, low)
    usable: Floats = np.where(np.abs(extremes) > negligible, extremes, np.float32(1))
    return usable


def _folded(values: Floats) -> Floats:
    """Sums over axis 0, whose length is a power of two: the second half is added to the first until one row
    is left. Overwrites `values`.
    """
    length = len(values)
    while length > 1:
        length //= 2
        np.add(values[:length], values[length : 2 * length], out=values[:length])
    sums: Floats = values[0]
    return sums
