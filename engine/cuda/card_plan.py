"""What a load would do on a card, told by headers alone: the steps of `CudaBackend` and `upload_weights`, on
a card that only counts. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from engine.config import Activations
from engine.cuda.counting_card import CountingCard
from engine.cuda.drawing import DrawKernels, DrawSlots
from engine.cuda.driver import CardDriver, CardInfo
from engine.cuda.matrix_sizes import CardSizes
from engine.cuda.memory import CardMemory, Use
from engine.cuda.page_pool import cache_bytes
from engine.cuda.placement import RESERVE_BYTES, LayerSizes, Rest, chosen_window, takes_embedding
from engine.cuda.rope_sizes import FIRST_POSITIONS, bytes_to_come, table_bytes
from engine.cuda.row_forms import PLANES
from engine.cuda.step import StepBuffer
from engine.cuda.support import check_supported
from engine.cuda.workspace import Workspace, most_step_rows
from engine.kv_geometry import PAGE, KvFormat, KvGeometry, pages_for
from engine.models.spec import ModelSpec

if TYPE_CHECKING:
    from engine.cuda.kernel_set import KernelSet


@dataclass(frozen=True)
class CardPlan:
    """Bytes of the card that are taken at load. window: layers at a time; None: all. has_embedding: whether
    it is there. rows: of the largest step. cache_bytes: of a conversation that fills the context. room: that
    is left for conversations; tokens: of one that fits there, no more than the context.
    """

    window: int | None
    has_embedding: bool
    rows: int
    weight_bytes: int
    workspace_bytes: int
    cache_bytes: int
    room: int
    tokens: int


def plan_on_card(
    spec: ModelSpec,
    sizes: CardSizes,
    info: CardInfo,
    *,
    free: int,
    host_bytes: int,
    activations: Activations,
    context: int,
    kv: KvFormat,
    vram_budget: int | None = None,
    window: int = 0,
) -> CardPlan:
    """free: bytes of the card now. host_bytes: of the weights as the computer has them. The rest as for
    `CudaBackend`. Raises OutOfMemoryError and UnsupportedModelError where that would.
    """
    check_supported(spec)
    memory = CardMemory(cast(CardDriver, CountingCard(info, free)), vram_budget)
    planes = PLANES[activations]
    rows = min(most_step_rows(memory, spec, host_bytes, planes=planes), context)
    other = _take_workspace(memory, spec, rows=rows, context=context, planes=planes)
    geometry = KvGeometry.of(spec, kv)
    rest = Rest.of(geometry, context=context, other=other)
    layers = LayerSizes(
        [[each.stays for each in layer] for layer in sizes.layers],
        [[each.comes for each in layer] for layer in sizes.layers],
    )
    for each in sizes.norms:
        memory.allocate(each, Use.WEIGHTS)
    _take_through(memory, sizes.head.stays, sizes.head.comes)
    available = memory.available(RESERVE_BYTES)
    has_embedding = sizes.embedding is not None and takes_embedding(
        sizes.embedding, layers, available, rest, window=window
    )
    if has_embedding:
        assert sizes.embedding is not None
        memory.allocate(sizes.embedding, Use.WEIGHTS)
    chosen = chosen_window(layers, memory.available(RESERVE_BYTES), rest, window=window)
    for size in layers.on_card(chosen):
        memory.allocate(size, Use.WEIGHTS)
    held, pages = memory.num_bytes, pages_for(context)
    room = max(0, memory.available())
    return CardPlan(
        window=chosen,
        has_embedding=has_embedding,
        rows=rows,
        weight_bytes=held[Use.WEIGHTS],
        workspace_bytes=held[Use.WORKSPACE],
        cache_bytes=cache_bytes(geometry, pages, capacity=pages),
        room=room,
        tokens=min(context, _tokens_in(geometry, max(0, room - other), pages)),
    )


def _take_workspace(memory: CardMemory, spec: ModelSpec, *, rows: int, context: int, planes: int) -> int:
    """As `CudaBackend._prepare`. What tables of positions take later."""
    step = StepBuffer(memory, rows=rows, width=spec.hidden_size, context=context)
    space = Workspace(memory, spec, rows=rows, context=context, planes=planes)
    DrawKernels(
        memory,
        cast("KernelSet", None),  # nothing is launched
        turn=step.slot_of(1),
        logits=space.logits,
        vocab_size=spec.vocab_size,
    )
    DrawSlots(memory, spec.vocab_size)
    ropes = {layer.attention.rope for layer in spec.layers}
    positions = min(context, FIRST_POSITIONS)
    for rope in ropes:
        for _ in ("cosines", "sines"):
            memory.allocate(table_bytes(rope, positions), Use.WORKSPACE)
    return bytes_to_come(ropes, positions, context)


def _take_through(memory: CardMemory, stays: int, comes: int) -> None:
    """What stays, and a passage that is free again."""
    memory.allocate(stays, Use.WEIGHTS)
    memory.free(memory.allocate(comes, Use.WORKSPACE))


def _tokens_in(geometry: KvGeometry, room: int, most_pages: int) -> int:
    """Of one conversation."""
    low, high = 0, most_pages
    while low < high:
        middle = (low + high + 1) // 2
        if cache_bytes(geometry, middle, capacity=most_pages) <= room:
            low = middle
        else:
            high = middle - 1
    return low * PAGE
