"""The card's memory for what is between the layers of one step, taken once at load for the largest step."""

from __future__ import annotations

from dataclasses import dataclass

from engine.cuda.arguments import Activation
from engine.cuda.driver import Address
from engine.cuda.many_rows import most_tiles
from engine.cuda.memory import CardMemory, Use
from engine.cuda.placement import RESERVE_BYTES
from engine.models.spec import AttentionSpec, ModelSpec, MoeSpec
from engine.weights.strips import BLOCK

STEP_ROWS = (2048, 1024, 512, 256)  # of the largest step; there is always room for the last
ROUTER_ROWS = 4  # up to which one launch has all of a router
LOGIT_ROWS = 16  # at a time: of a large vocabulary they take 10 MB
SPLIT = 256  # tokens of attention that a block goes through, as in kernels/attention.cu
_PARTIAL_BYTES = 32 * 2**20  # of attention, for as many rows at a time as fit
_SHARE = 8  # which part of what is left beside the weights longer steps may take


@dataclass(frozen=True)
class Sizes:
    """The widest of a model's rows, in numbers."""

    hidden: int
    qkv: int
    attention: int
    gate_up: int
    intermediate: int
    experts: int
    chosen: int  # experts a token; 1 where there are none
    vocab: int
    heads: int
    head_dim: int

    @classmethod
    def of(cls, spec: ModelSpec) -> Sizes:
        attention = [layer.attention for layer in spec.layers]
        feed_forward = [layer.feed_forward for layer in spec.layers]
        experts = [each for each in feed_forward if isinstance(each, MoeSpec)]
        return cls(
            hidden=spec.hidden_size,
            qkv=max(each.q_dim + 2 * each.kv_dim for each in attention),
            attention=max(each.q_dim for each in attention),
            gate_up=max(2 * each.intermediate_size for each in feed_forward),
            intermediate=max(each.intermediate_size for each in feed_forward),
            experts=max((each.num_experts for each in experts), default=0),
            chosen=max((each.top_k for each in experts), default=1),
            vocab=spec.vocab_size,
            heads=max(each.num_heads for each in attention),
            head_dim=max(each.head_dim for each in attention),
        )


@dataclass(frozen=True)
class Rows:
    """Rows of numbers that products read, of any width up to the one they were made for."""

    values: Address
    high: Address
    low: Address
    scales: Address
    sums: Address

    def of(self, width: int, *, values: bool, planes: int) -> Activation:
        """As a kernel takes it, in the forms that are wanted: numbers, and none, one or two planes of 8
        bits.
        """
        return Activation(
            values=self.values if values else 0,
            high=self.high if planes else 0,
            low=self.low if planes > 1 else 0,
            scales=self.scales if planes else 0,
            sums=self.sums if planes else 0,
            width=width,
        )


def step_rows(spec: ModelSpec, room: int, *, planes: int) -> int:
    """How many rows the largest step has where so many bytes are left beside the weights, or less than none.
    Each step reads all weights anew and is launched by the host anew, and many rows keep all processors busy;
    but no layer is to leave the card for that, and conversations need most of what is left.
    """
    affordable = room // _SHARE // row_bytes(spec, planes=planes)
    return next((rows for rows in STEP_ROWS if rows <= affordable), STEP_ROWS[-1])


def most_step_rows(memory: CardMemory, spec: ModelSpec, weight_bytes: int, *, planes: int) -> int:
    """The same for a model whose weights come to so many bytes and are not there yet."""
    room = memory.available(RESERVE_BYTES) - weight_bytes
    return step_rows(spec, room, planes=planes)


def row_bytes(spec: ModelSpec, *, planes: int) -> int:
    """Of a workspace, for each row of its largest step."""
    sizes = Sizes.of(spec)
    numbers = sizes.qkv + sizes.chosen * sizes.gate_up
    if sizes.experts:
        numbers += sizes.experts + sizes.chosen * (3 + sizes.hidden)
        numbers += -(-3 * most_tiles(8 * sizes.chosen, num_experts=0) // 8)
    read = (sizes.hidden, sizes.attention, *[sizes.intermediate] * sizes.chosen)
    return 4 * numbers + sum(_row_bytes(width, planes) for width in read)


def _row_bytes(width: int, planes: int) -> int:
    """Of `Rows`."""
    blocks = -(-width // BLOCK)
    return blocks * (4 * BLOCK + planes * BLOCK + (8 if planes else 0))


class Workspace:
    """rows: of the largest step. context: tokens. Raises OutOfMemoryError, and then nothing is held."""

    def __init__(self, memory: CardMemory, spec: ModelSpec, *, rows: int, context: int, planes: int) -> None:
        self.rows = rows
        self._memory = memory
        self._addresses: list[Address] = []
        sizes = Sizes.of(spec)
        chosen_rows = rows * sizes.chosen
        try:
            self.x = self._rows(rows, sizes.hidden, planes)
            self.attended = self._rows(rows, sizes.attention, planes)
            self.gated = self._rows(chosen_rows, sizes.intermediate, planes)
            self.qkv = self._floats(rows * sizes.qkv)
            self.gate_up = self._floats(chosen_rows * sizes.gate_up)
            most_splits = 2 * -(-context // SPLIT)  # recorded steps have room for up to twice as many
            row_bytes = max(_partial_bytes(layer.attention, most_splits) for layer in spec.layers)
            self.partial_bytes = max(_PARTIAL_BYTES, row_bytes)
            self.partials = self._take(self.partial_bytes)
            self.arrivals = self._zeros(max(layer.attention.num_kv_heads for layer in spec.layers))
            self.logits = self._floats(min(rows, LOGIT_ROWS) * sizes.vocab)
            if sizes.experts:
                self.router = self._floats(rows * sizes.experts)
                self.experts = self._floats(chosen_rows)
                self.expert_weights = self._floats(chosen_rows)
                self.expert_outputs = self._floats(chosen_rows * sizes.hidden)
                self.router_arrivals = self._zeros(ROUTER_ROWS)
                self.expert_order = self._floats(chosen_rows)
                self.expert_tiles = self._floats(3 * most_tiles(chosen_rows, num_experts=sizes.experts))
        except BaseException:
            self.free()
            raise

    def partial_rows(self, spec: AttentionSpec, splits: int) -> int:
        """How many rows of attention over so many splits there is room for, at least one."""
        return self.partial_bytes // _partial_bytes(spec, splits)

    def free(self) -> None:
        while self._addresses:
            self._memory.free(self._addresses.pop())

    def _take(self, num_bytes: int) -> Address:
        address = self._memory.allocate(num_bytes, Use.WORKSPACE)
        self._addresses.append(address)
        return address

    def _floats(self, count: int) -> Address:
        return self._take(4 * count)

    def _zeros(self, count: int) -> Address:
        """Whole numbers that kernels leave as they find them."""
        address = self._floats(count)
        self._memory.driver.fill(address, 0, 4 * count)
        return address

    def _rows(self, rows: int, width: int, planes: int) -> Rows:
        padded = -(-width // BLOCK) * BLOCK
        none = Address(0)
        return Rows(
            values=self._floats(rows * padded),
            high=self._take(rows * padded) if planes else none,
            low=self._take(rows * padded) if planes > 1 else none,
            scales=self._floats(rows * padded // BLOCK) if planes else none,
            sums=self._floats(rows * padded // BLOCK) if planes else none,
        )


def _partial_bytes(spec: AttentionSpec, splits: int) -> int:
    """Of one row: sums, largest score and total of each head and split, see kernels/attention.cu."""
    return 4 * spec.num_heads * splits * (spec.head_dim + 2)
