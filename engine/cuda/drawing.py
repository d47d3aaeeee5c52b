"""Tokens drawn on the card, where their logits are: nothing of a step but the token's id has to leave it.

What an answer's draws depend on lies in a slot of the card's memory: settings, how many tokens were drawn,
which ids occur. Kernels find it by an address that stands with the step's tokens, so that what is recorded of
a token serves every answer. `kernels/sample.cu` draws what `engine/sampling.py` would.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.cuda.arguments import Draw, Drawn, Draws
from engine.cuda.driver import Address, as_bytes
from engine.cuda.kernel_set import KernelSet
from engine.cuda.memory import CardMemory, Use
from engine.errors import OutOfMemoryError
from engine.generation import SamplingParams
from engine.sampling import LEAST_TEMPERATURE, least_weight

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# As in kernels/sample.cu.
_RESULTS = 4
_SCANNED, _COUNTED, _GROUP = 1024, 2048, 128  # ids: of a block of each kernel, and of a group
_KINDS = 2048
_SCRATCH_BYTES = 16 + 12 * _KINDS
_BEST_BYTES = 16

_LONGEST = 2**31 - 1  # what a number of candidates may be
_IN_FLIGHT = 2  # draws of one answer that are started and not taken yet


class DrawKernels:
    """The two launches of a draw, and their memory. Takes it once, for any number of answers."""

    def __init__(
        self, memory: CardMemory, kernels: KernelSet, *, turn: Address, logits: Address, vocab_size: int
    ) -> None:
        """turn: of a step of one token, see `StepBuffer`. logits: of the last token, (V,). Raises
        OutOfMemoryError.
        """
        self._kernels = kernels
        self._turn = turn
        self._logits = logits
        self._vocab_size = vocab_size
        blocks = [-(-vocab_size // ids) for ids in (_SCANNED, _GROUP)]
        sizes = [_SCRATCH_BYTES, _BEST_BYTES * blocks[0], 4 * vocab_size, 4 * blocks[1]]
        self._parts = [memory.allocate(size, Use.WORKSPACE) for size in sizes]
        memory.driver.fill(self._parts[0], 0, _SCRATCH_BYTES)

    def launch(self, pointer: Address, *, rows: int) -> None:
        """For the answer whose slot's address stands at `pointer`; nothing happens where that is 0. rows:
        tokens of the step.
        """
        scratch, best, keys, nearest = self._parts
        arguments = Draws(
            draw=pointer,
            turn=self._turn,
            logits=self._logits,
            scratch=scratch,
            best=best,
            keys=keys,
            nearest=nearest,
            vocabulary=self._vocab_size,
            rows=rows,
        )
        for name, ids in (("scan_logits", _SCANNED), ("choose_token", _COUNTED)):
            self._kernels.launch(name, arguments, grid=(-(-self._vocab_size // ids), 1, 1))


class DrawSlot:
    """What one answer at a time has on the card, and where the card leaves what it drew."""

    def __init__(self, memory: CardMemory, vocab_size: int) -> None:
        """Raises OutOfMemoryError, and then nothing is held."""
        self._driver = driver = memory.driver
        self._vocab_size = vocab_size
        self._letterbox = driver.open_letterbox(_RESULTS * ctypes.sizeof(Drawn))
        self._marks = [driver.new_mark(ahead=False) for _ in range(_IN_FLIGHT)]
        self._started = self._taken = 0
        self.address = memory.allocate(ctypes.sizeof(Draw) + 4 * -(-vocab_size // 32), Use.WORKSPACE)

    @property
    def in_flight(self) -> int:
        """Draws that were started and not taken yet."""
        return self._started - self._taken

    def begin(self, params: SamplingParams, *, seed: int | None, history: Sequence[int]) -> None:
        """Another answer: what comes of draws that are in flight is nobody's any more."""
        import numpy as np

        draw = Draw(
            seed=seed or 0,
            results=self._letterbox.address,
            top_p=params.top_p,
            least_weight=least_weight(params.min_p),
            temperature=max(params.temperature, LEAST_TEMPERATURE),
            penalty=params.repetition_penalty,
            top_k=min(params.top_k, _LONGEST),
            is_greedy=params.temperature == 0,
        )
        parts = [np.frombuffer(bytes(draw), np.uint8)]
        if params.repetition_penalty != 1:
            parts.append(self._occurrences(history))
        self._driver.upload(self.address, np.concatenate(parts))
        self._letterbox.contents.fill(0xFF)  # the number of no draw
        self._started = self._taken = 0

    def started(self) -> None:
        """A draw was launched. There may be two in flight."""
        assert self.in_flight < _IN_FLIGHT
        self._driver.mark_work(self._marks[self._started % _IN_FLIGHT])
        self._started += 1

    def take(self) -> int | None:
        """Waits for the token that was drawn first of those in flight. None: its logits are no numbers."""
        assert self.in_flight
        self._driver.wait(self._marks[self._taken % _IN_FLIGHT])
        index, token, fault = self._result(self._taken)
        assert index == self._taken, "the card drew another token than it was asked for"
        self._taken += 1
        return None if fault else token

    def peek(self) -> tuple[int, int, int]:
        """What the first draw since `begin` left, once somebody has waited for it: index, token, fault."""
        return self._result(0)

    def _result(self, index: int) -> tuple[int, int, int]:
        size = ctypes.sizeof(Drawn)
        start = index % _RESULTS * size
        drawn = Drawn.from_buffer_copy(self._letterbox.contents[start : start + size].tobytes())
        return drawn.index, drawn.token, drawn.fault

    def _occurrences(self, history: Sequence[int]) -> npt.NDArray[np.uint8]:
        """A bit for each id, in words of 32."""
        import numpy as np

        occurs = np.zeros(-(-self._vocab_size // 32) * 32, np.bool_)
        occurs[np.fromiter(history, np.int64, len(history))] = True
        return as_bytes(np.packbits(occurs, bitorder="little"))


class DrawSlots:
    """As many as there ever were answers at a time: none is freed while the model is in use."""

    def __init__(self, memory: CardMemory, vocab_size: int) -> None:
        """The first one is made. Raises OutOfMemoryError."""
        self._memory = memory
        self._vocab_size = vocab_size
        self._idle = [DrawSlot(memory, vocab_size)]

    def take(self) -> DrawSlot | None:
        """For the caller alone. None: no memory for one more."""
        if self._idle:
            return self._idle.pop()
        try:
            return DrawSlot(self._memory, self._vocab_size)
        except OutOfMemoryError:
            return None  # the computer draws, as for a model that runs there

    def give_back(self, slot: DrawSlot) -> None:
        """Also while draws are in flight, and once the card has failed."""
        self._idle.append(slot)
