"""What a load would do, as a plain record: told before anything is loaded. See `engine/planning.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from engine.config import WeightFormat
from engine.kv_geometry import KvFormat
from engine.notices import Notice


@dataclass(frozen=True)
class Freed:
    """Bytes that come free before a load, because a model that is loaded goes: of the computer's memory, and
    of the card's.
    """

    ram: int = 0
    card: int = 0


@dataclass(frozen=True)
class LoadPlan:
    """Bytes where nothing else is said, of the memory in which the model would compute: the card's, or the
    computer's.

    weights: what they are packed to. window: layers on the card at a time; None: all, or no card.
    weight_bytes, workspace_bytes: that are taken at load. cache_bytes: of a conversation that fills the
    context. free_bytes: before the load; where `free_is_known` is false, all that there is. tokens: of a
    conversation that fits in what is left, no more than the context. ram_bytes: of the computer's memory for
    the weights, which are there, too. problem: why nothing would be loaded, or why the processor would
    compute though a card was asked for or looked for.
    """

    device: Literal["cpu", "cuda"]
    weights: WeightFormat
    kv: KvFormat
    context: int
    layers: int
    window: int | None
    weight_bytes: int
    workspace_bytes: int
    cache_bytes: int
    free_bytes: int
    total_bytes: int
    tokens: int
    ram_bytes: int
    ram_free_bytes: int
    free_is_known: bool = True
    is_loadable: bool = True
    problem: Notice | None = None

    @property
    def left_bytes(self) -> int:
        """With a conversation that fills the context; below 0 where it doesn't fit."""
        return self.free_bytes - self.weight_bytes - self.workspace_bytes - self.cache_bytes

    def as_json(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "weights": self.weights,
            "kv": self.kv,
            "context": self.context,
            "layers": self.layers,
            "window": self.window,
            "bytes": {
                "weights": self.weight_bytes,
                "workspace": self.workspace_bytes,
                "cache": self.cache_bytes,
            },
            "free_bytes": self.free_bytes,
            "free_is_known": self.free_is_known,
            "tokens": self.tokens,
            "loadable": self.is_loadable,
            "problem": None if self.problem is None else self.problem.as_json(),
        }
