"""The real window with the starter model: load, chat, stop, restart, and an event loop that never stalls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QSignalSpy

from app.controller import ChatController, ModelPhase
from app.conversations import MessageStatus
from app.garbage import GarbageCollector
from app.paths import AppPaths
from app.ui.main_window import MainWindow
from engine.progress import LoadStage

pytestmark = pytest.mark.real

LOAD_MS = 120_000
ANSWER_MS = 180_000
MAX_STALL_MS = 100.0


@pytest.fixture
def garbage(qapp) -> Iterator[GarbageCollector]:
    """Collection as the program does it."""
    garbage = GarbageCollector()
    yield garbage
    garbage.close()


@pytest.fixture
def open_window(qtbot, app_paths: AppPaths, garbage: GarbageCollector) -> Iterator[Callable[[], MainWindow]]:
    """Starts of the program with the real engine, one after the other."""
    opened: list[MainWindow] = []

    def open_one() -> MainWindow:
        window = MainWindow(ChatController(app_paths))
        window.controller.model_state_changed.connect(garbage.watch)
        qtbot.addWidget(window)
        opened.append(window)
        window.show()
        qtbot.waitExposed(window)
        with qtbot.waitSignal(window.controller.conversations_changed):
            window.controller.start()
        return window

    yield open_one
    for window in opened:
        window.close()
        assert window.closed_cleanly


def wait_until_ready(qtbot, window: MainWindow) -> None:
    qtbot.waitUntil(lambda: window.controller.model_state.phase is ModelPhase.READY, timeout=LOAD_MS)


def text_of(spy: QSignalSpy) -> str:
    return "".join(spy.at(number)[2].text for number in range(spy.count()))


def test_pick_load_watch_stop_and_find_it_after_a_restart(
    open_window: Callable[[], MainWindow], qtbot, starter_model_path: Path, stall_meter, monkeypatch
) -> None:
    monkeypatch.setattr("app.chat_sampling.chat_sampling", lambda recommended: recommended)  # greedy
    window = open_window()
    with qtbot.waitSignal(window.controller.model_inspected, timeout=LOAD_MS) as inspected:
        window.loader.pick(starter_model_path)
    assert inspected.args[0].problems == ()
    assert inspected.args[0].family == "Llama"

    stages: list[LoadStage] = []
    window.controller.model_state_changed.connect(
        lambda state: stages.append(state.progress.stage) if state.progress is not None else None
    )
    stall_meter.start()
    qtbot.mouseClick(window.loader.card.load_button, Qt.MouseButton.LeftButton)
    wait_until_ready(qtbot, window)
    loading_stall_ms = stall_meter.stop()
    assert LoadStage.WEIGHTS in stages
    assert stages == sorted(stages, key=list(LoadStage).index), "progress never goes back"
    assert not window.showing_models

    extended = QSignalSpy(window.controller.answer_extended)
    stall_meter.start()
    window.chat.send_requested.emit("Write a long story about a kestrel that lives in a church tower.")
    qtbot.waitUntil(lambda: len(text_of(extended)) >= 150, timeout=ANSWER_MS)
    generating_stall_ms = stall_meter.stop()
    with qtbot.waitSignal(window.controller.answer_finished, timeout=ANSWER_MS) as finished:
        window.chat.stop_requested.emit()
    message = finished.args[1]
    assert message.status is MessageStatus.STOPPED
    assert message.text == text_of(extended)
    assert "\N{REPLACEMENT CHARACTER}" not in message.text
    assert message.stats.decode_tokens > 20
    window.close()

    again = open_window()
    opened = QSignalSpy(again.controller.conversation_opened)
    [summary] = again.conversations.model.summaries
    again.conversations.open_requested.emit(summary.id)
    qtbot.waitUntil(lambda: opened.count() > 0)
    [question, answer] = opened.at(opened.count() - 1)[0].messages
    assert question.text.startswith("Write a long story")
    assert (answer.text, answer.status) == (message.text, MessageStatus.STOPPED)
    wait_until_ready(qtbot, again)  # the model of the last time, without having been asked for
    again.controller.new_conversation()
    extended = QSignalSpy(again.controller.answer_extended)
    finished = QSignalSpy(again.controller.answer_finished)
    again.chat.send_requested.emit("What is the capital of France?")
    qtbot.waitUntil(lambda: extended.count() > 5 or finished.count() > 0, timeout=ANSWER_MS)
    again.controller.stop_answer()  # a small model may go on and on
    qtbot.waitUntil(lambda: finished.count() > 0, timeout=ANSWER_MS)
    message = finished.at(0)[1]
    assert message.text.strip()
    assert message.status in (MessageStatus.COMPLETE, MessageStatus.STOPPED)

    assert loading_stall_ms <= MAX_STALL_MS
    assert generating_stall_ms <= MAX_STALL_MS


def test_load_that_is_cancelled_half_way_leaves_the_window_ready_for_another(
    open_window: Callable[[], MainWindow], qtbot, starter_model_path: Path
) -> None:
    window = open_window()
    controller = window.controller
    with qtbot.waitSignal(controller.model_inspected, timeout=LOAD_MS):
        window.loader.pick(starter_model_path)

    def cancel_in_the_weights(state) -> None:
        if state.progress is not None and state.progress.stage is LoadStage.WEIGHTS:
            window.loader.card.progress.cancel_button.click()

    controller.model_state_changed.connect(cancel_in_the_weights)
    qtbot.mouseClick(window.loader.card.load_button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: controller.model_state.phase is ModelPhase.NONE, timeout=LOAD_MS)
    controller.model_state_changed.disconnect(cancel_in_the_weights)
    assert window.loader.card.load_button.isEnabled()
    qtbot.mouseClick(window.loader.card.load_button, Qt.MouseButton.LeftButton)
    wait_until_ready(qtbot, window)
