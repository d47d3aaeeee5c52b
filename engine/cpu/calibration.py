"""What the inputs of each matrix are like over some text: mean squares, by which 4-bit codes are chosen.

The text goes through the model one layer at a time, with the layer's weights as they were stored, just before
these become strips. So it costs one pass over the text and never needs two layers at once.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from engine.cpu.kv_cache import KvCache
from engine.cpu.layers import LayerRunner
from engine.cpu.matrices import Matrix
from engine.cpu.model import DenseWeights, LayerWeights
from engine.errors import Cancelled

SEGMENT = 512  # tokens that are read as one text
_ENOUGH_TOKENS = 64  # of an expert of its own; one that saw fewer shares what all experts saw together

Importance = Mapping[str, Sequence[torch.Tensor | None]]
"""Mean squares (K,) by the parameter's name within its layer, one for each of its matrices. None: unknown."""


class SecondMoment:
    """Sum of squares of rows, in float64, and how many rows there were."""

    def __init__(self, size: int) -> None:
        self.total = torch.zeros(size, dtype=torch.float64)
        self.count = 0

    def add(self, x: torch.Tensor) -> None:
        """x (T, K)"""
        self.total += x.double().square().sum(0)
        self.count += len(x)

    def mean(self) -> torch.Tensor | None:
        """(K,) float64; None before anything was added, or if not all of it were numbers."""
        if self.count == 0 or not bool(self.total.isfinite().all()):
            return None
        return self.total / self.count


@dataclass(frozen=True)
class _Observed:
    """A matrix that notes what it is multiplied with."""

    matrix: Matrix
    moment: SecondMoment

    @property
    def num_bytes(self) -> int:
        return self.matrix.num_bytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.moment.add(x)
        return self.matrix(x)


class Calibration:
    """The hidden states of a text, at one layer after the other."""

    def __init__(self, hidden: torch.Tensor, *, norm_eps: float, cancel: threading.Event | None) -> None:
        """hidden (T, H), the embeddings of the text; changed in place."""
        self._segments = torch.split(hidden, SEGMENT)
        self._runner = LayerRunner(norm_eps)
        self._cancel = cancel

    def run(self, layer: LayerWeights) -> Importance:
        """Takes the text through one layer. Raises Cancelled between segments."""
        observed, found = _observe(layer)
        for hidden in self._segments:
            if self._cancel is not None and self._cancel.is_set():
                raise Cancelled
            cache = KvCache([layer.attention.spec], max_length=len(hidden))
            cache.reserve(len(hidden))
            self._runner.run(observed, hidden, cache=cache, index=0)
        return found.importance()

    def hidden_importance(self, norm: torch.Tensor, eps: float) -> torch.Tensor | None:
        """That of the head: the hidden states as they are now, behind the final norm."""
        from engine.cpu.ops import rms_norm

        moment = SecondMoment(norm.shape[-1])
        for hidden in self._segments:
            moment.add(rms_norm(hidden, norm, eps))
        return moment.mean()


@dataclass(frozen=True)
class _Moments:
    """Of one layer. `gate_up` is one for all experts, which share their input; `down` is one for each."""

    qkv: SecondMoment
    output: SecondMoment
    gate_up: SecondMoment
    down: Sequence[SecondMoment]
    experts: bool

    def importance(self) -> Importance:
        found: dict[str, Sequence[torch.Tensor | None]] = {
            "qkv": [self.qkv.mean()],
            "output": [self.output.mean()],
        }
        prefix = "experts." if self.experts else ""
        found[f"{prefix}gate_up"] = [self.gate_up.mean()] * len(self.down)
        found[f"{prefix}down"] = [self.down[0].mean()] if not self.experts else self._each_expert()
        return found

    def _each_expert(self) -> list[torch.Tensor | None]:
        pooled = SecondMoment(len(self.down[0].total))
        for moment in self.down:
            pooled.total += moment.total
            pooled.count += moment.count
        return [(own if own.count >= _ENOUGH_TOKENS else pooled).mean() for own in self.down]


def _observe(layer: LayerWeights) -> tuple[LayerWeights, _Moments]:
    """The layer with matrices that note their inputs."""
    attention, feed_forward = layer.attention, layer.feed_forward
    hidden_size = len(layer.feed_forward_norm)
    is_dense = isinstance(feed_forward, DenseWeights)
    num_experts = 1 if isinstance(feed_forward, DenseWeights) else feed_forward.spec.num_experts
    moments = _Moments(
        qkv=SecondMoment(hidden_size),
        output=SecondMoment(attention.spec.q_dim),
        gate_up=SecondMoment(hidden_size),
        down=[SecondMoment(layer.intermediate_size) for _ in range(num_experts)],
        experts=not is_dense,
    )
    attention = replace(
        attention,
        qkv=_Observed(attention.qkv, moments.qkv),
        output=_Observed(attention.output, moments.output),
    )
    if isinstance(feed_forward, DenseWeights):
        observed = replace(
            feed_forward,
            gate_up=_Observed(feed_forward.gate_up, moments.gate_up),
            down=_Observed(feed_forward.down, moments.down[0]),
        )
        return replace(layer, attention=attention, feed_forward=observed), moments
    mixture = replace(
        feed_forward,
        router=_Observed(feed_forward.router, moments.gate_up),  # it sees what every expert may see
        down=[_Observed(*pair) for pair in zip(feed_forward.down, moments.down, strict=True)],
    )
    return replace(layer, attention=attention, feed_forward=mixture), moments
