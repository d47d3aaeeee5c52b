"""A card that runs the real kernels on the processor; see emulation/emulated_card.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from attention_bench import AttentionBench
from emulated_card import EmulatedCard, EmulatedCompiler, why_no_emulation
from kernel_bench import KernelBench
from product_bench import MakeProducts, Products
from workbench import Workbench

from engine.models.spec import AttentionSpec

MakeCard = Callable[..., EmulatedCard]


@pytest.fixture(scope="session")
def card_compiler(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> EmulatedCompiler:
    """Keeps what it compiles, for later runs too. Tests are skipped where the system has no compiler."""
    reason = why_no_emulation()
    if reason is not None:
        pytest.skip(reason)
    cache = request.config.cache
    folder = cache.mkdir("emulated_kernels") if cache is not None else tmp_path_factory.mktemp("kernels")
    return EmulatedCompiler(Path(folder))


@pytest.fixture
def make_card(card_compiler: EmulatedCompiler) -> Iterator[MakeCard]:
    """`make_card(total_bytes=..., order_seed=...)`. At the end nothing may be damaged or left on one."""
    cards: list[EmulatedCard] = []

    def make(**options: Any) -> EmulatedCard:
        cards.append(EmulatedCard(**options))
        return cards[-1]

    yield make
    for card in cards:
        card.check()


@pytest.fixture
def card(make_card: MakeCard) -> EmulatedCard:
    return make_card()


@pytest.fixture
def make_attention(
    make_card: MakeCard, card_compiler: EmulatedCompiler
) -> Iterator[Callable[..., AttentionBench]]:
    """`make_attention(spec, card={"order_seed": ...}, context=...)`. Norms have the same weights in each."""
    benches: list[AttentionBench] = []

    def make(spec: AttentionSpec, *, card: dict[str, int] | None = None, **options: Any) -> AttentionBench:
        torch.manual_seed(3)
        benches.append(AttentionBench(make_card(**card or {}), card_compiler, spec, **options))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


@pytest.fixture
def make_bench(make_card: MakeCard, card_compiler: EmulatedCompiler) -> Callable[..., KernelBench]:
    """Takes what `make_card` takes."""
    return lambda **options: KernelBench(make_card(**options), card_compiler)


@pytest.fixture
def bench(make_bench: Callable[..., KernelBench]) -> KernelBench:
    return make_bench()


@pytest.fixture
def workbench(card: EmulatedCard, card_compiler: EmulatedCompiler) -> Iterator[Workbench]:
    workbench = Workbench(card, card_compiler)
    yield workbench
    workbench.memory.free_all()


@pytest.fixture
def make_products(workbench: Workbench) -> MakeProducts:
    """In a form of activations."""
    return lambda form: Products(workbench, form)
