"""A model on the card. See `engine.backend.Backend`.

It is made of a model that the CPU has already, and keeps it: the strips are mapped from the disk's cache, and
whatever can't go on on the card goes on there.
"""

from __future__ import annotations

import collections.abc
import threading
from contextlib import suppress
from weakref import WeakSet

import torch

from engine.backend import Cache, PagePool, Sequence
from engine.cpu.backend import CpuBackend
from engine.cpu.moe import MoeWeights
from engine.cuda.cache import CudaCache
from engine.cuda.chunks import ChunkStore
from engine.cuda.counted_driver import CountedDriver
from engine.cuda.decode_graphs import DecodeGraphs
from engine.cuda.driver import NOWHERE, CardDriver, CardFaultError, KernelCompiler, as_bytes
from engine.cuda.kernel_set import KernelSet
from engine.cuda.layers import (
    PLANES,
    Activations,
    DeviceDense,
    DeviceExperts,
    DeviceLayer,
    LayerRunner,
    StepShape,
    splits_for,
)
from engine.cuda.matrices import Uploader
from engine.cuda.memory import CardMemory, Use
from engine.cuda.page_pool import CudaPagePool
from engine.cuda.rope_tables import RopeTables
from engine.cuda.step import StepBuffer
from engine.cuda.workspace import LOGIT_ROWS, Workspace
from engine.errors import Cancelled, UnsupportedModelError
from engine.kv_geometry import KvFormat, KvGeometry, pages_for
from engine.metrics import CardSpace, MemoryUse, Work
from engine.models.spec import ModelSpec, MoeSpec
from engine.notices import Notice
from engine.progress import LoadProgress, LoadStage, ProgressCallback, no_progress
from engine.weights.sizes import weights_in_words

PREFILL_ROWS = 256  # of a step at most
_WIDEST_HEAD, _HEAD_UNIT = 512, 4  # see kernels/attention.cu
_MOST_EXPERTS, _MOST_CHOSEN = 1024, 64  # see kernels/experts.cu


def check_supported(spec: ModelSpec) -> None:
    """Raises UnsupportedModelError for what no kernel does."""
    for layer in spec.layers:
        width = layer.attention.head_dim
        if width > _WIDEST_HEAD or width % _HEAD_UNIT:
            raise UnsupportedModelError(
                f"Attention heads of {width} features can't be run on the card.", "The model runs on the CPU."
            )
        experts = layer.feed_forward
        if isinstance(experts, MoeSpec) and (
            experts.num_experts > _MOST_EXPERTS or experts.top_k > _MOST_CHOSEN
        ):
            raise UnsupportedModelError(
                f"{experts.num_experts:,} experts, {experts.top_k} at a time, can't be run on the card.",
                "The model runs on the CPU.",
            )


class CudaBackend:
    """Belongs to the thread of its driver, as do its pools and caches."""

    device = "cuda"

    def __init__(
        self,
        cpu: CpuBackend,
        driver: CardDriver,
        compiler: KernelCompiler,
        *,
        activations: Activations = "int8x2",
        context: int | None = None,
        vram_budget: int | None = None,
        on_progress: ProgressCallback = no_progress,
        cancel: threading.Event | None = None,
    ) -> None:
        """Everything that a token needs: kernels compiled, weights uploaded, memory taken. From then on the
        driver is the backend's. Raises UnsupportedModelError, OutOfMemoryError, CardFaultError, Cancelled;
        nothing is held then, and the driver is still the caller's.
        """
        check_supported(cpu.spec)
        self.cpu = cpu
        self._driver = driver = CountedDriver(driver)
        self._context = cpu.spec.context_length if context is None else context
        self._activations = activations
        self.memory = CardMemory(driver, vram_budget)
        self._chunks = ChunkStore(self.memory)
        self._graphs = DecodeGraphs(driver)
        self._prepared: set[KvFormat] = set()  # of pages
        self._pools: WeakSet[CudaPagePool] = WeakSet()  # for as long as somebody has them
        try:
            self.kernels = KernelSet(driver, compiler)
            self._upload(on_progress, cancel)
            self._prepare()
            driver.synchronize()
        except BaseException:
            self.memory.free_all()
            raise

    @property
    def spec(self) -> ModelSpec:
        return self.cpu.spec

    @property
    def description(self) -> str:
        return f"{self._driver.info.name}, {weights_in_words(self.cpu.counts) or 'weights as stored'}"

    @property
    def weight_bytes(self) -> int:
        return self._weight_bytes

    @property
    def work(self) -> Work:
        driver = self._driver
        launches = self.kernels.num_launches + driver.num_replays
        return Work(launches, driver.num_uploads, driver.num_downloads)

    def memory_use(self) -> MemoryUse:
        held, info = self.memory.num_bytes, self._driver.info
        return MemoryUse(
            weight_bytes=held.get(Use.WEIGHTS, 0),
            cache_bytes=held.get(Use.CACHE, 0),
            cache_pages=sum(pool.num_pages for pool in list(self._pools)),
            workspace_bytes=held.get(Use.WORKSPACE, 0),
            card=CardSpace(info.name, info.total_bytes, self.memory.free_bytes()),
        )

    def new_pool(self, geometry: KvGeometry, capacity: int) -> CudaPagePool:
        assert geometry == KvGeometry.of(self.spec, geometry.format)
        pool = CudaPagePool(geometry, capacity, self._driver, self._chunks)
        self._pools.add(pool)
        self._prepare_tokens(pool)
        return pool

    def prefill(
        self,
        ids: collections.abc.Sequence[int],
        sequence: Sequence,
        pool: PagePool,
        *,
        all_logits: bool = False,
        cancel: threading.Event | None = None,
    ) -> torch.Tensor:
        assert isinstance(pool, CudaPagePool)
        assert ids, "there is nothing to run"
        assert len(sequence.pages) >= pages_for(sequence.length + len(ids)), "pages are missing"
        logits: list[torch.Tensor] = []
        for start in range(0, len(ids), PREFILL_ROWS):
            block = ids[start : start + PREFILL_ROWS]
            self._run_layers(block, sequence, pool, cancel)
            is_last = start + len(block) == len(ids)
            computed = len(block) == 1  # with its step
            if all_logits:
                logits.append(self._logits(0, len(block), computed=computed))
            elif is_last:
                logits.append(self._logits(len(block) - 1, 1, computed=computed))
            sequence.length += len(block)
        return torch.cat(logits) if all_logits else logits[0][0]

    def decode(
        self,
        token: int,
        sequence: Sequence,
        pool: PagePool,
        *,
        cancel: threading.Event | None = None,
    ) -> torch.Tensor:
        return self.prefill([token], sequence, pool, cancel=cancel)

    def new_cache(self, kv_format: KvFormat = "native") -> CudaCache:
        geometry = KvGeometry.of(self.spec, kv_format)
        return CudaCache(self.new_pool(geometry, pages_for(self._context)))

    def forward(
        self,
        ids: collections.abc.Sequence[int],
        cache: Cache,
        *,
        all_logits: bool = False,
        cancel: threading.Event | None = None,
    ) -> torch.Tensor:
        assert isinstance(cache, CudaCache)
        cache.reserve(cache.length + len(ids))
        return self.prefill(ids, cache.sequence, cache.pool, all_logits=all_logits, cancel=cancel)

    def close(self) -> None:
        with suppress(CardFaultError):  # a card that has failed gives nothing back by itself: its driver does
            self.memory.free_all()
        self._driver.close()

    def _upload(self, on_progress: ProgressCallback, cancel: threading.Event | None) -> None:
        weights = self.cpu.weights
        uploader = Uploader(self.memory)

        def advance() -> None:
            if cancel is not None and cancel.is_set():
                raise Cancelled
            on_progress(
                LoadProgress(LoadStage.UPLOAD, uploader.num_bytes, max(weights.num_bytes, uploader.num_bytes))
            )

        self._layers: list[DeviceLayer] = []
        for layer in weights.layers:
            attention, feed_forward = layer.attention, layer.feed_forward
            device: DeviceDense | DeviceExperts
            if isinstance(feed_forward, MoeWeights):
                device = DeviceExperts(
                    feed_forward.spec,
                    uploader.linear([feed_forward.router]),
                    uploader.linear(feed_forward.gate_up),
                    uploader.linear(feed_forward.down),
                )
            else:
                device = DeviceDense(
                    uploader.linear([feed_forward.gate_up]), uploader.linear([feed_forward.down])
                )
            qk_norm = attention.qk_norm
            self._layers.append(
                DeviceLayer(
                    attention=attention.spec,
                    attention_norm=uploader.tensor(attention.norm.float()),
                    qkv=uploader.linear([attention.qkv]),
                    qk_norm=NOWHERE if qk_norm is None else uploader.tensor(qk_norm.float()),
                    output=uploader.linear([attention.output]),
                    feed_forward_norm=uploader.tensor(layer.feed_forward_norm.float()),
                    feed_forward=device,
                    intermediate_size=layer.intermediate_size,
                )
            )
            advance()
        self._final_norm = uploader.tensor(weights.final_norm.float())
        self._head = uploader.linear([weights.head])
        self._weight_bytes = uploader.num_bytes
        on_progress(LoadProgress(LoadStage.UPLOAD, uploader.num_bytes, uploader.num_bytes))

    def _prepare(self) -> None:
        spec = self.spec
        rows = min(PREFILL_ROWS, self._context)
        self._step = StepBuffer(self.memory, rows=rows, width=spec.hidden_size, context=self._context)
        self._space = Workspace(
            self.memory, spec, rows=rows, context=self._context, planes=PLANES[self._activations]
        )
        self._tables = RopeTables(
            self.memory, {layer.attention.rope for layer in spec.layers}, context=self._context
        )
        self._runner = LayerRunner(
            self.kernels,
            self._space,
            self._step,
            self._tables,
            activations=self._activations,
            norm_eps=spec.norm_eps,
        )

    def _run_layers(
        self,
        ids: collections.abc.Sequence[int],
        sequence: Sequence,
        pool: CudaPagePool,
        cancel: threading.Event | None,
    ) -> None:
        end = sequence.length + len(ids)
        if self._tables.reserve(end):
            self._graphs.forget()
        with torch.inference_mode():
            hidden = self.cpu.weights.embedding.rows(torch.tensor(ids, dtype=torch.int64))
        self._step.send(hidden, sequence.length, pool.addresses(sequence.pages[: pages_for(end)]))
        splits = splits_for(end)
        if len(ids) == 1:
            _stop_if(cancel)
            self._graphs.run(
                pool.geometry.format, splits, lambda room: self._launch_token(pool.geometry, room)
            )
            return
        for index, layer in enumerate(self._layers):
            _stop_if(cancel)
            self._runner.run(layer, index, pool.geometry, StepShape(len(ids), splits))

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What a person should know of how it runs."""
        return self._graphs.notices

    def _prepare_tokens(self, pool: CudaPagePool) -> None:
        """Nothing is recorded while somebody waits for a token; and what was recorded gives the bits that it
        should.
        """
        form = pool.geometry.format
        if form in self._prepared:
            return
        self._prepared.add(form)
        self._graphs.prepare(
            form, splits_for(self._context), lambda room: self._launch_token(pool.geometry, room)
        )
        page = pool.allocate() if self._graphs.in_use else None
        if page is None:
            return  # where no page fits, no token is going to be computed either
        hidden, found = torch.ones(1, self.spec.hidden_size), []
        for start in (self._launch_token, lambda geometry, room: self._graphs.run(form, room, _never)):
            self._step.send(hidden, 0, [pool.address(page)])
            self._driver.fill(self._space.logits, 0xFF, 4 * self.spec.vocab_size)
            start(pool.geometry, 1)
            found.append(self._logits(0, 1, computed=True))
        pool.free(page)
        if not torch.equal(*(each.view(torch.int32) for each in found)):
            self._graphs.refuse("what the driver recorded computes something else.")

    def _launch_token(self, geometry: KvGeometry, splits: int) -> None:
        """One token's whole step, from its embedding to its logits."""
        shape = StepShape(1, splits)
        for index, layer in enumerate(self._layers):
            self._runner.run(layer, index, geometry, shape)
        self._runner.logits(self._final_norm, self._head, first_row=0, rows=1)

    def _logits(self, first_row: int, rows: int, *, computed: bool = False) -> torch.Tensor:
        """float32 (rows, V). computed: they are in the workspace already."""
        found = torch.empty(rows, self.spec.vocab_size)
        for start in range(0, rows, LOGIT_ROWS):
            count = min(LOGIT_ROWS, rows - start)
            if not computed:
                self._runner.logits(self._final_norm, self._head, first_row=first_row + start, rows=count)
            self._driver.download(as_bytes(found[start : start + count]), self._space.logits)
        return found


def _never(_: int) -> None:
    raise AssertionError("it was recorded")


def _stop_if(cancel: threading.Event | None) -> None:
    if cancel is not None and cancel.is_set():
        raise Cancelled
