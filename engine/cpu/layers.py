"""One layer over some tokens: attention, then feed-forward, both added to the hidden states."""

from __future__ import annotations

import torch

from engine.cpu.attention import CausalMasks, attend_block, attend_one
from engine.cpu.kv_cache import KvCache
from engine.cpu.model import AttentionWeights, DenseWeights, LayerWeights
from engine.cpu.moe import mixture
from engine.cpu.ops import rms_norm, swiglu
from engine.cpu.rope import RopeTable, rotate_
from engine.models.spec import RopeSpec


class LayerRunner:
    """Runs layers of one model; keeps the rotary tables and masks that they share."""

    def __init__(self, norm_eps: float) -> None:
        self._eps = norm_eps
        self._rope: dict[RopeSpec, RopeTable] = {}
        self._masks: dict[int | None, CausalMasks] = {}

    def run(self, layer: LayerWeights, hidden: torch.Tensor, *, cache: KvCache, index: int) -> None:
        """Changes hidden (T, H) in place. Keys and values go behind those of layer `index` of the cache,
        which has room for them; they count once the caller commits.
        """
        hidden.add_(self._attention(index, layer.attention, hidden, cache))
        x = rms_norm(hidden, layer.feed_forward_norm, self._eps)
        feed_forward = layer.feed_forward
        if isinstance(feed_forward, DenseWeights):
            hidden.add_(feed_forward.down(swiglu(feed_forward.gate_up(x))))
        else:
            hidden.add_(mixture(feed_forward, x))

    def _attention(
        self, index: int, weights: AttentionWeights, hidden: torch.Tensor, cache: KvCache
    ) -> torch.Tensor:
        """hidden (T, H) -> what attention adds to it (T, H); keys and values are written to the cache."""
        spec = weights.spec
        num_tokens, start = hidden.shape[0], cache.length
        fused = weights.qkv(rms_norm(hidden, weights.norm, self._eps))  # (T, q_dim + 2 kv_dim)
        heads = fused.view(num_tokens, -1, spec.head_dim)  # (T, A + 2G, D)
        rotated = heads[:, : spec.num_heads + spec.num_kv_heads]  # queries and keys, (T, A + G, D)
        if weights.qk_norm is not None:
            rotated.copy_(rms_norm(rotated, weights.qk_norm, self._eps))
        rotate_(rotated, *self._rope_table(spec.rope).rows(start, num_tokens))
        cache.write(index, heads[:, spec.num_heads :].view(num_tokens, 2, -1, spec.head_dim))
        keys, values = cache.rows(index, num_tokens)
        q = fused[:, : spec.q_dim]
        if num_tokens == 1:
            return weights.output(attend_one(spec, q, keys, values))
        return weights.output(attend_block(spec, q, keys, values, start, self._causal_masks(spec.window)))

    def _rope_table(self, rope: RopeSpec) -> RopeTable:
        if rope not in self._rope:
            self._rope[rope] = RopeTable(rope)
        return self._rope[rope]

    def _causal_masks(self, window: int | None) -> CausalMasks:
        if window not in self._masks:
            self._masks[window] = CausalMasks(window)
        return self._masks[window]
