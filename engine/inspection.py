"""What can be said of a model without loading it: the model card, and `inspect` on the command line.

Headers only, no torch. Every problem that is found stands in the report; none of them is raised.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from engine.checkpoints.model_folder import read_parts
from engine.checkpoints.model_parts import ModelParts, Problems
from engine.config import EngineConfig
from engine.cpu.memory import RESERVE_BYTES, available_bytes
from engine.cuda.availability import NoCard, find_card
from engine.cuda.driver import CardInfo
from engine.cuda.page_pool import cache_bytes
from engine.kv_geometry import KvGeometry, pages_for
from engine.load_plan import Freed, LoadPlan
from engine.models.spec import ModelSpec
from engine.notices import Notice
from engine.planning import LoadPlanner, Machine
from engine.resolution import most_of_card, room_for_weights
from engine.weights.sizes import WeightBytes, kv_bytes_per_token, kv_bytes_per_token_native, weight_bytes
from engine.weights.source import TensorInfo
from engine.weights.strips import GROUPS

USUAL_CONTEXT = 4096  # tokens that a chat is given room for when nothing else is asked for


@dataclass(frozen=True)
class Fit:
    """Whether weights and cache fit into one kind of memory, for each format of the weights.

    available_bytes: of the computer's memory what is free; of the card's all of it, or the budget.
    """

    available_bytes: int
    context: int  # tokens of cache that are counted
    native: bool
    q8: bool
    q4: bool

    def as_json(self) -> dict[str, Any]:
        return {
            "available_bytes": self.available_bytes,
            "context": self.context,
            "native": self.native,
            "q8": self.q8,
            "q4": self.q4,
        }


@dataclass(frozen=True)
class ModelReport:
    """Numbers are 0 and texts empty where a problem kept them from being found out."""

    path: Path
    name: str
    kind: Literal["safetensors", "gguf"]
    architecture: str  # class name as the checkpoint gives it
    family: str  # name for people
    parameters: int  # numbers in all tensors of the language model
    file_bytes: int
    layers: int
    context_length: int  # tokens
    kv_bytes_per_token: int  # int8 cache
    kv_bytes_per_token_native: int  # float32 cache
    weight_bytes: WeightBytes
    fits: Mapping[str, Fit]  # by kind of memory: "ram", and "vram" where there is a card
    problems: tuple[Notice, ...]  # what keeps the model from being loaded
    notices: tuple[Notice, ...]  # what will be left out, assumed or changed
    card: CardInfo | NoCard | None = None  # that it would run on, or why there is none; None: not asked for
    config: EngineConfig = field(default_factory=EngineConfig)  # that it was asked with
    planner: LoadPlanner | None = None  # None where a problem keeps the model from being loaded

    @property
    def card_name(self) -> str:
        """ "" where there is no card to run on, or none was asked for."""
        return self.card.name if isinstance(self.card, CardInfo) else ""

    def plan(self, config: EngineConfig, *, freed: Freed | None = None) -> LoadPlan | None:
        """What a load with these choices would do, with the memory that was free when the report was made
        and what is freed before it.
        """
        if self.planner is None:
            return None
        planner = self.planner if freed is None else self.planner.after(freed)
        return planner.plan(config)

    def as_json(self) -> dict[str, Any]:
        plan = self.plan(self.config)
        return {
            "path": str(self.path),
            "name": self.name,
            "kind": self.kind,
            "architecture": self.architecture,
            "family": self.family,
            "parameters": self.parameters,
            "file_bytes": self.file_bytes,
            "layers": self.layers,
            "context_length": self.context_length,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_bytes_per_token_native": self.kv_bytes_per_token_native,
            "weight_bytes": self.weight_bytes.as_json(),
            "card": self.card_name or None,
            "fits": {memory: fit.as_json() for memory, fit in self.fits.items()},
            "plan": None if plan is None else plan.as_json(),
            "problems": [problem.as_json() for problem in self.problems],
            "notices": [notice.as_json() for notice in self.notices],
        }


def inspect_model(path: Path, config: EngineConfig = EngineConfig()) -> ModelReport:  # noqa: B008  (frozen)
    """Looks at a model folder or a GGUF file. Never raises EngineError."""
    problems = Problems(collect=True)
    parts = read_parts(path, problems)
    try:
        return _report(parts, problems.found, config)
    finally:
        parts.close()


def _report(parts: ModelParts, problems: list[Notice], config: EngineConfig) -> ModelReport:
    spec = parts.spec
    stored = {} if parts.tensors is None else parts.tensors.tensors()
    size = WeightBytes(0, 0, 0) if spec is None else _sizes(spec, parts, stored, config)
    card = None if config.device == "cpu" else find_card()
    if config.device == "cuda" and isinstance(card, NoCard):
        problems = [*problems, _card_missing(card)]
    return ModelReport(
        path=parts.path,
        name=parts.name,
        kind=parts.kind,
        architecture=parts.architecture,
        family="" if spec is None else spec.family,
        parameters=sum(math.prod(parameter.shape) for parameter in parts.parameters),
        file_bytes=parts.file_bytes,
        layers=0 if spec is None else spec.num_layers,
        context_length=0 if spec is None else spec.context_length,
        kv_bytes_per_token=0 if spec is None else kv_bytes_per_token(spec),
        kv_bytes_per_token_native=0 if spec is None else kv_bytes_per_token_native(spec),
        weight_bytes=size,
        fits={} if spec is None else _fits(spec, size, config, card),
        problems=tuple(problems),
        notices=tuple(parts.notices),
        card=card,
        config=config,
        planner=None if spec is None or problems else _planner(spec, parts, stored, config, card),
    )


def _planner(
    spec: ModelSpec,
    parts: ModelParts,
    stored: Mapping[str, TensorInfo],
    config: EngineConfig,
    card: CardInfo | NoCard | None,
) -> LoadPlanner:
    group = config.weight_group if config.weight_group in GROUPS else EngineConfig.weight_group
    return LoadPlanner(spec, tuple(parts.parameters), dict(stored), Machine.now(card), group=group)


def _card_missing(card: NoCard) -> Notice:
    """Where the person asked for one: a load would be refused."""
    hint = "Or choose the CPU for the model, or have the device chosen automatically."
    return Notice(
        card.code, f"The model is to run on a card, but {card.reason}.", f"{card.hint} {hint}".lstrip()
    )


def _sizes(
    spec: ModelSpec, parts: ModelParts, stored: Mapping[str, TensorInfo], config: EngineConfig
) -> WeightBytes:
    """A group that there isn't is refused by the load; here it is the usual one."""
    group = config.weight_group if config.weight_group in GROUPS else EngineConfig.weight_group
    return weight_bytes(spec, parts.parameters, stored, group=group)


def _fits(
    spec: ModelSpec, size: WeightBytes, config: EngineConfig, card: CardInfo | NoCard | None
) -> Mapping[str, Fit]:
    """Weights, a cache of the length that was asked for (or a usual one), and what others need."""
    context = min(config.context or USUAL_CONTEXT, spec.context_length)
    geometry = KvGeometry.of(spec, "native" if config.kv == "native" else "int8")
    cache = context * geometry.token_bytes

    def fit(available: int, room: int) -> Fit:
        return Fit(available, context, native=size.native <= room, q8=size.q8 <= room, q4=size.q4 <= room)

    ram = available_bytes()
    fits = {"ram": fit(ram, ram - RESERVE_BYTES - cache)}
    if isinstance(card, CardInfo):
        most = most_of_card(card, config.vram_budget)
        pages = pages_for(context)
        on_card = cache_bytes(geometry, pages, capacity=pages)
        fits["vram"] = fit(most, min(room_for_weights(card, config.vram_budget), most - on_card))
    return fits
