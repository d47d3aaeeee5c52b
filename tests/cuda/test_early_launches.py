"""What a token's launches ask for ahead, and which let the next one begin before their own row is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from emulated_card import EmulatedCard, EmulatedCompiler
from noted_kernels import NotedKernels, linear

from engine.checkpoints.model_folder import open_model
from engine.cpu.backend import CpuBackend
from engine.cuda.arguments import Activation, ProductFew
from engine.cuda.backend import CudaBackend
from engine.cuda.driver import Address
from engine.cuda.kernel_set import KernelSet
from engine.cuda.product_rows import Normed
from engine.kv_geometry import KvGeometry

MODEL = Path(__file__).resolve().parents[1] / "models" / "tiny-qwen2"
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
    assert kernels.runner().gates(gates, Normed(SOME, SOME, output, is_near=True), gated, rows=1)
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


@pytest.fixture
def backend(card: EmulatedCard, card_compiler: EmulatedCompiler) -> Iterator[CudaBackend]:
    folder = open_model(MODEL)
    try:
        cpu = CpuBackend.load(folder.spec, folder.parameters, folder.tensors, weights="q8")
    finally:
        folder.tensors.close()
    backend = CudaBackend(cpu, card, card_compiler)
    yield backend
    backend.close()


@pytest.mark.parametrize("splits", [1, 2])
def test_only_what_reads_no_more_than_weights_follows_early(
    splits: int, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention reads the cache before its wait: in the first layer that was written just before."""
    launches: list[tuple[str, bool]] = []

    def note(_: KernelSet, name: str, arguments: Any, **__: Any) -> None:
        launches.append((name, isinstance(arguments, ProductFew) and bool(arguments.lets_early)))

    monkeypatch.setattr(KernelSet, "launch", note)
    backend._plans._launch_token(KvGeometry.of(backend.spec, "int8"), splits)
    names = [name for name, _ in launches]
    attention = [at for at, name in enumerate(names) if name.startswith("attend_token")]
    assert len(attention) == backend.spec.num_layers > 1
    for layer, at in enumerate(attention):
        queries, output, gates, down = (launches[at + to] for to in (-1, 1, 2, 3))
        assert "gated" in gates[0]
        assert [early for _, early in (output, gates, down)] == [True] * 3
        assert queries[1] == (layer > 0 and splits > 1)
    behind = launches[attention[-1] + 4 :]
    assert behind
    assert not any(early for _, early in behind)
