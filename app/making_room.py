"""Whether a load has room beside the model that is loaded, or that one has to go first. No Qt.

The model that is loaded goes on working until the next one is ready, wherever both have room. Where the next
one would do worse for that (on the processor instead of the card, in fewer bits, with shorter chats), it is
unloaded first.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.load_plan import Freed

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.inspection import ModelReport
    from engine.load_plan import LoadPlan
    from engine.metrics import Metrics

_PRECISION = {"q4": 0, "q8": 1, "native": 2}


@dataclass(frozen=True)
class LoadedModel:
    """freed: what its memory was when somebody last looked."""

    path: Path
    name: str
    freed: Freed

    @classmethod
    def of(cls, path: Path, name: str, metrics: Metrics) -> LoadedModel:
        memory = metrics.memory
        held = memory.weight_bytes + memory.cache_bytes + memory.workspace_bytes
        on_card = memory.card is not None
        return cls(path, name, Freed(memory.host_bytes, held) if on_card else Freed(held))


@dataclass(frozen=True)
class RoomPlan:
    """plan: of the load. loaded: the model that there is. goes_first: it is unloaded before the load, and
    `plan` counts its memory as free; else it goes when the next one is ready.
    """

    plan: LoadPlan
    loaded: LoadedModel | None = None
    goes_first: bool = False

    @property
    def loaded_bytes(self) -> int:
        """Of the memory that the plan is of, what the loaded model has: free, if it goes first."""
        if self.loaded is None:
            return 0
        freed = self.loaded.freed
        return freed.card if self.plan.device == "cuda" else freed.ram


def plan_room(report: ModelReport, config: EngineConfig, loaded: LoadedModel | None) -> RoomPlan | None:
    """None where a problem keeps the model from being loaded at all."""
    beside = report.plan(config)
    if beside is None or loaded is None:
        return None if beside is None else RoomPlan(beside)
    instead = report.plan(config, freed=loaded.freed)
    if instead is not None and _worth(instead) > _worth(beside):
        return RoomPlan(instead, loaded, goes_first=True)
    return RoomPlan(beside, loaded)


def _worth(plan: LoadPlan) -> tuple[int, ...]:
    """What somebody wants first comes first."""
    at_once = plan.layers if plan.window is None else plan.window
    on_card = plan.device == "cuda"
    return plan.is_loadable, on_card, at_once, _PRECISION[plan.weights], plan.tokens
