"""How a model's steps are launched: prepared at load on memory that nobody else uses, then sealed.

What goes wrong with a kernel, a layout or a recording shows while it is prepared. A sealed plan starts
nothing that was not: before it writes anything it refuses pages of another form or alignment, and steps of
more tokens than there is room for; then the CPU goes on from where the state is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

import torch

from engine.cuda.attention import StepShape, splits_for
from engine.cuda.decode_graphs import DecodeGraphs
from engine.cuda.drawing import DrawKernels, DrawSlot
from engine.cuda.driver import NOWHERE, CardDriver, as_bytes
from engine.cuda.embedding import CardEmbedding
from engine.cuda.kernel_set import KernelSet
from engine.cuda.layers import LayerRunner
from engine.cuda.page_pool import ALIGNMENT, CudaPagePool
from engine.cuda.step import PageTable, StepBuffer
from engine.cuda.weights import CardWeights
from engine.cuda.workspace import LOGIT_ROWS, Workspace
from engine.errors import Cancelled, StepRefusedError
from engine.generation import SamplingParams
from engine.kv_geometry import KvGeometry, pages_for
from engine.models.spec import ModelSpec
from engine.notices import Notice
from engine.wording import format_tokens

_SEVERAL = 2  # tokens: a prompt of any length is launched as one of two is
_TRIAL = SamplingParams(temperature=1.0, top_k=40, top_p=0.9, repetition_penalty=1.1, seed=1)  # all steps


class StepPlans:
    """Of one model. Belongs to the thread of its driver."""

    def __init__(
        self,
        driver: CardDriver,
        spec: ModelSpec,
        weights: CardWeights,
        runner: LayerRunner,
        *,
        kernels: KernelSet,
        draws: DrawKernels,
        step: StepBuffer,
        space: Workspace,
        context: int,
    ) -> None:
        self._driver = driver
        self._spec = spec
        self._weights = weights
        self._runner = runner
        self._kernels = kernels
        self._draws = draws
        self._step = step
        self._table = PageTable(step.most_pages)
        self._next: tuple[DrawSlot, int] | None = None  # whose next token the card has, and its position
        self._space = space
        self._context = context
        self._graphs = DecodeGraphs(driver)
        self._geometries: list[KvGeometry] = []
        self._sealed = False

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What a person should know of how steps are launched."""
        return self._graphs.notices

    @property
    def _records(self) -> bool:
        """Not where weights come and go: where they are, and what waits for them, changes from step to
        step.
        """
        return self._weights.window is None

    @property
    def runs_ahead(self) -> bool:
        """Whether a step can be launched before the token that it begins with has come back."""
        return self._records and isinstance(self._weights.embedding, CardEmbedding)

    def prepare(self, pool: CudaPagePool, slot: DrawSlot) -> None:
        """For pages of this pool's form: each kind of step runs once, and tokens are recorded. The pool is
        empty, and nobody else's, and so is the slot. Raises OutOfMemoryError where no page fits,
        CardFaultError.
        """
        assert not self._sealed, "nothing is prepared while somebody may be waiting"
        pages = [pool.allocate_one()]
        try:
            ids = [0] * min(_SEVERAL, self._space.rows)  # a context may hold a single token
            slot.begin(_TRIAL, seed=_TRIAL.seed, history=ids)
            self._send(ids, 0, pages, pool, slot)
            self._launch_prompt(pool.geometry, StepShape(len(ids), 1), slot, None)
            slot.started()
            if self._records:
                self._prepare_tokens(pool, pages, slot)
            self._driver.synchronize()
        finally:
            self._table.forget()
            for page in pages:
                pool.free(page)
        self._geometries.append(pool.geometry)

    def seal(self) -> None:
        """Nothing more is prepared, and what was may be used."""
        self._sealed = True

    def forget_recordings(self) -> None:
        """Addresses have changed: tokens are recorded again when they are next needed."""
        self._graphs.forget()

    def run(
        self,
        ids: Sequence[int],
        first: int,
        pages: list[int],
        pool: CudaPagePool,
        cancel: threading.Event | None,
        *,
        slot: DrawSlot | None = None,
    ) -> None:
        """The step of `ids` behind `first` tokens. A single token's logits come with it, and with a slot the
        next token is drawn. Raises StepRefusedError before anything is written; Cancelled.
        """
        shape = self._check(first, len(ids), pages, pool)
        _stop_if(cancel)
        if slot is None or len(ids) > 1 or self._next != (slot, first):
            self._send(ids, first, pages, pool, slot)
        else:
            self._send_pages(pages, pool)
            self._send_hidden(ids)
        self._launch(shape, first, pool.geometry, slot, cancel)

    def run_next(self, first: int, pages: list[int], pool: CudaPagePool, slot: DrawSlot) -> None:
        """The step of the token that the card has, whichever it is: see `has_next`. Raises
        StepRefusedError.
        """
        assert self.has_next(slot, first)
        shape = self._check(first, 1, pages, pool)
        self._send_pages(pages, pool)
        self._launch(shape, first, pool.geometry, slot, None)

    def forget_next(self) -> None:
        """What was drawn last is of an answer that has ended: the following one has other tokens there."""
        self._next = None

    def has_next(self, slot: DrawSlot, position: int) -> bool:
        """Whether the card has what it drew last for the slot, for this position."""
        return self.runs_ahead and self._next == (slot, position)

    def logits(self, first_row: int, rows: int, *, computed: bool = False) -> torch.Tensor:
        """float32 (rows, V), of the step that ran last. computed: they came with it."""
        found = torch.empty(rows, self._spec.vocab_size)
        for start in range(0, rows, LOGIT_ROWS):
            count = min(LOGIT_ROWS, rows - start)
            if not computed:
                self._launch_logits(first_row=first_row + start, rows=count)
            self._driver.download(as_bytes(found[start : start + count]), self._space.logits)
        return found

    def _check(self, first: int, rows: int, pages: list[int], pool: CudaPagePool) -> StepShape:
        why = ""
        if not self._sealed:
            why = "its plan is not finished"
        elif pool.geometry not in self._geometries:
            why = "pages of this form were not prepared for"
        elif not 0 < rows <= self._space.rows:
            why = f"it has {format_tokens(rows)}, and one may have 1 to {self._space.rows}"
        elif first + rows > self._context:
            why = f"it ends at token {first + rows:,}, and the context holds {self._context:,}"
        elif any(page % ALIGNMENT for page in self._table.missing(pages, pool)[1]):
            why = f"a page doesn't begin at a multiple of {ALIGNMENT} bytes"
        if why:
            raise StepRefusedError(f"The card refuses a step: {why}.")
        assert len(pages) >= pages_for(first + rows), "pages are missing"
        return StepShape(rows, splits_for(first + rows))

    def _send(
        self, ids: Sequence[int], first: int, pages: list[int], pool: CudaPagePool, slot: DrawSlot | None
    ) -> None:
        """All that the card has to know of a step."""
        self._next = None
        _, missing = self._table.missing(pages, pool)
        table = pool.addresses(pages[: self._step.most_pages]) if missing else []
        if table:
            self._table.forget()  # of what fails it isn't known whether it arrived
        self._step.send(ids, first, table, slot=NOWHERE if slot is None else slot.address)
        self._table.told(pages, pool)
        self._send_hidden(ids)

    def _send_pages(self, pages: list[int], pool: CudaPagePool) -> None:
        start, missing = self._table.missing(pages, pool)
        if missing:
            self._table.forget()  # likewise
            self._step.send_pages(start, missing)
        self._table.told(pages, pool)

    def _send_hidden(self, ids: Sequence[int]) -> None:
        embedding = self._weights.embedding
        if not isinstance(embedding, CardEmbedding):
            embedding.send(ids, self._step.hidden)

    def _launch(
        self,
        shape: StepShape,
        first: int,
        geometry: KvGeometry,
        slot: DrawSlot | None,
        cancel: threading.Event | None,
    ) -> None:
        self._next = None
        if shape.rows > 1:
            self._launch_prompt(geometry, shape, slot, cancel)
        elif self._records:
            self._graphs.run(geometry.format, shape.splits, lambda room: self._launch_early(geometry, room))
        else:
            self._launch_token(geometry, shape.splits, cancel)
        if slot is not None:
            slot.started()
            self._next = (slot, first + shape.rows)

    def _prepare_tokens(self, pool: CudaPagePool, pages: list[int], slot: DrawSlot) -> None:
        """Records tokens, and sees that what was recorded gives the bits and the token that it should."""
        geometry = pool.geometry
        form = geometry.format
        splits = splits_for(self._context)
        self._graphs.prepare(form, splits, lambda room: self._launch_early(geometry, room))
        if not self._graphs.in_use:
            return

        def tried(start: Callable[[], None]) -> tuple[torch.Tensor, tuple[int, int, int]]:
            slot.begin(_TRIAL, seed=_TRIAL.seed, history=[0])
            self._send([0], 0, pages, pool, slot)
            self._driver.fill(self._space.logits, 0xFF, 4 * self._spec.vocab_size)
            start()
            return self.logits(0, 1, computed=True).view(torch.int32), slot.peek()

        logits, drawn = tried(lambda: self._launch_token(geometry, 1))
        for room in range(1, min(splits, 2) + 1):  # with more than one, other launches begin early
            found, found_drawn = tried(partial(self._graphs.run, form, room, _never))
            if drawn != found_drawn or not torch.equal(logits, found):
                self._graphs.refuse("what the driver recorded computes something else.")
                return

    def _launch_token(self, geometry: KvGeometry, splits: int, cancel: threading.Event | None = None) -> None:
        """One token's whole step, from its embedding to the draw of the next one."""
        self._launch_layers(geometry, StepShape(1, splits), cancel)
        self._launch_logits(first_row=0, rows=1)
        self._draws.launch(self._step.slot_of(1), rows=1)

    def _launch_early(self, geometry: KvGeometry, splits: int) -> None:
        """The same, with each launch beginning before the one before it has ended where the card can."""
        with self._kernels.overlapping():
            self._launch_token(geometry, splits)

    def _launch_prompt(
        self, geometry: KvGeometry, shape: StepShape, slot: DrawSlot | None, cancel: threading.Event | None
    ) -> None:
        """Its logits are left to whoever asks for them, but for those of a draw."""
        self._launch_layers(geometry, shape, cancel)
        if slot is not None:
            self._launch_logits(first_row=shape.rows - 1, rows=1)
            self._draws.launch(self._step.slot_of(shape.rows), rows=shape.rows)

    def _launch_layers(self, geometry: KvGeometry, shape: StepShape, cancel: threading.Event | None) -> None:
        embedding, step = self._weights.embedding, self._step
        if isinstance(embedding, CardEmbedding):
            embedding.launch(self._kernels, step.ids_of(shape.rows), step.hidden, rows=shape.rows)
        for index in range(self._spec.num_layers):
            _stop_if(cancel)
            with self._weights.layers.running(index) as layer:
                self._runner.run(layer, index, geometry, shape)

    def _launch_logits(self, *, first_row: int, rows: int) -> None:
        weights = self._weights
        self._runner.logits(weights.final_norm, weights.head, first_row=first_row, rows=rows)


def _never(_: int) -> None:
    raise AssertionError("it was recorded")


def _stop_if(cancel: threading.Event | None) -> None:
    if cancel is not None and cancel.is_set():
        raise Cancelled
