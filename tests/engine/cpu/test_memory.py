from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from engine.cpu import memory
from engine.errors import OutOfMemoryError

GIB = 2**30


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
