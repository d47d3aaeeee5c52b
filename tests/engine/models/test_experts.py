"""Four layouts of the same experts become the same parameters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from model_files import WEIGHTS, copy_model, set_config
from safetensors.torch import load_file, save_file

from engine.checkpoints.model_folder import open_model
from engine.cpu.weights import load_parameters
from engine.models.experts import ExpertLayout
from engine.models.spec import MoeSpec
from engine.progress import no_progress
from engine.weights.source import TensorInfo

Stored = dict[str, torch.Tensor]
NUM_EXPERTS = 8


def parameters_of(folder: Path) -> dict[str, torch.Tensor]:
    model = open_model(folder)
    loaded = load_parameters(model.parameters, model.tensors, on_progress=no_progress, cancel=None)
    model.tensors.close()
    return loaded.tensors


def relaid(stored: Stored, make: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Stored]) -> Stored:
    """Replaces experts stored one by one by what `make` gives of gate, up (E, I, H) and down (E, H, I)."""
    changed = {name: tensor for name, tensor in stored.items() if ".experts." not in name}
    stems = {name.split("experts.")[0] + "experts." for name in stored if ".experts." in name}
    for stem in stems:
        gate, up, down = (
            torch.stack([stored[f"{stem}{e}.{part}_proj.weight"] for e in range(NUM_EXPERTS)])
            for part in ("gate", "up", "down")
        )
        changed |= {f"{stem}{name}": tensor.contiguous() for name, tensor in make(gate, up, down).items()}
    return changed


def fused(gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> Stored:
    return {"gate_up_proj": torch.cat((gate, up), dim=1), "down_proj": down}


def fused_in_out(gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> Stored:
    return {"gate_up_proj": torch.cat((gate, up), dim=1).transpose(1, 2), "down_proj": down.transpose(1, 2)}


def stacked(gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> Stored:
    return {"gate_proj": gate, "up_proj": up, "down_proj": down}


@pytest.mark.parametrize("layout", [fused, stacked, fused_in_out])
def test_layouts_give_the_same_parameters(
    layout: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Stored], tmp_path: Path
) -> None:
    """An intermediate size of 48 tells every shape apart: with 64, as stored, down (E, H, I) would be
    square.
    """
    folder = set_config(copy_model("tiny-qwen3moe-mix", tmp_path / "model"), moe_intermediate_size=48)
    stored = load_file(folder / WEIGHTS)
    for name, tensor in stored.items():
        if ".experts." in name:
            rows = 48 if "down_proj" not in name else 64
            stored[name] = tensor[:rows, : 64 if "down_proj" not in name else 48].contiguous()
    save_file(stored, folder / WEIGHTS)
    expected = parameters_of(folder)
    save_file(relaid(stored, layout), folder / WEIGHTS)
    found = parameters_of(folder)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert found["layers.1.experts.gate_up"].shape == (8, 96, 64)
    assert torch.equal(
        found["layers.1.experts.gate_up"][3, 48:],
        stored["model.layers.1.mlp.experts.3.up_proj.weight"].float(),
    )


@pytest.mark.parametrize("in_out", [True, False])
@pytest.mark.parametrize("size", [32, 64])
def test_of_experts_with_one_square_matrix_the_other_tells_the_layout(size: int, in_out: bool) -> None:
    """gate_up is square where 2I = H, down where I = H; never both."""
    moe = MoeSpec(4, 2, size, normalise_top_k=True)
    shapes = {"gate_up_proj": (4, 2 * size, 64), "down_proj": (4, 64, size)}
    stored = {}
    for part, shape in shapes.items():
        name = f"layers.0.mlp.experts.{part}"
        stored[name] = TensorInfo((shape[0], shape[2], shape[1]) if in_out else shape, "BF16", 0, name)
    for family in (True, False):
        parameters = ExpertLayout(stored, fused=True, in_out=family).parameters("layers.0.", 64, moe)
        pieces = [piece for parameter in parameters for piece in parameter.pieces]
        assert [piece.transpose for piece in pieces] == [in_out, in_out]
        assert all(stored[piece.source].shape == piece.shape for piece in pieces)


@pytest.mark.parametrize("in_out", [True, False])
def test_experts_that_no_file_holds_yet_are_laid_out_as_the_family_has_them(in_out: bool) -> None:
    moe = MoeSpec(4, 2, 48, normalise_top_k=True)
    gate_up, down = ExpertLayout({}, fused=True, in_out=in_out).parameters("layers.0.", 64, moe)
    assert gate_up.pieces[0].transpose == down.pieces[0].transpose == in_out


def test_qwen3_vl_moe_reads_its_own_layout_and_the_other(tmp_path: Path) -> None:
    folder = copy_model("tiny-qwen3vlmoe", tmp_path / "model")
    expected = parameters_of(folder)
    stored = load_file(folder / WEIGHTS)
    turned = {
        name: tensor.transpose(1, 2).contiguous() if ".experts." in name else tensor
        for name, tensor in stored.items()
    }
    save_file(turned, folder / WEIGHTS)
    found = parameters_of(folder)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
