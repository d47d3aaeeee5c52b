"""Cyclic garbage is collected on the GUI thread, in time, and not while torch is being imported."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest

from app.controller import ModelPhase, ModelState
from app.garbage import GarbageCollector
from engine.progress import LoadProgress, LoadStage


class Knot:
    """Refers to itself, so only the collector can free it."""

    def __init__(self, freed_on: list[int]) -> None:
        self.itself = self
        self.freed_on = freed_on

    def __del__(self) -> None:
        self.freed_on.append(threading.get_ident())


@pytest.fixture
def collector(qapp) -> Iterator[GarbageCollector]:
    gc.collect()
    collector = GarbageCollector()
    yield collector
    collector.close()
    gc.unfreeze()


def at(stage: LoadStage) -> ModelState:
    return ModelState(ModelPhase.LOADING, progress=LoadProgress(stage))


def test_garbage_of_any_thread_is_freed_on_the_gui_thread(collector: GarbageCollector, qtbot) -> None:
    freed_on: list[int] = []
    thread = threading.Thread(target=lambda: [Knot(freed_on) for _ in range(5000)] and None)
    thread.start()
    thread.join()
    assert freed_on == [], "the thread that allocated must not collect"
    qtbot.waitUntil(lambda: len(freed_on) == 5000)
    assert set(freed_on) == {threading.get_ident()}


def test_a_few_objects_are_left_to_the_next_step(collector: GarbageCollector) -> None:
    freed_on: list[int] = []
    Knot(freed_on)
    collector.step()
    assert freed_on == []


def test_nothing_is_collected_during_the_import_and_its_objects_are_left_out_later(
    collector: GarbageCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    freed_on: list[int] = []
    collector.watch(at(LoadStage.RUNTIME))
    imported = [[number] for number in range(50_000)]
    collector.step()
    for _ in range(5000):
        Knot(freed_on)
    collector.step()
    assert freed_on == []
    frozen_before = gc.get_freeze_count()
    collector.watch(at(LoadStage.WEIGHTS))
    assert gc.get_freeze_count() - frozen_before >= len(imported)
    for _ in range(5000):
        Knot(freed_on)
    collector.step()
    assert len(freed_on) == 5000, "what comes after the import is collected as ever"


def test_import_that_fails_does_not_leave_collection_paused(
    collector: GarbageCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    collector.watch(at(LoadStage.RUNTIME))
    collector.watch(ModelState())
    freed_on: list[int] = []
    for _ in range(5000):
        Knot(freed_on)
    collector.step()
    assert len(freed_on) == 5000


def test_later_loads_freeze_nothing(collector: GarbageCollector, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen model that lies in a cycle would never be freed."""
    monkeypatch.setitem(sys.modules, "torch", object())
    before = gc.get_freeze_count()
    collector.watch(at(LoadStage.RUNTIME))
    collector.watch(at(LoadStage.WEIGHTS))
    assert gc.get_freeze_count() == before


def test_what_the_start_has_imported_is_left_out(collector: GarbageCollector) -> None:
    assert gc.get_freeze_count() > 10_000
    before = len(gc.get_objects())
    assert before < gc.get_freeze_count(), "what is looked through is the smaller part"


def test_closing_gives_collection_back(qapp) -> None:
    collector = GarbageCollector()
    assert not gc.isenabled()
    collector.close()
    assert gc.isenabled()
