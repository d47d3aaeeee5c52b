"""What a person may choose about how a model runs. Frozen; "auto" is resolved once, at load."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DeviceChoice = Literal["auto", "cpu", "cuda"]
WeightsChoice = Literal["auto", "native", "q8", "q4"]
WeightFormat = Literal["native", "q8", "q4"]  # what a choice is resolved to
WeightGroup = Literal[32, 256]  # inputs of a packed matrix that share a scale
KvChoice = Literal["auto", "native", "int8"]
ActivationsChoice = Literal["auto", "float", "int8", "int8x2"]
Activations = Literal["float", "int8", "int8x2"]  # how rows go into products with packed weights

DEFAULT_SLOTS = 8


@dataclass(frozen=True)
class EngineConfig:
    """Choices as given. `context` of None means the model's own length; `threads` of None all cores of
    the machine; a budget of None what `engine.conversation_states` takes for a fair share, and 0 nothing.
    """

    device: DeviceChoice = "auto"
    weights: WeightsChoice = "auto"
    weight_group: WeightGroup = 32
    kv: KvChoice = "auto"
    activations: ActivationsChoice = "auto"
    context: int | None = None  # tokens
    vram_budget: int | None = None  # bytes
    window: int = 0  # layers whose weights are on the card at a time; 0: all, or as many as fit
    slots: int = DEFAULT_SLOTS
    threads: int | None = None
    state_ram_budget: int | None = None  # bytes, for conversations that are not in the pool
    state_disk_budget: int | None = None  # bytes, for those and for the next start
    states_folder: Path | None = None  # where the latter are kept; None: in the person's data folder
    keep_states: bool = True  # on disk: the next start goes on without reading conversations again
