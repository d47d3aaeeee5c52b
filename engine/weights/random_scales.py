"""How large random weights are: a product with a row of numbers of size 1 makes numbers of size 1, whatever
the width. Nothing here imports torch.
"""

from __future__ import annotations

import math

from engine.weights.strips import Bits

# Root of the mean square of codes that are equally likely: of all 16 nibbles, and of -127 to 127.
_CODE_SIZE = {4: math.sqrt(sum(code**2 for code in range(-8, 8)) / 16), 8: math.sqrt(127 * 128 / 3)}


def strip_scale(bits: Bits, num_inputs: int) -> float:
    """Of every group of a strip with such codes."""
    return 1.0 / (_CODE_SIZE[bits] * math.sqrt(num_inputs))


def number_bound(num_inputs: int) -> float:
    """Of weights that lie evenly between it and its negative."""
    return math.sqrt(3.0 / num_inputs)
