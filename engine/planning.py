"""What a load would do, from a model's configuration and the headers of its files alone. No torch.

It asks what the load asks (`resolve_config`, `plan_on_card`), with the memory that was free when somebody
looked, so that it may be asked again and again while a person tries other settings.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace

from engine.card_loading import fallback_notice
from engine.config import EngineConfig, WeightFormat, WeightGroup
from engine.cpu.memory import RESERVE_BYTES, available_bytes, total_bytes
from engine.cuda.availability import NoCard, card_free_bytes
from engine.cuda.card_plan import plan_on_card
from engine.cuda.driver import CardInfo
from engine.cuda.matrix_sizes import CardSizes, WeightForms, card_sizes
from engine.errors import EngineError, OutOfMemoryError, SettingError, UnsupportedModelError
from engine.kv_geometry import PAGE, KvGeometry, pages_for
from engine.load_plan import Freed, LoadPlan
from engine.models.spec import ModelSpec, Parameter
from engine.notices import Notice
from engine.resolution import ResolvedConfig, resolve_config
from engine.weights.packing import has_native_strips
from engine.weights.sizes import WeightBytes, native_bytes, weight_bytes
from engine.weights.source import TensorInfo
from engine.weights.strips import BLOCK, Bits

_BITS: Mapping[WeightFormat, Bits | None] = {"native": None, "q8": 8, "q4": 4}


@dataclass(frozen=True)
class Machine:
    """What a model finds. ram_free, ram_total: bytes of the computer's memory. card: see `card_for`.
    card_free: bytes; None where the driver doesn't say.
    """

    ram_free: int
    ram_total: int
    card: CardInfo | NoCard | None = None
    card_free: int | None = None

    @classmethod
    def now(cls, card: CardInfo | NoCard | None) -> Machine:
        free = card_free_bytes() if isinstance(card, CardInfo) else None
        return cls(available_bytes(), total_bytes(), card, free)

    def after(self, freed: Freed) -> Machine:
        """Once that is free as well."""
        free, card = self.card_free, self.card
        if free is not None and isinstance(card, CardInfo):
            free = min(card.total_bytes, free + freed.card)
        return replace(self, ram_free=min(self.ram_total, self.ram_free + freed.ram), card_free=free)


class LoadPlanner:
    """Of one model. What its headers say is read once; a plan then takes some milliseconds at most."""

    def __init__(
        self,
        spec: ModelSpec,
        parameters: tuple[Parameter, ...],
        tensors: Mapping[str, TensorInfo],
        machine: Machine,
        *,
        group: WeightGroup = 32,
    ) -> None:
        """group: of the strips that a plan is for where no other is asked for."""
        self._spec = spec
        self._parameters = parameters
        self._tensors = tensors
        self._machine = machine
        self._has_strips = has_native_strips(parameters, tensors)
        self._bytes: dict[WeightGroup, WeightBytes] = {}
        self._on_card: dict[WeightForms, CardSizes] = {}
        self._native = {wide: native_bytes(parameters, tensors, wide=wide) for wide in (False, True)}
        if isinstance(machine.card, CardInfo):  # for whoever moves a slider
            for weights in _BITS:
                self._card_sizes(self._forms(weights, group))
        self._sizes(group)

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    def after(self, freed: Freed) -> LoadPlanner:
        """Of the same model, once that is free as well."""
        planner = copy.copy(self)
        planner._machine = self._machine.after(freed)
        return planner

    def plan(self, config: EngineConfig) -> LoadPlan:
        """Never raises EngineError."""
        card = None if config.device == "cpu" else self._machine.card
        if isinstance(card, NoCard) and config.device == "cuda":
            return self._refused(config, card.as_error())
        try:
            resolved, _ = resolve_config(
                config,
                self._spec,
                sizes=self._sizes(config.weight_group),
                available=self._machine.ram_free,
                card=card,
                stored_packed=self._has_strips,
            )
        except SettingError as error:
            return self._refused(config, error)
        on_cpu = self._on_cpu(resolved)
        if not on_cpu.is_loadable:
            return on_cpu
        if isinstance(card, NoCard):
            return replace(on_cpu, problem=card.as_notice())
        return on_cpu if card is None else self._with_card(config, resolved, card, on_cpu)

    def _with_card(
        self, config: EngineConfig, resolved: ResolvedConfig, card: CardInfo, on_cpu: LoadPlan
    ) -> LoadPlan:
        """As `load_on_card`. on_cpu: what comes of it where that fails."""
        free = self._machine.card_free
        known = free is not None
        free = card.total_bytes if free is None else free
        try:
            found = plan_on_card(
                self._spec,
                self._card_sizes(self._forms(resolved.weights, resolved.weight_group)),
                card,
                free=free,
                host_bytes=on_cpu.weight_bytes,
                activations=resolved.activations,
                context=resolved.context,
                kv=resolved.kv,
                vram_budget=config.vram_budget,
                window=config.window,
            )
        except (OutOfMemoryError, UnsupportedModelError) as error:
            return replace(on_cpu, problem=fallback_notice(error))
        return replace(
            on_cpu,
            device="cuda",
            window=found.window,
            weight_bytes=found.weight_bytes,
            workspace_bytes=found.workspace_bytes,
            cache_bytes=found.cache_bytes,
            free_bytes=free if config.vram_budget is None else min(free, config.vram_budget),
            total_bytes=card.total_bytes,
            tokens=found.tokens,
            free_is_known=known,
        )

    def _on_cpu(self, resolved: ResolvedConfig) -> LoadPlan:
        geometry = KvGeometry.of(self._spec, resolved.kv)
        room = self._machine.ram_free - RESERVE_BYTES
        num_bytes = self._host_bytes(resolved)
        pages = pages_for(resolved.context)
        left = max(0, room - num_bytes) // geometry.page_bytes if geometry.page_bytes else pages
        plan = LoadPlan(
            device="cpu",
            weights=resolved.weights,
            kv=resolved.kv,
            context=resolved.context,
            layers=self._spec.num_layers,
            window=None,
            weight_bytes=num_bytes,
            workspace_bytes=0,
            cache_bytes=pages * geometry.page_bytes,
            free_bytes=max(0, room),
            total_bytes=self._machine.ram_total,
            tokens=min(resolved.context, left * PAGE),
            ram_bytes=num_bytes,
            ram_free_bytes=max(0, room),
        )
        if num_bytes <= room:
            return plan
        problem = Notice(
            "memory-short",
            "The weights don't fit into this computer's memory.",
            "Close other programs, choose fewer bits for the weights, or choose a smaller model.",
        )
        return replace(plan, is_loadable=False, problem=problem)

    def _refused(self, config: EngineConfig, error: EngineError) -> LoadPlan:
        """With what is known all the same."""
        weights: WeightFormat = "q4" if config.weights == "auto" else config.weights
        context = min(config.context or self._spec.context_length, self._spec.context_length)
        found = ResolvedConfig(
            device="cpu",
            weights=weights,
            weight_group=32,
            kv="native" if config.kv == "native" else "int8",
            activations="float",
            context=max(1, context),
            slots=max(1, config.slots),
            threads=1,
        )
        problem = Notice(error.code, error.message, error.hint)
        return replace(self._on_cpu(found), is_loadable=False, problem=problem)

    def _host_bytes(self, resolved: ResolvedConfig) -> int:
        if resolved.weights == "native" and not self._has_strips:
            return self._native[self._is_wide]
        return self._sizes(resolved.weight_group).of(resolved.weights)

    @property
    def _is_wide(self) -> bool:
        """Whether weights that are not packed become float32: where there is room for that."""
        return not self._has_strips and self._native[True] <= max(0, self._machine.ram_free - RESERVE_BYTES)

    def _forms(self, weights: WeightFormat, group: WeightGroup) -> WeightForms:
        wide = weights == "native" and self._is_wide
        return WeightForms(_BITS[weights], BLOCK if weights == "native" else group, wide)

    def _sizes(self, group: WeightGroup) -> WeightBytes:
        if group not in self._bytes:
            self._bytes[group] = weight_bytes(self._spec, self._parameters, self._tensors, group=group)
        return self._bytes[group]

    def _card_sizes(self, forms: WeightForms) -> CardSizes:
        if forms not in self._on_card:
            self._on_card[forms] = card_sizes(self._spec, self._parameters, self._tensors, forms)
        return self._on_card[forms]
