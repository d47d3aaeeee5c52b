"""How a person wants one model to run: chosen on its card before it is loaded, and remembered by its path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from engine.config import EngineConfig, KvChoice, WeightsChoice

MAX_REMEMBERED_RUNS = 100  # models
MAX_CONTEXT = 2**31 - 1  # tokens


@dataclass(frozen=True)
class RunChoice:
    """context: tokens; None: as the settings say for every model."""

    context: int | None = None
    weights: WeightsChoice = "auto"
    kv: KvChoice = "auto"

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> RunChoice:
        """What `as_values` made; what can't be used of it is left to the program."""
        context, weights, kv = (values.get(name) for name in ("context", "weights", "kv"))
        fits = isinstance(context, int) and not isinstance(context, bool) and 0 < context <= MAX_CONTEXT
        return cls(
            context=context if fits else None,
            weights=next((each for each in get_args(WeightsChoice) if each == weights), "auto"),
            kv=next((each for each in get_args(KvChoice) if each == kv), "auto"),
        )

    def as_values(self) -> dict[str, Any]:
        return {"context": self.context, "weights": self.weights, "kv": self.kv}

    def applied_to(self, config: EngineConfig) -> EngineConfig:
        context = config.context if self.context is None else self.context
        return replace(config, context=context, weights=self.weights, kv=self.kv)


def with_run(runs: Mapping[Path, RunChoice], model_path: Path, choice: RunChoice) -> dict[Path, RunChoice]:
    """What is remembered, with this. A choice of nothing is forgotten; beyond the most that are kept, so is
    the one that was made longest ago.
    """
    remembered = {path: one for path, one in runs.items() if path != model_path}
    if choice != RunChoice():
        remembered[model_path] = choice
    return dict(list(remembered.items())[-MAX_REMEMBERED_RUNS:])
