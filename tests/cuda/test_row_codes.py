"""Rows in 8 bits: what the card makes of them is what the CPU computes with."""

from __future__ import annotations

import pytest
import torch
from workbench import Workbench, random

from engine.config import Activations
from engine.cpu.activations import rounded

FORMS: list[Activations] = ["int8", "int8x2"]


@pytest.mark.parametrize("form", FORMS)
def test_the_card_s_rows_are_the_cpu_s(form: Activations, workbench: Workbench) -> None:
    """Down to zeros, denormal numbers and what is no number."""
    x = random(300, 96) * torch.logspace(-30, 30, 300)[:, None]
    x[0], x[1, :32], x[2, 50], x[3, 70] = 0.0, 0.0, float("nan"), float("-inf")
    x[4, 32:64] = torch.tensor([1e-38, -1e-40] * 16)
    x[5, :32] = torch.arange(-16, 16) / 254  # halves
    codes = workbench.codes_of(workbench.activation(x, form), 300)
    steps = codes["high"].int()
    if form == "int8x2":
        steps = steps * 254 + codes["low"]
    made = (steps.float().view(300, 3, 32) * codes["scales"][..., None]).view(300, 96)
    assert torch.equal(made.nan_to_num(1.5), rounded(x, form).nan_to_num(1.5))
    assert torch.equal(made.isnan(), rounded(x, form).isnan())
    assert torch.equal(codes["sums"], steps.view(300, 3, 32).sum(-1).float())


@pytest.mark.parametrize("width", [2048, 2080, 4096, 4128, 6176])
def test_rows_of_more_than_a_block_reads_at_once_are_whole(width: int, workbench: Workbench) -> None:
    x = random(2, width)
    codes = workbench.codes_of(workbench.activation(x, "int8"), 2)
    made = codes["high"].float().view(2, width // 32, 32) * codes["scales"][..., None]
    assert torch.equal(made.view(2, width), rounded(x, "int8"))


@pytest.mark.parametrize(("form", "steps"), [("int8", 127), ("int8x2", 127 * 254)])
def test_a_scale_is_the_same_part_of_the_largest_number(
    form: Activations, steps: int, workbench: Workbench
) -> None:
    """The compilers of the card and of the computer round 1 / 32258 to one float32."""
    x = torch.zeros(1, 32)
    x[0, 9] = -1.0
    found = workbench.codes_of(workbench.activation(x, form), 1)["scales"]
    assert found.item() == torch.tensor(1 / steps, dtype=torch.float32).item()
    assert found.item() == (torch.tensor(1.0) / torch.tensor(float(steps))).item()
