"""The reference backend, which every other is measured against: torch on the CPU in float32."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from collections.abc import Sequence as Several
from weakref import WeakSet

import torch

from engine.backend import Cache, PagePool, Sequence
from engine.config import Activations, WeightFormat
from engine.cpu.kv_kernels import kv_kernels
from engine.cpu.layers import LayerRunner
from engine.cpu.memory import failed_allocations_told
from engine.cpu.model import ModelWeights, build_weights
from engine.cpu.moe import MoeWeights
from engine.cpu.ops import rms_norm
from engine.cpu.page_pool import CpuPagePool
from engine.cpu.paged_attention import DecodeStep, PrefillStep, Step
from engine.cpu.row_trial import RowShapes, try_rows
from engine.cpu.strip_weights import load_strips
from engine.cpu.weights import load_parameters
from engine.errors import Cancelled
from engine.generation import SamplingParams
from engine.kv_geometry import PAGE, KvFormat, KvGeometry, pages_for
from engine.metrics import MemoryUse, Work
from engine.models.spec import ModelSpec, Parameter
from engine.notices import Notice
from engine.paged_cache import PagedCache
from engine.progress import ProgressCallback, no_progress
from engine.weights.packing import has_native_strips
from engine.weights.sizes import MatrixCounts, weights_in_words
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
        notices: Several[Notice] = (),
        counts: MatrixCounts | None = None,
    ) -> None:
        """counts: in which form matrices are held; None where all are as they were stored."""
        self.spec = spec
        self.notices = tuple(notices)
        self.counts = counts
        self.description = f"CPU, {torch.get_num_threads()} threads, {weights_in_words(counts) or 'float32'}"
        self.weight_bytes = weights.num_bytes
        self.weights = weights
        self._pools: WeakSet[CpuPagePool] = WeakSet()  # for as long as somebody has them
        mixes = any(isinstance(layer.feed_forward, MoeWeights) for layer in weights.layers)
        self._runner = LayerRunner(spec.norm_eps, expert_rows=self._rows.expert if mixes else 1)

    @classmethod
    def load(
        cls,
        spec: ModelSpec,
        parameters: Several[Parameter],
        source: TensorSource,
        *,
        weights: WeightFormat = "native",
        group: Group = 32,
        activations: Activations = "float",
        calibration_ids: Several[int] = (),
        shelf: StripShelf | None = None,
        on_progress: ProgressCallback = no_progress,
        cancel: threading.Event | None = None,
    ) -> CpuBackend:
        """Reads all weights. Raises OutOfMemoryError, ModelFileError, Cancelled; nothing is kept then.

        group: inputs that share a scale in strips. activations: how rows go into products with
        strips. calibration_ids: a text by which 4-bit codes are chosen.
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
                    activations=activations,
                    calibration_ids=calibration_ids,
                    shelf=shelf,
                    on_progress=on_progress,
                    cancel=cancel,
                )
                return cls(spec, strips.weights, notices=strips.notices, counts=strips.counts)
            with torch.inference_mode():
                loaded = load_parameters(parameters, source, on_progress=on_progress, cancel=cancel)
                return cls(spec, build_weights(spec, loaded.tensors), notices=loaded.notices)

    def new_pool(self, geometry: KvGeometry, capacity: int) -> CpuPagePool:
        assert geometry == KvGeometry.of(self.spec, geometry.format)
        kv_kernels(geometry.format)  # nothing is compiled while somebody waits for a token
        pool = CpuPagePool(geometry, capacity)
        self._pools.add(pool)
        return pool

    def prefill(
        self,
        ids: Several[int],
        sequence: Sequence,
        pool: PagePool,
        *,
        all_logits: bool = False,
        cancel: threading.Event | None = None,
    ) -> torch.Tensor:
        assert isinstance(pool, CpuPagePool)
        assert ids, "there is nothing to run"
        assert len(sequence.pages) >= pages_for(sequence.length + len(ids)), "pages are missing"
        with torch.inference_mode(), failed_allocations_told():
            logits = self._prefill(torch.tensor(ids, dtype=torch.int64), sequence, pool, all_logits, cancel)
        return logits.clone()  # an ordinary tensor again, which the caller may change in place

    def decode(
        self, token: int, sequence: Sequence, pool: PagePool, *, cancel: threading.Event | None = None
    ) -> torch.Tensor:
        assert isinstance(pool, CpuPagePool)
        assert len(sequence.pages) >= pages_for(sequence.length + 1), "pages are missing"
        with torch.inference_mode(), failed_allocations_told():
            hidden = self.weights.embedding.rows(torch.tensor([token], dtype=torch.int64))
            self._run_layers(hidden, DecodeStep(pool, sequence), cancel)
            sequence.length += 1
            logits = self._logits(hidden)[0]
        return logits.clone()

    def start_drawing(self, params: SamplingParams, *, seed: int | None, history: Several[int]) -> None:
        """Logits are in the computer's memory already."""

    def new_cache(self, kv_format: KvFormat = "native") -> PagedCache:
        geometry = KvGeometry.of(self.spec, kv_format)
        return PagedCache(self.new_pool(geometry, pages_for(self.spec.context_length)))

    def forward(
        self,
        ids: Several[int],
        cache: Cache,
        *,
        all_logits: bool = False,
        cancel: threading.Event | None = None,
    ) -> torch.Tensor:
        assert isinstance(cache, PagedCache)
        cache.reserve(cache.length + len(ids))
        if len(ids) > 1:
            return self.prefill(ids, cache.sequence, cache.pool, all_logits=all_logits, cancel=cancel)
        logits = self.decode(ids[0], cache.sequence, cache.pool, cancel=cancel)
        return logits[None] if all_logits else logits

    @property
    def work(self) -> Work:
        return Work()

    def memory_use(self) -> MemoryUse:
        pools = list(self._pools)
        return MemoryUse(
            weight_bytes=self.weight_bytes,
            cache_bytes=sum(pool.num_pages * pool.geometry.page_bytes for pool in pools),
            cache_pages=sum(pool.num_pages for pool in pools),
        )

    def close(self) -> None:
        """The weights go with the last who knows the backend."""

    @functools.cached_property
    def _rows(self) -> RowShapes:
        """Tried when they are first needed: that takes a good part of a second of a large model."""
        return try_rows(self.weights.layers, PREFILL_BLOCK)

    def _prefill(
        self,
        tokens: torch.Tensor,
        sequence: Sequence,
        pool: CpuPagePool,
        all_logits: bool,
        cancel: threading.Event | None,
    ) -> torch.Tensor:
        logits: list[torch.Tensor] = []
        last = torch.empty(0)
        while tokens.numel():
            filled = sequence.length % PAGE
            most = PAGE if filled + len(tokens) <= PAGE else self._rows.block
            block, tokens = tokens.tensor_split([most - filled])
            step = PrefillStep(pool, sequence, len(block))
            hidden = torch.zeros(step.num_rows, self.spec.hidden_size)
            hidden[step.valid] = self.weights.embedding.rows(block)
            self._run_layers(hidden, step, cancel)
            sequence.length += len(block)
            if all_logits:
                logits.append(self._logits(hidden)[step.valid])
            last = hidden[step.valid][-1:]
        return torch.cat(logits) if all_logits else self._logits(last)[0]

    def _run_layers(self, hidden: torch.Tensor, step: Step, cancel: threading.Event | None) -> None:
        """Takes hidden (T, H) from the embeddings to behind the last layer, in place."""
        for index, layer in enumerate(self.weights.layers):
            if cancel is not None and cancel.is_set():
                raise Cancelled
            self._runner.run(layer, hidden, step, index=index)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(T, H) -> (T, V)"""
        return self.weights.head(rms_norm(hidden, self.weights.final_norm, self.spec.norm_eps))
