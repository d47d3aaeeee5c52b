"""The reference backend, which every other is measured against: torch on the CPU in float32."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from engine.backend import Cache
from engine.cpu.attention import PAGE, CausalMasks, attend_block, attend_one
from engine.cpu.kv_cache import KvCache
from engine.cpu.model import AttentionWeights, DenseWeights, ModelWeights, build_weights
from engine.cpu.moe import mixture
from engine.cpu.ops import rms_norm, swiglu
from engine.cpu.rope import RopeTable, rotate_
from engine.cpu.weights import load_parameters
from engine.errors import Cancelled
from engine.models.spec import ModelSpec, Parameter, RopeSpec
from engine.notices import Notice
from engine.progress import ProgressCallback, no_progress
from engine.weights.source import TensorSource

PREFILL_BLOCK = 8 * PAGE
"""Tokens of a prompt that run at once: enough that products are limited by arithmetic and not by reading
weights. One layer of a block takes about as long as one decoded token, which is how soon a cancel is seen.
"""


class CpuBackend:
    """One loaded model. Use it from one thread at a time."""

    device = "cpu"

    def __init__(self, spec: ModelSpec, weights: ModelWeights, *, notices: Sequence[Notice] = ()) -> None:
        self.spec = spec
        self.notices = tuple(notices)
        self.description = f"CPU, {torch.get_num_threads()} threads, float32"
        self.weight_bytes = weights.num_bytes
        self._weights = weights
        self._rope: dict[RopeSpec, RopeTable] = {}
        self._masks: dict[int | None, CausalMasks] = {}

    @classmethod
    def load(
        cls,
        spec: ModelSpec,
        parameters: Sequence[Parameter],
        source: TensorSource,
        *,
        on_progress: ProgressCallback = no_progress,
        cancel: threading.Event | None = None,
    ) -> CpuBackend:
        """Reads all weights. Raises OutOfMemoryError, ModelFileError, Cancelled; nothing is kept then."""
        with torch.inference_mode():
            loaded = load_parameters(parameters, source, on_progress=on_progress, cancel=cancel)
            return cls(spec, build_weights(spec, loaded.tensors), notices=loaded.notices)

    def new_cache(self) -> KvCache:
        layers = [layer.attention for layer in self.spec.layers]
        return KvCache(layers, max_length=self.spec.context_length)

    def forward(
        self,
        ids: Sequence[int],
        cache: Cache,
        *,
        all_logits: bool = False,
        cancel: threading.Event | None = None,
    ) -> torch.Tensor:
        assert isinstance(cache, KvCache)
        assert ids, "there is nothing to run"
        with torch.inference_mode():
            logits = self._forward(torch.tensor(ids, dtype=torch.int64), cache, all_logits, cancel)
        return logits.clone()  # an ordinary tensor again, which the caller may change in place

    def _forward(
        self, tokens: torch.Tensor, cache: KvCache, all_logits: bool, cancel: threading.Event | None
    ) -> torch.Tensor:
        cache.reserve(cache.length + tokens.numel())
        logits: list[torch.Tensor] = []
        hidden = torch.empty(0)
        while tokens.numel():
            # Blocks end at page borders, so that pages are never cut differently by where a prompt began.
            size = PREFILL_BLOCK - cache.length % PAGE
            block, tokens = tokens[:size], tokens[size:]
            hidden = self._run_block(block, cache, cancel)
            if all_logits:
                logits.append(self._logits(hidden))
        return torch.cat(logits) if all_logits else self._logits(hidden[-1:])[0]

    def _run_block(
        self, tokens: torch.Tensor, cache: KvCache, cancel: threading.Event | None
    ) -> torch.Tensor:
        """tokens (T,) -> hidden states (T, H) behind the last layer; the cache is longer by T afterwards."""
        hidden = self._weights.embedding.rows(tokens)
        eps = self.spec.norm_eps
        for index, layer in enumerate(self._weights.layers):
            if cancel is not None and cancel.is_set():
                raise Cancelled
            hidden.add_(self._attention(index, layer.attention, hidden, cache))
            x = rms_norm(hidden, layer.feed_forward_norm, eps)
            feed_forward = layer.feed_forward
            if isinstance(feed_forward, DenseWeights):
                hidden.add_(feed_forward.down(swiglu(feed_forward.gate_up(x))))
            else:
                hidden.add_(mixture(feed_forward, x))
        cache.commit(tokens.shape[0])
        return hidden

    def _attention(
        self, index: int, weights: AttentionWeights, hidden: torch.Tensor, cache: KvCache
    ) -> torch.Tensor:
        """hidden (T, H) -> what attention adds to it (T, H); keys and values are written to the cache."""
        spec, eps = weights.spec, self.spec.norm_eps
        num_tokens, start = hidden.shape[0], cache.length
        fused = weights.qkv(rms_norm(hidden, weights.norm, eps))  # (T, q_dim + 2 kv_dim)
        heads = fused.view(num_tokens, -1, spec.head_dim)  # (T, A + 2G, D)
        rotated = heads[:, : spec.num_heads + spec.num_kv_heads]  # queries and keys, (T, A + G, D)
        if weights.qk_norm is not None:
            rotated.copy_(rms_norm(rotated, weights.qk_norm, eps))
        rotate_(rotated, *self._rope_table(spec.rope).rows(start, num_tokens))
        cache.write(index, heads[:, spec.num_heads :].view(num_tokens, 2, -1, spec.head_dim))
        keys, values = cache.rows(index, num_tokens)
        q = fused[:, : spec.q_dim]
        if num_tokens == 1:
            return weights.output(attend_one(spec, q, keys, values))
        return weights.output(attend_block(spec, q, keys, values, start, self._causal_masks(spec.window)))

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(T, H) -> (T, V)"""
        return self._weights.head(rms_norm(hidden, self._weights.final_norm, self.spec.norm_eps))

    def _rope_table(self, rope: RopeSpec) -> RopeTable:
        if rope not in self._rope:
            self._rope[rope] = RopeTable(rope)
        return self._rope[rope]

    def _causal_masks(self, window: int | None) -> CausalMasks:
        if window not in self._masks:
            self._masks[window] = CausalMasks(window)
        return self._masks[window]
