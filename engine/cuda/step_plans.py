"""How a model's steps are launched: prepared at load on memory that nobody else uses, then sealed.

What goes wrong with a kernel, a layout or a recording shows while it is prepared. A sealed plan starts
nothing that was not: before it writes anything it refuses pages of another form or alignment, and steps of
more tokens than there is room for; then the CPU goes on from where the state is.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from engine.cuda.attention import StepShape, splits_for
from engine.cuda.decode_graphs import DecodeGraphs
from engine.cuda.driver import Address, CardDriver, as_bytes
from engine.cuda.layers import LayerRunner
from engine.cuda.page_pool import ALIGNMENT, CudaPagePool
from engine.cuda.step import StepBuffer
from engine.cuda.weights import CardWeights
from engine.cuda.workspace import LOGIT_ROWS, Workspace
from engine.errors import Cancelled, StepRefusedError
from engine.kv_geometry import KvGeometry
from engine.models.spec import ModelSpec
from engine.notices import Notice
from engine.wording import format_tokens

_SEVERAL = 2  # tokens: a prompt of any length is launched as one of two is


class StepPlans:
    """Of one model. Belongs to the thread of its driver."""

    def __init__(
        self,
        driver: CardDriver,
        spec: ModelSpec,
        weights: CardWeights,
        runner: LayerRunner,
        *,
        step: StepBuffer,
        space: Workspace,
        context: int,
    ) -> None:
        self._driver = driver
        self._spec = spec
        self._weights = weights
        self._runner = runner
        self._step = step
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

    def prepare(self, pool: CudaPagePool) -> None:
        """For pages of this pool's form: each kind of step runs once, and tokens are recorded. The pool is
        empty, and nobody else's. Raises OutOfMemoryError where no page fits, CardFaultError.
        """
        assert not self._sealed, "nothing is prepared while somebody may be waiting"
        page = pool.allocate_one()
        try:
            pages = [pool.address(page)]
            rows = min(_SEVERAL, self._space.rows)  # a context may hold a single token
            hidden = torch.ones(rows, self._spec.hidden_size)
            self._step.send(hidden, 0, pages)
            self._launch_layers(pool.geometry, StepShape(rows, 1), None)
            self._launch_logits(first_row=0, rows=rows)
            if self._records:
                self._prepare_tokens(pool.geometry, hidden[:1], pages)
            self._driver.synchronize()
        finally:
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
        hidden: torch.Tensor,
        first: int,
        pages: Sequence[Address],
        geometry: KvGeometry,
        cancel: threading.Event | None,
    ) -> None:
        """The step of hidden (T, H), float32, behind `first` tokens. A single token's logits come with it.
        Raises StepRefusedError before anything is written; Cancelled.
        """
        rows = len(hidden)
        self._check(first, rows, pages, geometry)
        self._step.send(hidden, first, pages)
        splits = splits_for(first + rows)
        if rows > 1:
            self._launch_layers(geometry, StepShape(rows, splits), cancel)
        elif self._records:
            _stop_if(cancel)
            self._graphs.run(geometry.format, splits, lambda room: self._launch_token(geometry, room))
        else:
            self._launch_token(geometry, splits, cancel)

    def logits(self, first_row: int, rows: int, *, computed: bool = False) -> torch.Tensor:
        """float32 (rows, V), of the step that ran last. computed: they came with it."""
        found = torch.empty(rows, self._spec.vocab_size)
        for start in range(0, rows, LOGIT_ROWS):
            count = min(LOGIT_ROWS, rows - start)
            if not computed:
                self._launch_logits(first_row=first_row + start, rows=count)
            self._driver.download(as_bytes(found[start : start + count]), self._space.logits)
        return found

    def _check(self, first: int, rows: int, pages: Sequence[Address], geometry: KvGeometry) -> None:
        why = ""
        if not self._sealed:
            why = "its plan is not finished"
        elif geometry not in self._geometries:
            why = "pages of this form were not prepared for"
        elif not 0 < rows <= self._space.rows:
            why = f"it has {format_tokens(rows)}, and one may have 1 to {self._space.rows}"
        elif first + rows > self._context:
            why = f"it ends at token {first + rows:,}, and the context holds {self._context:,}"
        elif any(page % ALIGNMENT for page in pages):
            why = f"a page doesn't begin at a multiple of {ALIGNMENT} bytes"
        if why:
            raise StepRefusedError(f"The card refuses a step: {why}.")

    def _prepare_tokens(self, geometry: KvGeometry, hidden: torch.Tensor, pages: Sequence[Address]) -> None:
        """Records tokens, and sees that what was recorded gives the bits that it should."""
        form = geometry.format
        self._graphs.prepare(form, splits_for(self._context), lambda room: self._launch_token(geometry, room))
        if not self._graphs.in_use:
            return
        found = []
        for start in (self._launch_token, lambda _, room: self._graphs.run(form, room, _never)):
            self._step.send(hidden, 0, pages)
            self._driver.fill(self._space.logits, 0xFF, 4 * self._spec.vocab_size)
            start(geometry, 1)
            found.append(self.logits(0, 1, computed=True).view(torch.int32))
        if not torch.equal(*found):
            self._graphs.refuse("what the driver recorded computes something else.")

    def _launch_token(self, geometry: KvGeometry, splits: int, cancel: threading.Event | None = None) -> None:
        """One token's whole step, from its embedding to its logits."""
        self._launch_layers(geometry, StepShape(1, splits), cancel)
        self._launch_logits(first_row=0, rows=1)

    def _launch_layers(self, geometry: KvGeometry, shape: StepShape, cancel: threading.Event | None) -> None:
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
