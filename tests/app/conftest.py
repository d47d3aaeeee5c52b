"""What tests of the program share: no screen, no thread left behind, a stall meter, and a fake engine."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")  # before anything imports Qt

import pytest
from fake_engine import EngineScript
from stall_meter import StallMeter

from app.controller import ChatController
from app.conversations import ConversationStore
from app.garbage import GarbageCollector
from app.language import Language, set_language
from app.paths import AppPaths
from app.threads import running_threads, share_python_fairly
from app.worker import EngineWorker


@pytest.fixture(autouse=True)
def no_thread_left_behind() -> Iterator[None]:
    """A thread that outlives its test crashes some later one, far from its cause."""
    yield
    if formulas := sys.modules.get("app.ui.formulas"):
        assert formulas.end_formulas()
    if lexers := sys.modules.get("app.ui.lexers"):
        assert lexers.end_lexers()
    assert running_threads() == []


@pytest.fixture(autouse=True, scope="session")
def threads_as_in_the_program() -> None:
    share_python_fairly()


@pytest.fixture
def in_chinese() -> Iterator[None]:
    """What is made while it holds speaks Chinese."""
    set_language(Language.CHINESE)
    yield
    set_language(Language.ENGLISH)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a store of conversations that is not there yet."""
    return tmp_path / "conversations.sqlite3"


@pytest.fixture
def store(path: Path) -> Iterator[ConversationStore]:
    """A new one, at `path`."""
    store = ConversationStore(path)
    yield store
    store.close()


@pytest.fixture
def garbage(qapp) -> Iterator[GarbageCollector]:
    """Collected as by the program (app/garbage.py); what a whole run of tests has imported is left out."""
    gc.collect()
    collector = GarbageCollector()
    yield collector
    collector.close()
    gc.unfreeze()


@pytest.fixture
def stall_meter(garbage: GarbageCollector) -> Iterator[StallMeter]:
    meter = StallMeter()
    yield meter
    meter.stop()


@pytest.fixture
def script() -> EngineScript:
    return EngineScript()


@pytest.fixture
def app_paths(tmp_path: Path) -> AppPaths:
    return AppPaths.under(tmp_path / "program")


@pytest.fixture
def make_controller(
    qapp, app_paths: AppPaths, script: EngineScript
) -> Iterator[Callable[..., ChatController]]:
    """Makes controllers on the fake engine, one after the other as the program's starts are; ends those
    still running.
    """
    made: list[ChatController] = []

    def make(paths: AppPaths = app_paths, **options) -> ChatController:
        options.setdefault("engine_factory", script.load)
        controller = ChatController(paths, **options)
        made.append(controller)
        return controller

    yield make
    for controller in made:
        assert controller.shutdown()


@pytest.fixture
def controller(make_controller: Callable[..., ChatController]) -> ChatController:
    """Not started yet."""
    return make_controller()


@pytest.fixture
def worker(qapp, script: EngineScript) -> Iterator[EngineWorker]:
    worker = EngineWorker(engine_factory=script.load)
    yield worker
    assert worker.shutdown()


@pytest.fixture
def record() -> Callable[..., list[tuple]]:
    """`record(signal, …)` returns a list that fills with (name, *arguments), in the order in which they
    are emitted.
    """

    def connect(**signals) -> list[tuple]:
        seen: list[tuple] = []
        for name, signal in signals.items():
            signal.connect(lambda *arguments, name=name: seen.append((name, *arguments)))
        return seen

    return connect
