"""What was not prepared is refused, before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emulated_card import Counts, EmulatedCard, EmulatedCompiler

from engine.checkpoints.model_folder import open_model
from engine.cpu.backend import CpuBackend
from engine.cuda.backend import CudaBackend
from engine.cuda.driver import Address, CardFaultError
from engine.cuda.page_pool import CudaPagePool
from engine.cuda.step_plans import StepPlans
from engine.errors import OutOfMemoryError, StepRefusedError
from engine.kv_geometry import KvGeometry

MODEL = Path(__file__).resolve().parents[1] / "models" / "tiny-qwen2"


@pytest.fixture
def cpu() -> CpuBackend:
    folder = open_model(MODEL)
    try:
        return CpuBackend.load(folder.spec, folder.parameters, folder.tensors, weights="q8")
    finally:
        folder.tensors.close()


@pytest.fixture
def backend(cpu: CpuBackend, card: EmulatedCard, card_compiler: EmulatedCompiler) -> Iterator[CudaBackend]:
    backend = CudaBackend(cpu, card, card_compiler)
    yield backend
    backend.close()


@pytest.fixture
def pool(backend: CudaBackend) -> CudaPagePool:
    return backend.new_pool(KvGeometry.of(backend.spec, "int8"), 8)


def run(backend: CudaBackend, pool: CudaPagePool, rows: int, page: int, *, first: int = 0) -> None:
    backend._plans.run([1] * rows, first, [page], pool, None)


class OtherGeometry(CudaPagePool):
    """Says so of the same pages."""

    @property
    def geometry(self) -> KvGeometry:
        return replace(super().geometry, layers=super().geometry.layers[:-1])


def refused(card: EmulatedCard, match: str, attempt: Any) -> None:
    card.counts = Counts()
    with pytest.raises(StepRefusedError, match=match):
        attempt()
    assert card.counts == Counts(), "nothing was asked of the card"


def test_steps_for_which_nothing_was_prepared_are_refused(
    backend: CudaBackend, pool: CudaPagePool, card: EmulatedCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = pool.allocate_one()
    run(backend, pool, 3, page)
    pool.__class__ = OtherGeometry
    refused(card, "pages of this form", lambda: run(backend, pool, 3, page))
    pool.__class__ = CudaPagePool
    most = backend.most_rows
    refused(card, f"may have 1 to {most}", lambda: run(backend, pool, most + 1, page))
    refused(card, "1 to", lambda: run(backend, pool, 0, page))
    last = backend.spec.context_length
    refused(card, "the context holds", lambda: run(backend, pool, 3, page, first=last - 2))
    monkeypatch.setattr(pool, "addresses", lambda pages: [Address(pool.address(each) + 64) for each in pages])
    other_page = pool.allocate_one()
    refused(card, "multiple of 256", lambda: run(backend, pool, 3, other_page))


def test_a_plan_that_is_not_sealed_runs_nothing_and_one_that_is_prepares_nothing(
    cpu: CpuBackend,
    card: EmulatedCard,
    card_compiler: EmulatedCompiler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StepPlans, "seal", lambda plans: None)
    backend = CudaBackend(cpu, card, card_compiler)
    pool = backend.new_pool(KvGeometry.of(backend.spec, "int8"), 8)
    page = pool.allocate_one()
    refused(card, "not finished", lambda: run(backend, pool, 3, page))
    monkeypatch.undo()
    backend._plans.seal()
    run(backend, pool, 3, page)
    slot = backend._slots.take()
    assert slot is not None
    with pytest.raises(AssertionError, match="nothing is prepared"):
        backend._plans.prepare(backend.new_pool(pool.geometry, 1), slot)
    backend.close()


def test_a_kernel_that_fails_while_it_is_prepared_ends_the_load(
    cpu: CpuBackend, card: EmulatedCard, card_compiler: EmulatedCompiler
) -> None:
    card.fault_at_launch(7)
    with pytest.raises(CardFaultError):
        CudaBackend(cpu, card, card_compiler)


def test_preparing_leaves_no_memory_behind(backend: CudaBackend, card: EmulatedCard) -> None:
    used = card.used_bytes
    for form in ("int8", "native"):
        with torch.no_grad():
            cache = backend.new_cache(form)  # type: ignore[arg-type]
        backend.forward([1, 2, 3], cache)
        cache.close()
    assert backend.memory.num_bytes
    assert card.used_bytes > used, "pages came only now"


@pytest.mark.parametrize("grows", [False, True])
def test_a_copy_of_pages_that_fails_behind_its_arrival_is_made_again(
    grows: bool, backend: CudaBackend, pool: CudaPagePool, card: EmulatedCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an answer would write its rows into another one's pages."""
    own, others = ([pool.allocate_one(), pool.allocate_one()] for _ in range(2))
    plans = backend._plans
    plans.run([1], 0, own, pool, None)
    upload = card.upload

    def fail_behind(target: Address, source: Any) -> None:
        upload(target, source)
        raise OutOfMemoryError("The card is full.", "")

    def send_others() -> None:
        if grows:
            plans._send_pages([own[0], *others], pool)
        else:
            plans.run([1], 0, others, pool, None)

    with monkeypatch.context() as patched:
        patched.setattr(backend._driver._driver, "upload", fail_behind)
        with pytest.raises(OutOfMemoryError):
            send_others()
    plans.run([1], 1, own, pool, None)
    found = np.zeros(len(own), np.uint64)
    card.download(found.view(np.uint8), Address(backend._step.step_of(1) + 8))
    assert found.tolist() == pool.addresses(own)
