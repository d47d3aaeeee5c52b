"""Whether a row of a product has the same bits however many rows there are, tried on a model's matrices.

Reading a prompt in pieces gives the bits of reading it at once only if it has. Libraries choose their method
by the shape, and don't say how: some split long sums among threads where there are few rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from engine.cpu.matrices import Matrix
from engine.cpu.model import DenseWeights, LayerWeights
from engine.kv_geometry import PAGE


def rows_are_alike(layers: Sequence[LayerWeights], num_rows: int) -> bool:
    """Products of `num_rows` against those of one page and of three, once for each kind of layer."""
    kinds = {(layer.attention.spec, layer.intermediate_size): layer for layer in layers}
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        for matrix, num_inputs in (each for layer in kinds.values() for each in _matrices(layer)):
            x = torch.randn(num_rows, num_inputs, generator=generator)
            y = matrix(x)
            for rows in (slice(PAGE, 2 * PAGE), slice(num_rows - 3 * PAGE, num_rows)):
                if not torch.equal(matrix(x[rows]), y[rows]):
                    return False
    return True


def _matrices(layer: LayerWeights) -> Iterable[tuple[Matrix, int]]:
    """Those that whole pages are multiplied with, and how many inputs they have."""
    hidden_size = len(layer.feed_forward_norm)
    yield layer.attention.qkv, hidden_size
    yield layer.attention.output, layer.attention.spec.q_dim
    if isinstance(layer.feed_forward, DenseWeights):
        yield layer.feed_forward.gate_up, hidden_size
        yield layer.feed_forward.down, layer.intermediate_size
    else:
        yield layer.feed_forward.router, hidden_size
