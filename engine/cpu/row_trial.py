"""Whether a row of a product has the same bits whatever is around it, tried on a model's own matrices.

Reading a prompt in pieces gives the bits of reading it at once only if it has. Libraries choose their method
by the shape, and don't say how: some split long sums among threads where there are few rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from engine.cpu.model import DenseWeights, LayerWeights
from engine.cpu.moe import run_expert
from engine.kv_geometry import PAGE

_EXPERT_ROWS = 16  # one of many experts gets few tokens of a page, and rows of zeros cost as much as they do

Product = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class RowShapes:
    """How many rows at once give bits that don't depend on how a prompt was cut."""

    block: int  # rows of a prompt, at most: with one page, every product has the same shape
    expert: int  # rows of an expert's products, always: with one, every row is a product of its own


def try_rows(layers: Sequence[LayerWeights], block: int) -> RowShapes:
    """Products of `block` rows against those of one page and of three, and of an expert's rows in another
    order; once for each kind of layer.
    """
    kinds = {(layer.attention.spec, layer.intermediate_size): layer for layer in layers}
    with torch.inference_mode():
        products = [each for layer in kinds.values() for each in _products(layer)]
        experts = [each for layer in kinds.values() for each in _experts(layer)]
        return RowShapes(
            block=block if all(_alike_in_pages(*each, block) for each in products) else PAGE,
            expert=_EXPERT_ROWS if all(_alike_anywhere(*each) for each in experts) else 1,
        )


def _alike_in_pages(product: Product, num_inputs: int, block: int) -> bool:
    x = _some_rows(block, num_inputs)
    y = product(x)
    pieces = (slice(PAGE, 2 * PAGE), slice(block - 3 * PAGE, block))
    return all(torch.equal(product(x[rows]), y[rows]) for rows in pieces)


def _alike_anywhere(product: Product, num_inputs: int) -> bool:
    x = _some_rows(_EXPERT_ROWS, num_inputs)
    y = product(x)
    return all(torch.equal(product(x.roll(shift, 0)), y.roll(shift, 0)) for shift in (1, 6))


def _some_rows(count: int, num_inputs: int) -> torch.Tensor:
    return torch.randn(count, num_inputs, generator=torch.Generator().manual_seed(0))


def _products(layer: LayerWeights) -> Iterable[tuple[Product, int]]:
    """What whole pages are multiplied with, and how many inputs that has."""
    hidden_size = len(layer.feed_forward_norm)
    yield layer.attention.qkv, hidden_size
    yield layer.attention.output, layer.attention.spec.q_dim
    if isinstance(layer.feed_forward, DenseWeights):
        yield layer.feed_forward.gate_up, hidden_size
        yield layer.feed_forward.down, layer.intermediate_size
    else:
        yield layer.feed_forward.router, hidden_size


def _experts(layer: LayerWeights) -> Iterable[tuple[Product, int]]:
    moe = layer.feed_forward
    if not isinstance(moe, DenseWeights):
        yield lambda x: run_expert(moe, 0, x), len(layer.feed_forward_norm)
