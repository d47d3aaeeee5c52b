"""The whole window on the fake engine, for tests of it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import surfaces
from PySide6.QtWidgets import QScrollBar, QWidget

from app.controller import ChatController, ModelPhase
from app.garbage import GarbageCollector
from app.ui.chat_pane import ChatPane
from app.ui.lexers import lexer_store
from app.ui.main_window import MainWindow
from app.ui.message_body import MessageBody
from app.ui.sliced_work import SlicedWork

TINY = Path(__file__).parents[2] / "models" / "tiny-qwen3"


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A sound model folder whose name has spaces and Chinese characters."""
    folder = tmp_path / "模型 测试" / "Željko 山月 123"
    shutil.copytree(TINY, folder)
    return folder


@pytest.fixture
def open_window(qtbot, make_controller: Callable[..., ChatController]) -> Iterator[Callable[..., MainWindow]]:
    """Opens windows one after the other, as starts of the program do; closes those that are still open."""
    opened: list[MainWindow] = []

    def open_one(*, model: Path | None = None) -> MainWindow:
        window = MainWindow(make_controller())
        qtbot.addWidget(window)
        opened.append(window)
        window.show()
        qtbot.waitExposed(window)
        with qtbot.waitSignal(window.controller.conversations_changed):
            window.controller.start(model)
        return window

    yield open_one
    for window in opened:
        window.close()


@pytest.fixture
def window(open_window: Callable[..., MainWindow]) -> MainWindow:
    """A first start: nothing was ever loaded or said."""
    return open_window()


@pytest.fixture
def surface(
    window: MainWindow, qtbot, script, model_folder: Path, request: pytest.FixtureRequest
) -> Iterator[QWidget]:
    """One of `surfaces.SURFACES`, by its name as the parameter, with a model loaded."""
    script.slots, script.metrics = surfaces.SLOTS, surfaces.METRICS
    window.controller.load_model(model_folder)
    qtbot.waitUntil(lambda: window.controller.model_state.phase is ModelPhase.READY)
    if request.param == "the page of models":
        with qtbot.waitSignal(window.controller.model_inspected):
            window.loader.pick(model_folder)
    shown = surfaces.SURFACES[request.param](window)
    for _ in range(3):
        qtbot.wait(0)  # what was shown gets its place
    yield shown
    if shown is not window:
        shown.close()


@pytest.fixture
def pane(qtbot, garbage: GarbageCollector) -> Iterator[ChatPane]:
    """A chat by itself, that can be written in."""
    made = ChatPane()
    qtbot.addWidget(made)
    made.resize(900, 600)
    made.set_model_ready(True, "")
    made.show()
    qtbot.waitExposed(made)
    yield made
    made.transcript.work.cancel_all()


@pytest.fixture
def bar(pane: ChatPane) -> QScrollBar:
    return pane.transcript.verticalScrollBar()


@pytest.fixture
def answering(window: MainWindow, qtbot, script, model_folder: Path) -> MainWindow:
    """The window in the middle of an answer, which goes on when `script.gates[1]` is opened."""
    window.controller.load_model(model_folder)
    qtbot.waitUntil(lambda: window.controller.model_state.phase is ModelPhase.READY)
    script.gates = {1: threading.Event()}
    with qtbot.waitSignal(window.controller.answer_extended):
        window.chat.send_requested.emit("Hi")
    assert window.chat.composer.answering
    return window


@pytest.fixture
def work(qapp) -> SlicedWork:
    return SlicedWork()


@pytest.fixture
def new_body(qtbot, work: SlicedWork):
    """Bodies of messages, whose code has its colours as soon as it is read."""
    for language in ("py", "python", "cpp"):
        lexer_store().load(language)

    def make() -> MessageBody:
        body = MessageBody(work)
        qtbot.addWidget(body)
        return body

    return make
