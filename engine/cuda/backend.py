"""A model on the card. See `engine.backend.Backend`.

It is made of a model that the CPU has already, and keeps it: the strips are mapped from the disk's cache, and
whatever can't go on on the card goes on there.
"""

from __future__ import annotations

import collections.abc
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet

import torch

from engine.backend import Cache, PagePool, Sequence
from engine.config import Activations
from engine.cpu.model import ModelWeights
from engine.cuda.card_drawing import CardDrawing
from engine.cuda.chunks import ChunkStore
from engine.cuda.counted_driver import CountedDriver
from engine.cuda.drawing import DrawKernels, DrawSlot, DrawSlots
from engine.cuda.driver import CardDriver, CardFaultError, KernelCompiler
from engine.cuda.kernel_set import KernelSet
from engine.cuda.layers import LayerRunner
from engine.cuda.memory import CardMemory, Use
from engine.cuda.page_pool import CudaPagePool
from engine.cuda.placement import Rest
from engine.cuda.rope_tables import RopeTables
from engine.cuda.row_forms import PLANES
from engine.cuda.step import StepBuffer
from engine.cuda.step_plans import StepPlans
from engine.cuda.support import check_supported
from engine.cuda.uploader import Uploader
from engine.cuda.weights import CardWeights, upload_weights
from engine.cuda.workspace import Workspace, most_step_rows
from engine.generation import SamplingParams
from engine.kv_geometry import KvFormat, KvGeometry, pages_for
from engine.metrics import CardSpace, MemoryUse, Work
from engine.models.spec import ModelSpec
from engine.notices import Notice
from engine.paged_cache import PagedCache
from engine.progress import ProgressCallback, no_progress
from engine.weights.sizes import MatrixCounts, card_in_words


class HostModel(Protocol):
    """What a model on the card is made of: a `CpuBackend`, or mere shapes (`random_weights.py`)."""

    @property
    def spec(self) -> ModelSpec: ...
    @property
    def weights(self) -> ModelWeights: ...
    @property
    def counts(self) -> MatrixCounts | None: ...


UploaderFor = Callable[[CardMemory, KernelSet], Uploader]


class CudaBackend:
    """Belongs to the thread of its driver, as do its pools and caches."""

    device = "cuda"

    def __init__(
        self,
        cpu: HostModel,
        driver: CardDriver,
        compiler: KernelCompiler,
        *,
        activations: Activations = "int8x2",
        context: int | None = None,
        vram_budget: int | None = None,
        window: int = 0,
        kv: KvFormat = "int8",
        on_progress: ProgressCallback = no_progress,
        cancel: threading.Event | None = None,
        uploader: UploaderFor = Uploader,
        most_rows: int | None = None,
    ) -> None:
        """Everything that a token needs: kernels compiled, weights uploaded, memory taken. From then on the
        driver is the backend's. window: layers whose weights are on the card at a time; 0: all, or as many as
        there is room for beside pages of the format `kv`. uploader: of what stays on the card. most_rows: of
        a step; None: as many as the card's memory allows. Raises UnsupportedModelError, OutOfMemoryError,
        CardFaultError, Cancelled; nothing is held then, and the driver is still the caller's.
        """
        check_supported(cpu.spec)
        self.cpu = cpu
        self._driver = driver = CountedDriver(driver)
        self._context = cpu.spec.context_length if context is None else context
        self._activations = activations
        self.memory = CardMemory(driver, vram_budget)
        self._chunks = ChunkStore(self.memory)
        self._pools: WeakSet[CudaPagePool] = WeakSet()  # for as long as somebody has them
        try:
            self.kernels = KernelSet(driver, compiler)
            self._prepare(most_rows)
            self._weights = upload_weights(
                cpu.weights,
                self.memory,
                self.kernels,
                window=window,
                rest=Rest.of(
                    KvGeometry.of(self.spec, kv), context=self._context, other=self._tables.bytes_to_come
                ),
                on_progress=on_progress,
                cancel=cancel,
                uploader=uploader(self.memory, self.kernels),
            )
            self._plans = self._sealed_plans(kv)
        except BaseException:
            self.memory.free_all()
            raise

    @property
    def spec(self) -> ModelSpec:
        return self.cpu.spec

    @property
    def description(self) -> str:
        found = card_in_words(self._driver.info.name, self.cpu.counts)
        if self.window is None:
            return found
        return f"{found}, {self.window} of {self.spec.num_layers} layers at a time"

    @property
    def weight_bytes(self) -> int:
        return self._weights.num_bytes

    @property
    def weights(self) -> CardWeights:
        return self._weights

    @property
    def most_rows(self) -> int:
        """Of a step; a longer prompt takes several."""
        return self._space.rows

    @property
    def window(self) -> int | None:
        """How many layers are on the card at a time; None: all."""
        return self._weights.window

    @property
    def notices(self) -> tuple[Notice, ...]:
        return self._plans.notices

    @property
    def work(self) -> Work:
        driver = self._driver
        launches = self.kernels.num_launches + driver.num_replays
        return Work(launches, driver.num_uploads, driver.num_downloads)

    def forget_recordings(self) -> None:
        """Each token's launches are made anew when they are next needed."""
        self._plans.forget_recordings()

    def memory_use(self) -> MemoryUse:
        held, info = self.memory.num_bytes, self._driver.info
        return MemoryUse(
            weight_bytes=held.get(Use.WEIGHTS, 0),
            cache_bytes=held.get(Use.CACHE, 0),
            cache_pages=sum(pool.num_pages for pool in list(self._pools)),
            workspace_bytes=held.get(Use.WORKSPACE, 0),
            card=CardSpace(info.name, info.total_bytes, self.memory.free_bytes()),
            layers=self._weights.layers.use,
            host_bytes=self.cpu.weights.num_bytes,
        )

    def new_pool(self, geometry: KvGeometry, capacity: int) -> CudaPagePool:
        assert geometry == KvGeometry.of(self.spec, geometry.format)
        pool = CudaPagePool(geometry, capacity, self._driver, self._chunks)
        self._pools.add(pool)
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
        self._reserve(ids, sequence)
        logits: list[torch.Tensor] = []
        for start in range(0, len(ids), self.most_rows):
            block = ids[start : start + self.most_rows]
            self._plans.run(block, sequence.length, sequence.pages, pool, cancel)
            is_last = start + len(block) == len(ids)
            computed = len(block) == 1  # with its step
            if all_logits:
                logits.append(self._plans.logits(0, len(block), computed=computed))
            elif is_last:
                logits.append(self._plans.logits(len(block) - 1, 1, computed=computed))
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

    def start_drawing(
        self, params: SamplingParams, *, seed: int | None, history: collections.abc.Sequence[int]
    ) -> CardDrawing | None:
        slot = self._slots.take()
        if slot is None:
            return None
        slot.begin(params, seed=seed, history=history)
        self._plans.forget_next()
        return CardDrawing(self, slot)

    def end_drawing(self, slot: DrawSlot) -> None:
        """Of `CardDrawing`."""
        self._slots.give_back(slot)

    @property
    def runs_ahead(self) -> bool:
        return self._plans.runs_ahead

    def run_drawn(
        self,
        ids: collections.abc.Sequence[int],
        sequence: Sequence,
        pool: CudaPagePool,
        slot: DrawSlot,
        cancel: threading.Event | None,
    ) -> None:
        """Starts what `prefill` does, and the draw behind it."""
        self._reserve(ids, sequence)
        for start in range(0, len(ids), self.most_rows):
            block = ids[start : start + self.most_rows]
            draws = slot if start + len(block) == len(ids) else None
            self._plans.run(block, sequence.length, sequence.pages, pool, cancel, slot=draws)
            sequence.length += len(block)

    def run_ahead(
        self, position: int, token: int | None, sequence: Sequence, pool: CudaPagePool, slot: DrawSlot
    ) -> bool:
        """Starts the step of the slot's next token, at `position`, if that takes nothing new. token: None
        while only the card knows it. Whether it was started.
        """
        end = position + 1
        has_room = end <= self._context and self._tables.has(end) and len(sequence.pages) >= pages_for(end)
        if not self.runs_ahead or not has_room:
            return False
        if self._plans.has_next(slot, position):
            self._plans.run_next(position, sequence.pages, pool, slot)
        elif token is not None:
            self._plans.run([token], position, sequence.pages, pool, None, slot=slot)
        else:
            return False
        return True

    def new_cache(self, kv_format: KvFormat = "native") -> PagedCache:
        geometry = KvGeometry.of(self.spec, kv_format)
        return PagedCache(self.new_pool(geometry, pages_for(self._context)))

    def forward(
        self,
        ids: collections.abc.Sequence[int],
        cache: Cache,
        *,
        all_logits: bool = False,
        cancel: threading.Event | None = None,
    ) -> torch.Tensor:
        assert isinstance(cache, PagedCache)
        cache.reserve(cache.length + len(ids))
        return self.prefill(ids, cache.sequence, cache.pool, all_logits=all_logits, cancel=cancel)

    def close(self) -> None:
        with suppress(CardFaultError):  # a card that has failed gives nothing back by itself: its driver does
            self.memory.free_all()
        self._driver.close()

    def _prepare(self, most_rows: int | None) -> None:
        spec, planes = self.spec, PLANES[self._activations]
        if most_rows is None:
            most_rows = most_step_rows(self.memory, spec, self.cpu.weights.num_bytes, planes=planes)
        rows = min(most_rows, self._context)
        self._step = StepBuffer(self.memory, rows=rows, width=spec.hidden_size, context=self._context)
        self._space = Workspace(self.memory, spec, rows=rows, context=self._context, planes=planes)
        self._draws = DrawKernels(
            self.memory,
            self.kernels,
            turn=self._step.slot_of(1),
            logits=self._space.logits,
            vocab_size=spec.vocab_size,
        )
        self._slots = DrawSlots(self.memory, spec.vocab_size)
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

    def _sealed_plans(self, kv: KvFormat) -> StepPlans:
        """For pages of both forms, that of the conversations first: texts are scored with the other, too."""
        plans = StepPlans(
            self._driver,
            self.spec,
            self._weights,
            self._runner,
            kernels=self.kernels,
            draws=self._draws,
            step=self._step,
            space=self._space,
            context=self._context,
        )
        slot = self._slots.take()
        assert slot is not None, "the first one was made"
        forms: tuple[KvFormat, ...] = ("int8", "native")
        for form in sorted(forms, key=lambda form: form != kv):
            geometry = KvGeometry.of(self.spec, form)
            plans.prepare(CudaPagePool(geometry, 1, self._driver, self._chunks), slot)
            self._chunks.free_spare()
        self._slots.give_back(slot)
        plans.seal()
        return plans

    def _reserve(self, ids: collections.abc.Sequence[int], sequence: Sequence) -> None:
        """All memory that a step takes, before it begins."""
        assert ids, "there is nothing to run"
        assert len(sequence.pages) >= pages_for(sequence.length + len(ids)), "pages are missing"
        end = min(sequence.length + len(ids), self._context)  # what is behind it is refused with its step
        if self._tables.reserve(end):
            self._plans.forget_recordings()
