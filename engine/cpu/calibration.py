"""What the inputs of each matrix are like over some text, by which 4-bit codes are chosen.

The text goes through the model one layer at a time, with the layer's weights as they were stored, just before
these become strips. So it costs one pass over the text and never needs two layers at once.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from engine.cpu.layers import LayerRunner
from engine.cpu.matrices import Matrix
from engine.cpu.model import DenseWeights, LayerWeights
from engine.cpu.paged_attention import OwnRows
from engine.errors import Cancelled
from engine.weights.input_statistics import InputObserver, InputStatistics

SEGMENT = 256  # tokens that are read as one text: every first token, which is unlike the others, counts
_ENOUGH_TOKENS = 64  # of an expert of its own; one that saw fewer shares what all experts saw together

_WORK = 2e12  # tokens times numbers: what two slow cores read in half a minute
_FEWEST_TOKENS, _MOST_TOKENS = 512, 4096
_LARGE = 1e9  # numbers; what is larger gets by with half of the work on each


@dataclass(frozen=True)
class CalibrationEffort:
    """What a load has time for. num_tokens: of the text; widest_block: of the moments; sweeps: over codes."""

    num_tokens: int
    widest_block: int
    sweeps: int


def effort_for(num_elements: int) -> CalibrationEffort:
    """For a model of so many numbers."""
    tokens = min(_MOST_TOKENS, max(_FEWEST_TOKENS, int(_WORK / max(1, num_elements))))
    large = num_elements > _LARGE
    return CalibrationEffort(tokens, widest_block=512 if large else 1024, sweeps=1 if large else 2)


LayerStatistics = Mapping[str, Sequence[InputStatistics | None]]
"""By the parameter's name within its layer, one for each of its matrices. None: unknown."""


@dataclass(frozen=True)
class _Observed:
    """A matrix that notes what it is multiplied with."""

    matrix: Matrix
    observer: InputObserver

    @property
    def num_bytes(self) -> int:
        return self.matrix.num_bytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.observer.add(x)
        return self.matrix(x)


class Calibration:
    """The hidden states of a text, at one layer after the other."""

    def __init__(
        self,
        hidden: torch.Tensor,
        *,
        norm_eps: float,
        widest_block: int,
        cancel: threading.Event | None,
    ) -> None:
        """hidden (T, H), the embeddings of the text; changed in place. widest_block: of the moments of what
        comes next to each other in a matrix's inputs, see `InputObserver`.
        """
        self._segments = torch.split(hidden, SEGMENT)
        self._runner = LayerRunner(norm_eps)
        self._widest_block = widest_block
        self._cancel = cancel

    def run(self, layer: LayerWeights) -> LayerStatistics:
        """Takes the text through one layer. Raises Cancelled between segments."""
        observed, found = _observe(layer, self._widest_block)
        for hidden in self._segments:
            if self._cancel is not None and self._cancel.is_set():
                raise Cancelled
            self._runner.run(observed, hidden, OwnRows(), index=0)
        return found.statistics()

    def hidden_statistics(self, norm: torch.Tensor, eps: float) -> InputStatistics | None:
        """Those of the head: the hidden states as they are now, behind the final norm. Frees them."""
        from engine.cpu.ops import rms_norm

        observer = InputObserver(norm.shape[-1], widest_block=self._widest_block)
        for hidden in self._segments:
            observer.add(rms_norm(hidden, norm, eps))
        self._segments = ()
        return observer.statistics()


@dataclass(frozen=True)
class _Observers:
    """Of one layer. `gate_up` is one for all experts, which share their input; `down` is one for each."""

    qkv: InputObserver
    output: InputObserver
    gate_up: InputObserver
    down: Sequence[InputObserver]
    experts: bool

    def statistics(self) -> LayerStatistics:
        prefix = "experts." if self.experts else ""
        return {
            "qkv": [self.qkv.statistics()],
            "output": [self.output.statistics()],
            f"{prefix}gate_up": [self.gate_up.statistics()] * len(self.down),
            f"{prefix}down": self._each_expert() if self.experts else [self.down[0].statistics()],
        }

    def _each_expert(self) -> list[InputStatistics | None]:
        """Those that saw few tokens share what all experts saw together."""
        pooled = self.pooled_down.statistics()
        return [own.statistics() if own.num_tokens >= _ENOUGH_TOKENS else pooled for own in self.down]

    @property
    def pooled_down(self) -> InputObserver:
        pooled = InputObserver(self.down[0].num_inputs, widest_block=0)
        for each in self.down:
            pooled.take_in(each)
        return pooled


def _observe(layer: LayerWeights, widest_block: int) -> tuple[LayerWeights, _Observers]:
    """The layer with matrices that note their inputs."""
    attention, feed_forward = layer.attention, layer.feed_forward
    hidden_size = len(layer.feed_forward_norm)
    is_dense = isinstance(feed_forward, DenseWeights)
    num_experts = 1 if isinstance(feed_forward, DenseWeights) else feed_forward.spec.num_experts
    observers = _Observers(
        qkv=InputObserver(hidden_size, widest_block=widest_block),
        output=InputObserver(attention.spec.q_dim, widest_block=widest_block),
        gate_up=InputObserver(hidden_size, widest_block=widest_block),
        # An expert sees few tokens, and there are many of them: their moments would be large and mean little.
        down=[
            InputObserver(layer.intermediate_size, widest_block=widest_block if is_dense else 0)
            for _ in range(num_experts)
        ],
        experts=not is_dense,
    )
    attention = replace(
        attention,
        qkv=_Observed(attention.qkv, observers.qkv),
        output=_Observed(attention.output, observers.output),
    )
    if isinstance(feed_forward, DenseWeights):
        observed = replace(
            feed_forward,
            gate_up=_Observed(feed_forward.gate_up, observers.gate_up),
            down=_Observed(feed_forward.down, observers.down[0]),
        )
        return replace(layer, attention=attention, feed_forward=observed), observers
    mixture = replace(
        feed_forward,
        router=_Observed(feed_forward.router, observers.gate_up),  # it sees what every expert may see
        down=[_Observed(*pair) for pair in zip(feed_forward.down, observers.down, strict=True)],
    )
    return replace(layer, attention=attention, feed_forward=mixture), observers
