"""One layer over some tokens: attention, then feed-forward, both added to the hidden states."""

from __future__ import annotations

import torch

from engine.cpu.attention import CausalMasks
from engine.cpu.model import AttentionWeights, DenseWeights, LayerWeights
from engine.cpu.moe import mixture
from engine.cpu.ops import rms_norm
from engine.cpu.paged_attention import Step
from engine.cpu.rope import RopeTable, rotate_
from engine.cpu.swiglu import swiglu
from engine.kv_geometry import PAGE
from engine.models.spec import RopeSpec


class LayerRunner:
    """Runs layers of one model; keeps the rotary tables and masks that they share."""

    def __init__(self, norm_eps: float, *, expert_rows: int = 1) -> None:
        """expert_rows: of an expert's products in steps of whole pages."""
        self._eps = norm_eps
        self._expert_rows = expert_rows
        self._rope: dict[RopeSpec, RopeTable] = {}
        self._masks: dict[int | None, CausalMasks] = {}

    def run(self, layer: LayerWeights, hidden: torch.Tensor, step: Step, *, index: int) -> None:
        """Changes hidden (T, H) in place. Keys and values go where the step has room for layer `index`."""
        hidden.add_(self._attention(index, layer.attention, hidden, step))
        x = rms_norm(hidden, layer.feed_forward_norm, self._eps)
        feed_forward = layer.feed_forward
        if isinstance(feed_forward, DenseWeights):
            hidden.add_(feed_forward.down(swiglu(feed_forward.gate_up(x))))
        else:
            hidden.add_(mixture(feed_forward, x, step.valid, rows_alike=self._expert_rows))

    def _attention(
        self, index: int, weights: AttentionWeights, hidden: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """hidden (T, H) -> what attention adds to it (T, H)."""
        spec = weights.spec
        fused = weights.qkv(rms_norm(hidden, weights.norm, self._eps))  # (T, q_dim + 2 kv_dim)
        heads = fused.view(hidden.shape[0], -1, spec.head_dim)  # (T, A + 2G, D)
        table = self._rope_table(spec.rope)
        # Page by page, so that steps of any number of pages do the same: how torch cuts a tensor among its
        # threads, and with it the last bit of some sums, depends on the tensor's size.
        for number, rows in enumerate(torch.split(heads, PAGE)):
            first = step.position + number * PAGE
            rotated = rows[:, : spec.num_heads + spec.num_kv_heads]  # queries and keys, (T, A + G, D)
            if weights.qk_norm is not None:
                rotated.copy_(rms_norm(rotated, weights.qk_norm, self._eps))
            rotate_(rotated, *table.rows(first, len(rows)))
        return weights.output(step.attend(index, spec, heads, self._causal_masks(spec.window)))

    def _rope_table(self, rope: RopeSpec) -> RopeTable:
        if rope not in self._rope:
            self._rope[rope] = RopeTable(rope)
        return self._rope[rope]

    def _causal_masks(self, window: int | None) -> CausalMasks:
        if window not in self._masks:
            self._masks[window] = CausalMasks(window)
        return self._masks[window]
