"""The reference backend, which every other is measured against: torch on the CPU in float32."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import torch

from engine.backend import Cache
from engine.config import WeightFormat
from engine.cpu.attention import PAGE
from engine.cpu.kv_cache import KvCache
from engine.cpu.layers import LayerRunner
from engine.cpu.memory import failed_allocations_told
from engine.cpu.model import ModelWeights, build_weights
from engine.cpu.ops import rms_norm
from engine.cpu.strip_weights import load_strips
from engine.cpu.weights import load_parameters
from engine.errors import Cancelled
from engine.models.spec import ModelSpec, Parameter
from engine.notices import Notice
from engine.progress import ProgressCallback, no_progress
from engine.weights.packing import has_native_strips
from engine.weights.sizes import MatrixCounts
from engine.weights.source import TensorSource
from engine.weights.strip_shelf import StripShelf
from engine.weights.strips import Bits, Group

_STRIP_BITS: Mapping[WeightFormat, Bits | None] = {"native": None, "q8": 8, "q4": 4}

PREFILL_BLOCK = 8 * PAGE
"""Tokens of a prompt that run at once: enough that products are limited by arithmetic and not by reading
weights. One layer of a block takes about as long as one decoded token, which is how soon a cancel is seen.
"""


class CpuBackend:
    """One loaded model. Use it from one thread at a time."""

    device = "cpu"

    def __init__(
        self,
        spec: ModelSpec,
        weights: ModelWeights,
        *,
        notices: Sequence[Notice] = (),
        counts: MatrixCounts | None = None,
    ) -> None:
        """counts: in which form matrices are held; None where all are as they were stored."""
        self.spec = spec
        self.notices = tuple(notices)
        self.counts = counts
        self.description = f"CPU, {torch.get_num_threads()} threads, {_described(counts)}"
        self.weight_bytes = weights.num_bytes
        self._weights = weights
        self._runner = LayerRunner(spec.norm_eps)

    @classmethod
    def load(
        cls,
        spec: ModelSpec,
        parameters: Sequence[Parameter],
        source: TensorSource,
        *,
        weights: WeightFormat = "native",
        group: Group = 32,
        calibration_ids: Sequence[int] = (),
        shelf: StripShelf | None = None,
        on_progress: ProgressCallback = no_progress,
        cancel: threading.Event | None = None,
    ) -> CpuBackend:
        """Reads all weights. Raises OutOfMemoryError, ModelFileError, Cancelled; nothing is kept then.

        group: inputs that share a scale in strips. calibration_ids: a text by which 4-bit codes are chosen.
        shelf: where strips are kept from one load to the next. See `engine.cpu.strip_weights`. Whether strips
        fit into memory is for the caller to check.
        """
        with failed_allocations_told():
            if weights != "native" or has_native_strips(parameters, source.tensors()):
                strips = load_strips(
                    spec,
                    parameters,
                    source,
                    bits=_STRIP_BITS[weights],
                    group=group,
                    calibration_ids=calibration_ids,
                    shelf=shelf,
                    on_progress=on_progress,
                    cancel=cancel,
                )
                return cls(spec, strips.weights, notices=strips.notices, counts=strips.counts)
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
        with torch.inference_mode(), failed_allocations_told():
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
        for index, layer in enumerate(self._weights.layers):
            if cancel is not None and cancel.is_set():
                raise Cancelled
            self._runner.run(layer, hidden, cache=cache, index=index)
        cache.commit(tokens.shape[0])
        return hidden

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(T, H) -> (T, V)"""
        return self._weights.head(rms_norm(hidden, self._weights.final_norm, self.spec.norm_eps))


def _described(counts: MatrixCounts | None) -> str:
    """What the weights are, in the words of the model's line in the window."""
    if counts is None or not (counts.q4 or counts.q8):
        return "float32"
    if counts.q4 and counts.q8:
        return "4-bit and 8-bit weights"
    return "4-bit weights" if counts.q4 else "8-bit weights"
