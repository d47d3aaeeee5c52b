"""Loaded tensors as the layers that the backend walks through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from engine.cpu.matrices import Embedding, Matrix, matrix
from engine.cpu.moe import MoeWeights
from engine.models.spec import AttentionSpec, LayerSpec, ModelSpec, MoeSpec


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


@dataclass(frozen=True)
class ModelWeights:
    embedding: Embedding
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    head: Matrix
    num_bytes: int


def build_weights(spec: ModelSpec, tensors: Mapping[str, torch.Tensor]) -> ModelWeights:
    """`tensors` by parameter name, as `engine.cpu.weights` loads them. A tied head is the embedding."""
    embedding = Embedding(tensors["embed"])
    return ModelWeights(
        embedding=embedding,
        layers=tuple(_layer(f"layers.{i}.", layer, tensors) for i, layer in enumerate(spec.layers)),
        final_norm=tensors["final_norm"],
        head=embedding.as_head() if spec.tied_embeddings else matrix(tensors["head"]),
        num_bytes=sum(tensor.nbytes for tensor in tensors.values()),
    )


def _layer(prefix: str, layer: LayerSpec, tensors: Mapping[str, torch.Tensor]) -> LayerWeights:
    def fused(name: str) -> Matrix:
        return matrix(tensors[prefix + name], tensors.get(f"{prefix}{name}_bias"))

    feed_forward: DenseWeights | MoeWeights
    if isinstance(layer.feed_forward, MoeSpec):
        feed_forward = MoeWeights(
            spec=layer.feed_forward,
            router=fused("router"),
            gate_up=[matrix(expert) for expert in tensors[prefix + "experts.gate_up"]],
            down=[matrix(expert) for expert in tensors[prefix + "experts.down"]],
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
    return LayerWeights(attention, tensors[prefix + "feed_forward_norm"], feed_forward)


def _qk_norm(prefix: str, spec: AttentionSpec, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    if not spec.qk_norm:
        return None
    query = tensors[prefix + "q_norm"].expand(spec.num_heads, -1)
    key = tensors[prefix + "k_norm"].expand(spec.num_kv_heads, -1)
    return torch.cat((query, key))
