"""Turns the choices of a person ("auto", nothing) into what a load really does. The one place where that
happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.config import EngineConfig
from engine.errors import SettingError
from engine.models.spec import ModelSpec
from engine.notices import Notice
from engine.runtime import default_threads

_MAX_THREADS = 1024


@dataclass(frozen=True)
class ResolvedConfig:
    """What holds for one loaded model; nothing is left to be decided."""

    device: Literal["cpu"]
    weights: Literal["native"]
    kv: Literal["native"]
    activations: Literal["float"]
    context: int  # tokens, prompt and answer together
    slots: int  # conversations whose caches are kept
    threads: int


def resolve_config(config: EngineConfig, spec: ModelSpec) -> tuple[ResolvedConfig, tuple[Notice, ...]]:
    """Raises SettingError for what this version can't do or what makes no sense."""
    if config.device == "cuda":
        raise SettingError(
            "The device 'cuda' is not available: this version computes on the CPU.", "Choose 'cpu' or 'auto'."
        )
    _require_available("weights", config.weights, ("auto", "native"))
    _require_available("kv", config.kv, ("auto", "native"))
    _require_available("activations", config.activations, ("auto", "float"))
    resolved = ResolvedConfig(
        device="cpu",
        weights="native",
        kv="native",
        activations="float",
        context=_context(config.context, spec),
        slots=_at_least_one("slots", config.slots),
        threads=_threads(config.threads),
    )
    return resolved, tuple(_notices(config))


def _notices(config: EngineConfig) -> list[Notice]:
    notices = []
    if config.device == "auto":
        notices.append(
            Notice(
                "device-cpu",
                "The model runs on the CPU: this version uses no graphics card.",
            )
        )
    if config.vram_budget is not None:
        notices.append(
            Notice("vram-budget-unused", "The VRAM budget has no effect: the model runs on the CPU.")
        )
    return notices


def _require_available(setting: str, value: str, available: tuple[str, ...]) -> None:
    if value not in available:
        names = " or ".join(f"'{name}'" for name in reversed(available))
        raise SettingError(
            f"The setting {setting} is '{value}', which this version doesn't have yet.", f"Choose {names}."
        )


def _context(context: int | None, spec: ModelSpec) -> int:
    if context is None:
        return spec.context_length
    if _at_least_one("context", context) > spec.context_length:
        raise SettingError(
            f"The context is set to {context} tokens, but the model was made for {spec.context_length}.",
            f"Choose at most {spec.context_length}.",
        )
    return context


def _threads(threads: int | None) -> int:
    if threads is None:
        return default_threads()
    if _at_least_one("threads", threads) > _MAX_THREADS:
        raise SettingError(f"The setting threads is {threads}; at most {_MAX_THREADS} make sense.")
    return threads


def _at_least_one(setting: str, value: int) -> int:
    if value < 1:
        raise SettingError(f"The setting {setting} is {value}; it must be at least 1.")
    return value
