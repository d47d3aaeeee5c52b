"""Products as the layers of a model ask for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from emulated_card import Counts
from workbench import Workbench

from engine.config import Activations
from engine.cuda.arguments import Activation, Norm
from engine.cuda.matrices import DeviceLinear
from engine.cuda.product_rows import Experts, Normed, Plain
from engine.cuda.products import ProductRunner
from engine.cuda.workspace import Rows
from engine.weights.strips import BLOCK

EPS = 1e-5
MOST_ROWS, MOST_COLUMNS = 32, 4160


class Space:
    """What of a workspace products take."""

    def __init__(self, bench: Workbench) -> None:
        self.x = Rows(
            values=bench.room(MOST_ROWS, MOST_COLUMNS),
            high=bench.room(MOST_ROWS, MOST_COLUMNS, dtype=torch.int8),
            low=bench.room(MOST_ROWS, MOST_COLUMNS, dtype=torch.int8),
            scales=bench.room(MOST_ROWS, MOST_COLUMNS // BLOCK),
            sums=bench.room(MOST_ROWS, MOST_COLUMNS // BLOCK),
        )
        self.gated = replace(self.x, values=bench.room(MOST_ROWS, MOST_COLUMNS))
        self.gate_up = bench.room(MOST_ROWS, MOST_COLUMNS)
        self.router = bench.room(256)
        self.experts = bench.room(256, dtype=torch.int32)
        self.expert_order = bench.room(256, dtype=torch.int32)
        self.expert_tiles = bench.room(3 * 256, dtype=torch.int32)


@dataclass
class Products:
    """Of one form of activations."""

    bench: Workbench
    form: Activations
    launched: list[str] = field(default_factory=list)  # by the last call

    def __post_init__(self) -> None:
        self.space = Space(self.bench)
        self.runner = ProductRunner(
            self.bench.kernels,
            self.space,  # type: ignore[arg-type]
            activations=self.form,
            norm_eps=EPS,
        )

    def noted(self, call: Callable[[], Any]) -> Any:
        self.bench.card.counts = Counts()
        result = call()
        self.launched = sorted(self.bench.card.counts.launches)
        return result

    def run(
        self,
        linear: DeviceLinear,
        x: torch.Tensor | Activation | Normed | Plain,
        *,
        rows: int,
        y: torch.Tensor | None = None,
        experts: Experts | None = None,
    ) -> torch.Tensor:
        """(rows, N), on top of y where there is one."""
        source = self.bench.activation(x, self.form) if isinstance(x, torch.Tensor) else x
        target = self.bench.room(rows, linear.rows) if y is None else self.bench.put(y)
        self.noted(
            lambda: self.runner.run(linear, source, target, rows=rows, adds=y is not None, experts=experts)
        )
        return self.bench.get(target, rows, linear.rows)

    def gates(self, linear: DeviceLinear, x: Normed, rows: int) -> tuple[bool, dict[str, torch.Tensor]]:
        """Whether they are made together, and the codes of what comes of them."""
        gated = self.bench.activation_room(rows, linear.rows // 2, self.form)
        gated.values = 0  # nobody wants them as numbers
        made = self.noted(lambda: self.runner.gates(linear, x, gated, rows=rows))
        return made, self.bench.codes_of(gated, rows) if made else {}

    def normed(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[Normed, Activation]:
        """Rows with their norm before them, and behind it, made by its own kernel."""
        source = Normed(self.bench.put(x), self.bench.put(weight))
        out = self.bench.activation_room(*x.shape, self.form)
        norm = Norm(x=source.values, weight=source.weight, out=out, eps=EPS)
        self.bench.kernels.launch("rms_norm", norm, grid=(len(x), 1, 1))
        return source, out


MakeProducts = Callable[[Activations], Products]
