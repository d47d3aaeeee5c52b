"""The panel repeats what the engine says: of the answer, of the model, of what is kept and where."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QAbstractItemModelTester

from app.engine_commands import SlotTable
from app.ui.live_panel import LivePanel
from app.ui.slot_model import DETAIL_ROLE, PLACE_ROLE, SlotModel, slot_lines
from app.ui.token_rate import WINDOW_SECONDS, TokenRate
from engine.generation import PrefillStats, SlotInfo

SLOTS = (
    SlotInfo("a", tokens=1234, pages=20, place="pool", reused=1200, total=1234),
    SlotInfo("b", tokens=1, pages=1, place="ram", reused=0, total=5),
    SlotInfo("c", tokens=64, pages=1, place="disk", reused=None, total=None),
    SlotInfo("d", tokens=65, pages=2, place="fallback", reused=None, total=None),
)
TITLES = {"a": "Kestrels", "b": "Falcons"}


def summary(device: str = "cpu") -> SimpleNamespace:
    return SimpleNamespace(
        path=Path("/m"),
        name="Model",
        family="Llama",
        parameters=135_000_000,
        weights="q4",
        weight_bytes=93_000_000,
        layers=30,
        context_length=8192,
        device=device,
        device_description="a processor",
    )


@pytest.fixture
def panel(qtbot) -> LivePanel:
    panel = LivePanel()
    qtbot.addWidget(panel)
    panel.resize(280, 700)
    panel.show()
    return panel


def test_the_table_keeps_the_contract_of_item_models(qtbot) -> None:
    model = SlotModel()
    tester = QAbstractItemModelTester(model, QAbstractItemModelTester.FailureReportingMode.Fatal)
    for slots in (SLOTS, (), SLOTS[:1]):
        model.set_slots(slots)
        model.set_titles(TITLES)
        model.set_device("cpu")
    assert tester.model() is model


@pytest.mark.parametrize(("device", "pool"), [("cpu", "Ready"), ("cuda", "Card"), ("cuda:1", "Card")])
def test_each_row_says_conversation_place_size_and_last_reuse(qtbot, device: str, pool: str) -> None:
    model = SlotModel()
    model.set_slots(SLOTS)
    model.set_titles(TITLES)
    model.set_device(device)
    rows = [model.index(row) for row in range(model.rowCount())]
    assert [row.data() for row in rows] == [
        "Kestrels",
        "Falcons",
        "A chat that is gone",
        "A chat that is gone",
    ]
    assert [row.data(PLACE_ROLE) for row in rows] == [pool, "RAM", "Disk", "CPU"]
    assert rows[0].data(DETAIL_ROLE) == ["1,234 tokens · 20 pages", "Last reused 1,200 of 1,234"]
    assert (
        rows[1].data(Qt.ItemDataRole.AccessibleTextRole)
        == "Falcons, RAM, 1 token · 1 page, Last reused 0 of 5"
    )
    assert slot_lines(SLOTS[2])[1] == "Not used since the program began"
    assert all(row.data(Qt.ItemDataRole.ToolTipRole) for row in rows)


def test_the_model_s_facts_come_and_go_with_it(panel: LivePanel) -> None:
    assert panel.model.fact("Name") == "—"
    panel.set_model_summary(summary())
    assert panel.model.fact("Name") == "Model"
    assert panel.model.fact("Weights").endswith("MB, 4 bits")
    assert panel.model.fact("Context") == "8,192 tokens"
    panel.set_model_summary(None)
    assert panel.model.fact("Weights") == "—"


def test_an_answer_has_its_chat_its_reuse_and_its_speed(panel: LivePanel, monkeypatch) -> None:
    clock = [10.0]
    monkeypatch.setattr("app.ui.live_panel.monotonic", lambda: clock[0])
    panel.set_titles(TITLES)
    panel.begin_answer("a")
    assert (panel.now.fact("Answer"), panel.now.fact("Speed")) == ("Kestrels", "Reading")
    panel.show_prefill(PrefillStats(30, 20, 0.1))
    assert panel.now.fact("Reused") == "20 of 30 tokens"
    for _ in range(10):
        clock[0] += 0.1
        panel.count_tokens(2)
    panel.end_answer()
    assert panel.now.fact("Speed") == "20.0 tok/s", "the last value stays to be read"
    assert panel.now.fact("Answer") == "—"


def test_a_row_opens_its_conversation_where_there_still_is_one(panel: LivePanel, qtbot, record) -> None:
    opened = record(opened=panel.open_requested)
    panel.set_slots(SlotTable(SLOTS, memory_bytes=125_000_000))
    panel.set_titles(TITLES)
    assert panel.now.fact("Memory").startswith("125")
    for row in range(3):
        where = panel.view.visualRect(panel.slots.index(row)).center()
        qtbot.mouseClick(panel.view.viewport(), Qt.MouseButton.LeftButton, pos=where)
    assert opened == [("opened", "a"), ("opened", "b")]
    panel.set_slots(SlotTable())
    assert not panel.view.isVisible()


def test_nothing_is_measured_while_the_panel_is_hidden(panel: LivePanel) -> None:
    panel.begin_answer("a")
    panel.show_prefill(PrefillStats(30, 20, 0.1))
    assert panel._timer.isActive()
    panel.hide()
    assert not panel._timer.isActive()
    panel.show_prefill(PrefillStats(30, 20, 0.1))
    assert not panel._timer.isActive()
    panel.show()
    assert panel._timer.isActive()
    panel.end_answer()
    assert not panel._timer.isActive()


# Speed


def test_a_steady_stream_has_its_rate_from_the_beginning_to_the_end() -> None:
    rate = TokenRate()
    assert rate.at(0.0) is None
    rate.begin(0.0)
    assert rate.at(1.0) is None, "no token yet"
    for step in range(1, 101):
        rate.add(5, step / 10)
        assert rate.at(step / 10) == pytest.approx(
            50.0, rel=0.04
        )  # one count more or less at the window's border


def test_a_stream_that_slows_down_is_seen_within_the_window() -> None:
    rate = TokenRate()
    rate.begin(0.0)
    for step in range(1, 101):
        rate.add(10, step / 10)
    for second in range(1, 9):
        rate.add(1, 10.0 + second)
    assert rate.at(18.0) == pytest.approx(1.0, rel=0.4)
    assert rate.at(18.0 + 2 * WINDOW_SECONDS) is None
