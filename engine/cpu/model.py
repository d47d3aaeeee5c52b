"""Loaded tensors as the layers that the backend walks through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from engine.config import Activations
from engine.cpu.matrices import Embedding, Joined, Matrix, RowLookup, matrix
from engine.cpu.moe import MoeWeights
from engine.cpu.strip_matrix import StripMatrix
from engine.models.spec import AttentionSpec, LayerSpec, ModelSpec, MoeSpec
from engine.weights.strips import Strip

Strips = Mapping[str, Sequence[Strip]]
"""Strips by parameter name: for each matrix (one, or one an expert) as many as `packing.strip_rows` says."""


@dataclass(frozen=True)
class AttentionWeights:
    """`qk_norm` (A + G, D) holds the query norm for each query head, then the key norm for each key head."""

    spec: AttentionSpec
    norm: torch.Tensor
    qkv: Matrix
    qk_norm: torch.Tensor | None
    output: Matrix


@dataclass(frozen=True)
class DenseWeights:
    gate_up: Matrix
    down: Matrix


@dataclass(frozen=True)
class LayerWeights:
    attention: AttentionWeights
    feed_forward_norm: torch.Tensor
    feed_forward: DenseWeights | MoeWeights
    intermediate_size: int  # inputs of `down`


@dataclass(frozen=True)
class ModelWeights:
    embedding: RowLookup
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    head: Matrix
    num_bytes: int


def build_weights(
    spec: ModelSpec,
    tensors: Mapping[str, torch.Tensor],
    strips: Strips | None = None,
    *,
    lookup: RowLookup | None = None,
    activations: Activations = "float",
) -> ModelWeights:
    """`tensors` by parameter name, and the `strips` that take the place of some of them, "head" among them
    also where it is the embedding. A tied head without a strip is the embedding. `lookup` takes the place of
    "embed". activations: how rows go into products with strips.
    """
    strips = {} if strips is None else strips
    embedding = Embedding(tensors["embed"]) if lookup is None else lookup
    if spec.tied_embeddings and "head" not in strips:
        head = Embedding(tensors["embed"]).as_head()
    else:
        head = _matrices("head", tensors, strips, activations=activations)[0]
    return ModelWeights(
        embedding=embedding,
        layers=tuple(
            build_layer(i, layer, tensors, strips=strips, activations=activations)
            for i, layer in enumerate(spec.layers)
        ),
        final_norm=tensors["final_norm"],
        head=head,
        num_bytes=sum(tensor.nbytes for tensor in tensors.values())
        + sum(strip.nbytes for each in strips.values() for strip in each)
        + (0 if lookup is None else lookup.num_bytes),
    )


def build_layer(
    index: int,
    layer: LayerSpec,
    tensors: Mapping[str, torch.Tensor],
    *,
    strips: Strips,
    activations: Activations = "float",
) -> LayerWeights:
    """Layer number `index` of what `build_weights` takes."""
    prefix = f"layers.{index}."

    def several(name: str, count: int) -> list[Matrix]:
        return _matrices(prefix + name, tensors, strips, count, activations=activations)

    def fused(name: str) -> Matrix:
        return several(name, 1)[0]

    feed_forward: DenseWeights | MoeWeights
    if isinstance(layer.feed_forward, MoeSpec):
        feed_forward = MoeWeights(
            spec=layer.feed_forward,
            router=fused("router"),
            gate_up=several("experts.gate_up", layer.feed_forward.num_experts),
            down=several("experts.down", layer.feed_forward.num_experts),
        )
    else:
        feed_forward = DenseWeights(gate_up=fused("gate_up"), down=fused("down"))
    attention = AttentionWeights(
        spec=layer.attention,
        norm=tensors[prefix + "attention_norm"],
        qkv=fused("qkv"),
        qk_norm=_qk_norm(prefix, layer.attention, tensors),
        output=fused("output"),
    )
    return LayerWeights(
        attention,
        tensors[prefix + "feed_forward_norm"],
        feed_forward,
        layer.feed_forward.intermediate_size,
    )


def _matrices(
    name: str,
    tensors: Mapping[str, torch.Tensor],
    strips: Strips,
    count: int = 1,
    *,
    activations: Activations,
) -> list[Matrix]:
    """The `count` matrices of one parameter: a stack (E, N, K) has E of them."""
    bias = tensors.get(f"{name}_bias")
    if name in strips:
        held = strips[name]
        if len(held) == count:
            return [StripMatrix(strip, bias, activations) for strip in held]
        size = len(held) // count
        return [
            Joined([StripMatrix(strip, None, activations) for strip in held[first : first + size]], bias)
            for first in range(0, len(held), size)
        ]
    weight = tensors[name]
    return [matrix(each, bias) for each in (weight if weight.ndim == 3 else weight[None])]


def _qk_norm(prefix: str, spec: AttentionSpec, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    if not spec.qk_norm:
        return None
    query = tensors[prefix + "q_norm"].expand(spec.num_heads, -1)
    key = tensors[prefix + "k_norm"].expand(spec.num_kv_heads, -1)
    return torch.cat((query, key))
