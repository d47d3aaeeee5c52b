"""What a token's launches ask for ahead, and which let the next one begin before their own row is there."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from emulated_card import EmulatedCard, EmulatedCompiler
from noted_kernels import NotedKernels, linear

from engine.checkpoints.model_folder import open_model
from engine.cpu.backend import CpuBackend
from engine.cuda.arguments import Activation
from engine.cuda.backend import CudaBackend
from engine.cuda.driver import Address
from engine.cuda.kernel_set import KernelSet
from engine.cuda.product_rows import Normed
from engine.kv_geometry import KvGeometry

MODELS = Path(__file__).resolve().parents[1] / "models"
SOME = Address(2**22)


@pytest.mark.parametrize(
    ("width", "intermediate", "heads", "kind", "late", "near"),
    [
        (4096, 12288, 4096, "codes4", 0, 0),
        (4096, 12288, 4096, "codes8", 1, 1),
        (5120, 25600, 8192, "codes4", 3, 2),
        (1024, 3072, 2048, "codes4", 3, 2),
    ],
    ids=["8B q4", "8B q8", "32B q4", "0.6B q4"],
)
def test_gates_ask_late_unless_nothing_else_is_on_its_way_and_rings_are_too_small(
    width: int, intermediate: int, heads: int, kind: str, late: int, near: int
) -> None:
    """The output product of 8B fits rings, its gates don't; of 0.6B both do."""
    kernels = NotedKernels()
    output, gates = linear(width, heads, kind=kind), linear(2 * intermediate, width, kind=kind)
    gated = Activation(high=SOME, low=SOME, scales=SOME, width=intermediate)
    x = Normed(SOME, SOME, output, is_near=True)
    assert kernels.runner().gates(gates, x, gated, rows=1, lets_early=True)
    [product] = kernels.products
    assert (product.late_stages, product.near_stages) == (late, near)
    assert product.lets_early


@pytest.mark.parametrize(("kind", "near"), [("codes4", 2), ("codes8", 1)])
def test_other_products_behind_a_norm_bring_half_a_ring_near_and_ask_for_nothing_late(
    kind: str, near: int
) -> None:
    kernels, qkv = NotedKernels(), linear(6144, 4096, kind=kind)
    rows = Activation(high=SOME, low=SOME, scales=SOME, width=4096)
    kernels.runner().run(qkv, Normed(SOME, SOME, linear(4096, 12288)), SOME, rows=1)
    kernels.runner().run(qkv, rows, SOME, rows=1)
    behind_norm, of_codes = kernels.products
    assert (behind_norm.late_stages, behind_norm.near_stages) == (0, near)
    assert (of_codes.late_stages, of_codes.near_stages) == (0, 0)
    assert not behind_norm.lets_early


def launches_of(
    model: str, splits: int, card: EmulatedCard, compiler: EmulatedCompiler, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, bool]]:
    """A token's, and whether each lets the next one begin early."""
    folder = open_model(MODELS / model)
    try:
        cpu = CpuBackend.load(folder.spec, folder.parameters, folder.tensors, weights="q8")
    finally:
        folder.tensors.close()
    with closing(CudaBackend(cpu, card, compiler)) as backend:
        launches: list[tuple[str, bool]] = []

        def note(_: KernelSet, name: str, arguments: Any, **__: Any) -> None:
            launches.append((name, bool(getattr(arguments, "lets_early", False))))

        monkeypatch.setattr(KernelSet, "launch", note)
        backend._plans._launch_token(KvGeometry.of(backend.spec, "int8"), splits)
        monkeypatch.undo()
        assert sum(name.startswith("attend_token") for name, _ in launches) == backend.spec.num_layers > 1
    return launches


@pytest.mark.parametrize("splits", [1, 2])
def test_a_dense_layer_lets_all_begin_early_but_what_reads_before_its_wait_what_was_just_written(
    splits: int, card: EmulatedCard, card_compiler: EmulatedCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of this card's few processors has a block of the output product."""
    launches = launches_of("tiny-qwen2", splits, card, card_compiler, monkeypatch)
    attention = [at for at, (name, _) in enumerate(launches) if name.startswith("attend_token")]
    for at in attention:
        names, early = zip(*launches[at - 1 : at + 4], strict=True)
        assert "gated" in names[3]
        assert early == (splits > 1, splits > 1, True, True, True)
    assert not any(early for _, early in launches[: attention[0] - 1])
    assert not any(early for _, early in launches[attention[-1] + 4 :])


def test_what_comes_behind_experts_waits_for_them(
    card: EmulatedCard, card_compiler: EmulatedCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads logits, or who was chosen, before its own wait."""
    launches = launches_of("tiny-qwen3moe-mix", 2, card, card_compiler, monkeypatch)
    mixes = [at for at, (name, _) in enumerate(launches) if name == "mix_experts"]
    assert mixes
    for at in mixes:
        names, early = zip(*launches[at - 3 : at], strict=True)
        assert names[0].startswith("router")
        assert "gated_values" in names[1]
        assert not any(early)


@pytest.mark.parametrize(("rows", "is_early"), [(4096, True), (2048, False)])
def test_behind_splits_the_output_product_begins_early_where_each_processor_has_a_block_of_it(
    rows: int, is_early: bool
) -> None:
    runner = NotedKernels().runner()
    assert runner.is_spread(linear(rows, 4096), 1) == is_early
    assert not runner.is_spread(linear(rows, 4096), 2)
