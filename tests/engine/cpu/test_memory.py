from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from engine.cpu import memory
from engine.cpu.memory import failed_allocations_told
from engine.errors import OutOfMemoryError
from engine.weights import mapped_files
from engine.weights.mapped_files import map_of
from engine.weights.weight_file import WeightFile

GIB = 2**30


@pytest.fixture(autouse=True)
def nothing_else_is_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests' models may still be there."""
    monkeypatch.setattr(mapped_files, "_sizes", {})


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "memory.max").write_text(f"{4 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{3 * GIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon {GIB}\ninactive_file {GIB // 2}\n")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    return tmp_path


def system_has(available: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Reading:
        def __init__(self) -> None:
            self.available = available

    monkeypatch.setattr(psutil, "virtual_memory", Reading)


def test_a_containers_limit_counts_and_cached_files_are_free(
    cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system_has(100 * GIB, monkeypatch)
    assert memory.available_bytes() == GIB + GIB // 2


def test_the_system_counts_when_it_has_less(cgroup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system_has(GIB, monkeypatch)
    assert memory.available_bytes() == GIB


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[int]:
    """The bytes of a file that lies in memory, which the system counts as free."""
    path = tmp_path / "mapped"
    path.write_bytes(bytes(GIB // 2**10))
    os.truncate(path, GIB // 4)
    file = WeightFile(path)
    whole = map_of(file)
    file.close()
    assert whole is not None
    yield GIB // 4
    del whole


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="others don't count them as free")
def test_weights_that_are_mapped_are_no_free_memory(
    cgroup: Path, mapped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    system_has(GIB, monkeypatch)
    assert memory.available_bytes() == GIB - mapped
    system_has(mapped - 1, monkeypatch)
    assert memory.available_bytes() == 0


@pytest.mark.parametrize(
    ("active", "left"), [(0, GIB + GIB // 4), (GIB // 8, GIB + 3 * GIB // 8), (GIB, 3 * GIB // 2)]
)
def test_a_container_counts_mapped_files_as_free_where_they_are_not_active(
    active: int, left: int, cgroup: Path, mapped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    system_has(100 * GIB, monkeypatch)
    with (cgroup / "memory.stat").open("a") as stat:
        stat.write(f"active_file {active}\n")
    assert memory.available_bytes() == left


@pytest.mark.parametrize("limit", ["max\n", "nonsense"])
def test_no_readable_limit_leaves_the_systems_figure(
    limit: str, cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system_has(100 * GIB, monkeypatch)
    (cgroup / "memory.max").write_text(limit)
    assert memory.available_bytes() == 100 * GIB


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on the address space")
def test_a_limit_on_the_process_counts(cgroup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    system_has(100 * GIB, monkeypatch)
    (cgroup / "memory.max").write_text("max")
    used = psutil.Process().memory_info().vms
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used + 2 * GIB, resource.RLIM_INFINITY))
    assert memory.available_bytes() == pytest.approx(2 * GIB, abs=GIB // 2)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used // 2, resource.RLIM_INFINITY))
    assert memory.available_bytes() == 0


def test_a_refusal_keeps_the_reserve_and_names_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: memory.RESERVE_BYTES + GIB)
    memory.check_available(GIB, "A cache")
    with pytest.raises(OutOfMemoryError, match=r"A cache needs 1,025 MiB, but only 1,024 MiB"):
        memory.check_available(GIB + 2**20, "A cache")


def test_allocation_that_torch_fails_is_one_sentence() -> None:
    with pytest.raises(OutOfMemoryError) as caught, failed_allocations_told():
        torch.empty(1 << 60)
    assert "memory ran out" in caught.value.message
    with pytest.raises(OutOfMemoryError), failed_allocations_told():
        raise MemoryError


def test_other_failures_keep_their_own_words() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"), failed_allocations_told():
        torch.ones(2, 3) @ torch.ones(2, 3)


def test_step_that_runs_out_of_memory_leaves_the_cache_as_it_was(load_backend, some_ids, monkeypatch) -> None:
    backend = load_backend("tiny-qwen3")
    cache = backend.new_cache()
    before = backend.forward(some_ids(20), cache)
    with monkeypatch.context() as patch:
        patch.setattr(backend._runner, "run", lambda *_, **__: torch.empty(1 << 60))
        with pytest.raises(OutOfMemoryError):
            backend.forward([5], cache)
    assert cache.length == 20
    cache.truncate(19)
    assert torch.allclose(backend.forward(some_ids(20)[-1:], cache), before, atol=1e-4)
