"""Stores of states, and a disk that waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from state_fakes import GEOMETRY, new_home
from state_steps import CONTEXT, RAM, Make

from engine.kv_geometry import PAGE
from engine.states.kv_file import KvKey
from engine.states.kv_folder import KvFolder
from engine.states.parking import RamBudget
from engine.states.store import StateStore
from engine.weights.part_file import PartFile


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Stores that share a folder; the pages of each are checked at the end."""
    monkeypatch.setattr("engine.states.kv_folder.LEAST_FREE_BYTES", 0)  # small disks count
    stores: list[StateStore] = []

    def make_store(
        *,
        slots: int = 8,
        pages: int = 64,
        ram: RamBudget = RAM,
        disk: int = 10**9,
        model: str = "model",
        **more: Any,
    ) -> StateStore:
        key = KvKey(model, "native", GEOMETRY)
        folder = KvFolder(tmp_path / "states", key, context=more.get("context", CONTEXT), limit_bytes=disk)
        new_fallback = more.get("new_fallback", lambda: new_home(CONTEXT // PAGE))
        store = StateStore(
            more.get("home") or new_home(pages),
            slots=slots,
            new_fallback=new_fallback,
            folder=folder if more.get("keeps", True) else None,
            ram_budget=ram,
            refuge=more.get("refuge"),
        )
        stores.append(store)
        return store

    yield make_store
    for store in stores:
        if hasattr(store, "_residence"):  # it isn't closed
            store.check()
        store.wait()


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No file is whole before this is set."""
    go_on = threading.Event()
    sync = PartFile.sync

    def slow_sync(file: PartFile) -> None:
        assert go_on.wait(60)
        sync(file)

    monkeypatch.setattr(PartFile, "sync", slow_sync)
    yield go_on
    go_on.set()
