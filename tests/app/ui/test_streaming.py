"""An answer of 10,000 tokens streams through the whole window, and the window never stops for it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from fake_engine import EngineScript, show_everything
from long_chats import PacedTokens, long_answer
from PySide6.QtCore import Qt
from stall_meter import StallMeter, this_moment, waited_between

from app.controller import ModelPhase
from app.conversations import MessageStatus
from app.ui.card_memory import CardMemory
from app.ui.code_view import CodeView
from app.ui.facts import Facts
from app.ui.formula_object import OBJECT
from app.ui.formulas import formula_store
from app.ui.lexers import lexer_store
from app.ui.main_window import MainWindow
from app.ui.message_view import AnswerView
from app.ui.slot_model import SlotModel
from app.ui.speed_plot import SpeedPlot
from app.ui.table_view import TableView

TOKENS_PER_SECOND = 500
STALL_MS = 50.0


@pytest.fixture
def ready(window: MainWindow, qtbot, model_folder: Path) -> MainWindow:
    window.resize(1280, 860)
    window.controller.load_model(model_folder)
    qtbot.waitUntil(lambda: window.controller.model_state.phase is ModelPhase.READY)
    window.show_chat()
    return window


def ask(qtbot, window: MainWindow, *, timeout: int) -> None:
    window.chat.composer.set_text("Say it")
    with qtbot.waitSignal(
        window.controller.answering_changed, timeout=timeout, check_params_cb=lambda on: not on
    ):
        qtbot.keyClick(window.chat.composer.edit, Qt.Key.Key_Return)


@pytest.fixture
def with_panel(ready: MainWindow, script: EngineScript) -> MainWindow:
    """The panel is open, and the engine has something of everything to show in it."""
    show_everything(script)
    if not ready.panel.isVisible():
        ready.actions_.toggle_live.trigger()
    assert ready.dock.isVisible()
    assert ready.panel.isVisible()
    return ready


@pytest.mark.parametrize("num_tokens", [1_500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_long_answer_streams_without_a_stall(
    qtbot,
    with_panel: MainWindow,
    script: EngineScript,
    stall_meter: StallMeter,
    record,
    monkeypatch,
    num_tokens: int,
) -> None:
    window = with_panel
    tokens = long_answer(num_tokens)
    assert len(tokens) == num_tokens
    script.pieces = PacedTokens(tokens, TOKENS_PER_SECOND)
    told = record(watched=window.controller.engine_watched)
    refresh, steps = SpeedPlot.refresh, []
    monkeypatch.setattr(SpeedPlot, "refresh", lambda plot: steps.append(1) or refresh(plot))
    stall_meter.start()
    began = time.monotonic()
    ask(qtbot, window, timeout=120_000)
    seconds = time.monotonic() - began
    qtbot.waitUntil(lambda: not formula_store().busy and not lexer_store().busy, timeout=60_000)
    stall = stall_meter.stop()
    view = window.chat.transcript.views[-1]
    assert isinstance(view, AnswerView)
    assert view.text == "".join(tokens)
    assert {CodeView, TableView} <= {type(piece) for piece in view.body.pieces}
    assert any(OBJECT in document.toPlainText() for document in view.body.documents), "formulas are drawn"
    for times in (told, steps):
        assert 2 <= len(times) <= 4 * seconds + 2, "the panel lives meanwhile"
    assert stall < STALL_MS


def test_nothing_of_a_panel_that_is_hidden_is_brought_up_to_date(
    qtbot, with_panel: MainWindow, script: EngineScript, monkeypatch
) -> None:
    window = with_panel
    window.actions_.toggle_live.trigger()
    assert not window.panel.isVisible()
    script.gates[1] = threading.Event()
    script.gates[999] = threading.Event()
    script.pieces = ["word "] * 1_000
    window.chat.composer.set_text("Go on")
    qtbot.keyClick(window.chat.composer.edit, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: any(view.text == "word " for view in answers(window)))
    done: list[str] = []
    for owner, name in (
        (SpeedPlot, "refresh"),
        (Facts, "show_fact"),
        (Facts, "explain"),
        (CardMemory, "show_memory"),
        (SlotModel, "set_slots"),
    ):
        monkeypatch.setattr(owner, name, lambda *_, name=name: done.append(name))
    script.gates[1].set()
    qtbot.waitUntil(lambda: any(view.text == "word " * 999 for view in answers(window)))
    monkeypatch.undo()
    assert done == []
    script.gates[999].set()
    qtbot.waitUntil(lambda: not window.chat.composer.answering)


def answers(window: MainWindow) -> list[AnswerView]:
    return [view for view in window.chat.transcript.views if isinstance(view, AnswerView)]


def test_a_stop_is_seen_at_once_and_nothing_is_added_after_it(qtbot, ready: MainWindow, script) -> None:
    script.pieces = PacedTokens(["word "] * 100_000, 500)
    ready.chat.composer.set_text("Go on")
    qtbot.keyClick(ready.chat.composer.edit, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: any("word word" in view.text for view in ready.chat.transcript.views))
    view = ready.chat.transcript.views[-1]
    assert isinstance(view, AnswerView)
    began = this_moment()
    with qtbot.waitSignal(ready.controller.answer_finished) as finished:
        qtbot.keyClick(ready.chat.composer.edit, Qt.Key.Key_Escape)
        shown = view.text
    ended = this_moment()
    seconds = ended.now - began.now
    assert seconds - waited_between(began, ended) < 0.5
    num_added = (len(view.text) - len(shown)) // len("word ")
    assert num_added <= 500 * seconds + 20
    assert not view.footer.isHidden()
    qtbot.waitUntil(lambda: not ready.chat.composer.answering)
    _, last = finished.args
    assert last.status is MessageStatus.STOPPED
    assert last.text == view.text
