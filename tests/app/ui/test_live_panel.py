"""The panel repeats what the engine says: of the answer, of the model, of what is kept and where."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import replace
from pathlib import Path
from time import thread_time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtCore import Qt
from PySide6.QtGui import QTextLayout
from PySide6.QtTest import QAbstractItemModelTester
from PySide6.QtWidgets import QApplication, QScrollArea, QWidget
from shown_words import english_words

from app.engine_commands import SlotTable
from app.ui.live_panel import LivePanel
from app.ui.metrics_words import use_sentence
from app.ui.share_bar import Share, widths
from app.ui.slot_model import DETAIL_ROLE, PLACE_ROLE, SlotModel, slot_lines
from app.ui.speed_history import STEPS, SpeedHistory, rounded_up
from app.ui.theme import current_theme
from app.ui.token_rate import WINDOW_SECONDS, TokenRate
from engine.generation import DecodeStats, PrefillStats, SlotInfo
from engine.metrics import AnswerMetrics, CardSpace, LayerUse, MemoryUse, Metrics, TokenWork, Work

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


GB = 10**9


def metrics(*, card: bool = True, copies: int = 99, **changes: Any) -> Metrics:
    space = CardSpace("NVIDIA H200", 150 * GB, 130 * GB) if card else None
    answer = AnswerMetrics(PrefillStats(310, 10, 0.1), DecodeStats(99, 0.5), Work(99 * 214, copies, 99))
    usual = Metrics(
        "cuda" if card else "cpu",
        MemoryUse(8 * GB, 2 * GB, 312, workspace_bytes=96_000_000 if card else 0, card=space),
        slots=2,
        most_slots=8,
        most_pages=4096,
        reused_tokens=12_345,
        last_answer=answer,
    )
    return replace(usual, **changes)


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
    assert panel._timer.isActive(), "the plot goes on until nothing is left to be seen"
    for _ in range(STEPS):
        panel._step()
    assert not panel._timer.isActive()


# The card


def test_the_card_s_memory_is_told_by_kind_in_words_and_to_screen_readers(panel: LivePanel) -> None:
    panel.set_slots(SlotTable(metrics=metrics()))
    assert panel.card.isVisible()
    amounts = {
        share.kind: panel.card.amount(share.kind).replace("\u202f", " ") for share in panel.card.shares
    }
    assert amounts == {
        "Weights": "8 GB",
        "Conversations": "2 GB",
        "Workspace": "96 MB",
        "Other programs": "9.9 GB",
        "Free": "130 GB",
    }
    names = [widget.accessibleName().replace("\u202f", " ") for widget in panel.card.findChildren(QWidget)]
    assert (
        "Memory of the card NVIDIA H200, 150 GB: weights 8 GB, conversations 2 GB, workspace 96 MB, "
        "other programs 9.9 GB, free 130 GB" in names
    )
    assert "Other programs: 9.9 GB" in names


def test_without_a_card_or_a_model_nothing_is_said_of_one(panel: LivePanel) -> None:
    panel.set_slots(SlotTable(metrics=metrics()))
    assert not panel.now.is_left_out("Prompt")
    for table in (SlotTable(metrics=metrics(card=False, copies=0)), SlotTable()):
        panel.set_slots(table)
        assert not panel.card.isVisible()
        assert panel.now.is_left_out("Prompt")
        assert panel.now.is_left_out("Copies")
        assert panel.now.explanation("Speed") == ""


def test_how_fast_the_prompt_was_read_is_said_on_a_card(panel: LivePanel) -> None:
    panel.set_slots(SlotTable(metrics=metrics(last_answer=None)))
    panel.begin_answer("a")
    assert panel.now.fact("Prompt") == "—"
    panel.show_prefill(PrefillStats(1010, 10, 0.5))
    assert panel.now.fact("Prompt") == "2,000 tok/s"
    panel.show_prefill(PrefillStats(10, 10, 0.0))
    assert panel.now.fact("Prompt") == "—", "nothing was read"


def test_copies_for_a_token_are_told_as_soon_as_there_was_an_answer(panel: LivePanel) -> None:
    panel.set_slots(SlotTable(metrics=metrics(last_answer=None)))
    assert panel.now.is_left_out("Copies")
    panel.set_slots(SlotTable(metrics=metrics()))
    assert panel.now.fact("Copies") == "1 in, 1 out"
    assert "214 pieces of work" in panel.now.explanation("Speed")
    assert "1 in, 1 out" in panel.now.explanation("Speed")
    panel.set_slots(SlotTable(metrics=metrics(copies=3 * 99)))
    assert panel.now.fact("Copies") == "3 in, 1 out"


def test_copies_for_a_token_follow_the_answer_while_it_is_written(panel: LivePanel) -> None:
    panel.set_slots(SlotTable(metrics=metrics(this_answer=TokenWork(10, Work(2000, 25, 10)))))
    assert panel.now.fact("Copies") == "2.5 in, 1 out"
    assert "200 pieces of work" in panel.now.explanation("Speed")
    panel.set_slots(SlotTable(metrics=metrics(this_answer=TokenWork(0, Work(1, 1, 1)))))
    assert panel.now.fact("Copies") == "1 in, 1 out", "the last answer's, as long as there is no token"
    panel.set_slots(SlotTable(metrics=metrics(last_answer=None, this_answer=TokenWork(4, Work(40, 4, 4)))))
    assert panel.now.fact("Copies") == "1 in, 1 out"


def test_what_made_room_for_others_is_counted_where_the_kept_are_listed(panel: LivePanel) -> None:
    assert use_sentence(metrics()).splitlines() == [
        "2 of 8 places are taken, with 312 of 4,096 pages.",
        "12,345 tokens needed not be read again since the model was loaded.",
    ]
    assert "make room for another 3 times" in use_sentence(metrics(evictions=3))
    assert "found no place once" in use_sentence(metrics(fallbacks=1))


@pytest.mark.parametrize("height", [360, 460, 700, 1200])
def test_what_is_kept_can_be_seen_however_low_the_panel_is(panel: LivePanel, height: int) -> None:
    panel.resize(240, height)
    panel.set_slots(SlotTable(SLOTS, metrics=metrics()))
    for _ in range(3):
        QApplication.processEvents()  # a size that changes has others change
    assert panel.height() == height, "nothing forces it higher"
    assert panel.view.height() >= panel.view.minimumHeight() > 0
    assert panel.rect().contains(panel.view.geometry())
    scroll = panel.findChild(QScrollArea)
    can_be_scrolled = scroll.verticalScrollBar().maximum() > 0
    assert (scroll.focusPolicy() != Qt.FocusPolicy.NoFocus) == can_be_scrolled
    assert scroll.height() <= scroll.sizeHint().height(), "and leaves the rest to the list"
    assert can_be_scrolled == (scroll.height() < scroll.sizeHint().height())
    assert can_be_scrolled or height > 460
    assert not can_be_scrolled or height < 1200


amounts = st.lists(st.integers(min_value=0, max_value=200 * GB), min_size=5, max_size=5)


@given(amounts, st.floats(min_value=60, max_value=400))
def test_the_bar_s_parts_fill_it_and_what_is_there_can_be_seen(sizes: list[int], whole: float) -> None:
    shares = tuple(map(Share, ("Weights", "Conversations", "Workspace", "Other programs", "Free"), sizes))
    found = widths(shares, whole)
    assert sum(found) == pytest.approx(whole if any(sizes) else 0.0)
    for size, width in zip(sizes, found, strict=True):
        assert width >= 2.99 if size else width == 0
    order = sorted(zip(sizes, found, strict=True))
    assert all(narrow <= wide + 1e-6 for (_, narrow), (_, wide) in itertools.pairwise(order))


def test_what_others_take_is_looked_at_when_the_panel_is_opened_and_nothing_is_written(
    panel: LivePanel, record
) -> None:
    asked = record(look=panel.look_requested)
    panel.hide()
    panel.show()
    assert asked == [("look",)]
    panel.begin_answer("a")
    panel.hide()
    panel.show()
    assert asked == [("look",)], "its end brings the figures anyway"


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


# The plot


def test_the_plot_shows_the_last_minute_and_then_nothing() -> None:
    history = SpeedHistory()
    assert history.is_empty
    history.step(40.0)
    history.add_reading(2000.0, seconds=1.0)
    assert list(history.read)[-4:] == [2000.0] * 4
    assert list(history.read)[-5] == 0.0
    for _ in range(STEPS - 1):
        history.step(0.0)
    assert not history.is_empty
    history.step(0.0)
    assert history.is_empty


@given(st.floats(min_value=1e-3, max_value=1e6))
def test_an_axis_ends_at_a_round_number_just_above_what_is_shown(value: float) -> None:
    top = rounded_up(value)
    assert value <= top * (1 + 1e-9)
    assert top <= 2.5 * value * (1 + 1e-9)


def test_a_long_reading_fills_the_plot_and_no_more() -> None:
    history = SpeedHistory()
    history.add_reading(100.0, seconds=10_000.0)
    assert list(history.read) == [100.0] * STEPS


def test_an_answer_moves_the_plot(panel: LivePanel, monkeypatch) -> None:
    clock = [10.0]
    monkeypatch.setattr("app.ui.live_panel.monotonic", lambda: clock[0])
    panel.begin_answer("a")
    panel.show_prefill(PrefillStats(1010, 10, 0.5))
    for _ in range(8):
        clock[0] += 0.25
        panel.count_tokens(5)
        panel._step()
    assert panel.plot.words("Writing") == "Writing 20 tok/s, peak 20"
    assert panel.plot.words("Reading") == "Reading 2,000 tok/s, peak 2,000"
    drawn = panel.plot.grab().toImage()
    colors = {drawn.pixelColor(x, y).name() for x in range(drawn.width()) for y in range(drawn.height())}
    assert {current_theme().accent, current_theme().success} <= colors
    panel.end_answer()
    panel._step()
    assert panel.plot.words("Writing").startswith("Writing 0 tok/s")


def test_it_is_brought_up_to_date_four_times_a_second_at_most(panel: LivePanel, qtbot, monkeypatch) -> None:
    steps = []
    monkeypatch.setattr(panel.plot, "refresh", lambda: steps.append(1))
    assert panel._timer.interval() >= 250
    panel.begin_answer("a")
    panel.show_prefill(PrefillStats(30, 20, 0.1))
    for number in range(2000):
        panel.count_tokens(1)
        panel.set_context_used(number)
    assert steps == [], "tokens alone draw nothing"


def test_what_the_panel_costs_is_less_than_a_hundredth_of_a_core(panel: LivePanel, monkeypatch) -> None:
    """Four times a second: everything of the engine is new, and all of the panel is drawn."""
    clock = [10.0]
    monkeypatch.setattr("app.ui.live_panel.monotonic", lambda: clock[0])
    panel.set_titles(TITLES)
    panel.set_model_summary(summary("cuda"))
    panel.begin_answer("a")
    panel.show_prefill(PrefillStats(1010, 10, 20.0))
    QApplication.processEvents()
    costs = []
    for number in range(120):
        clock[0] += 0.25
        began = thread_time()
        for _ in range(8):  # as often as text comes in, about 30 times a second
            panel.count_tokens(5 + number % 7)
            panel.set_context_used(1000 + number)
        memory = replace(metrics().memory, cache_bytes=2 * GB + number)
        slots = (replace(SLOTS[0], tokens=1234 + number), *SLOTS[1:])
        panel.set_slots(SlotTable(slots, 125_000_000 + number, replace(metrics(), memory=memory)))
        panel._step()
        QApplication.processEvents()
        costs.append(thread_time() - began)
    # All steps are alike; where other programs take the cache, some cost more and none less.
    assert statistics.quantiles(costs, n=10)[0] < 0.01 * 0.25


def test_figures_are_asked_for_while_it_is_seen_alone(panel: LivePanel, record) -> None:
    told = record(watch=panel.watch_changed)
    panel.hide()
    panel.show()
    assert told == [("watch", False), ("watch", True)]


# Context, layers, sections


def test_the_context_of_the_open_chat_is_told(panel: LivePanel) -> None:
    panel.set_context_used(1234)
    assert panel.now.fact("Context") == "—", "there is no model"
    panel.set_model_summary(summary())
    assert panel.now.fact("Context") == "1,234 of 8,192 tokens"


def test_a_window_says_how_many_layers_are_there_and_how_many_came(panel: LivePanel, monkeypatch) -> None:
    clock = [10.0]
    monkeypatch.setattr("app.ui.live_panel.monotonic", lambda: clock[0])

    def show(layers: LayerUse | None) -> None:
        panel.set_slots(SlotTable(metrics=metrics(memory=replace(metrics().memory, layers=layers))))

    show(LayerUse(total=30, at_once=30, present=30, brought=30, evicted=0))
    assert panel.now.fact("Layers") == "All 30"
    assert panel.now.is_left_out("Brought")
    show(LayerUse(total=94, at_once=7, present=7, brought=1000, evicted=993))
    assert panel.now.fact("Layers") == "7 of 94 at a time"
    assert not panel.now.is_left_out("Brought")
    clock[0] += 2.0
    show(LayerUse(total=94, at_once=7, present=7, brought=1188, evicted=1181))
    assert panel.now.fact("Brought") == "1,188 (94 a second)"
    show(None)
    assert panel.now.is_left_out("Layers")


def test_every_value_says_what_it_is_in_a_tooltip(panel: LivePanel) -> None:
    panel.set_model_summary(summary("cuda"))
    panel.set_slots(SlotTable(SLOTS, metrics=metrics()))
    for facts in (panel.now, panel.model):
        for name in facts.names:
            assert facts.explanation(name), name
            assert facts.explanation(name) in facts.value_tooltip(name).replace("&#x27;", "'")
    for kind in ("Writing", "Reading"):
        assert kind in panel.plot.toolTip()
    for part in panel.card.findChildren(QWidget):
        assert part.toolTip() or part.parent() is not panel.card or part.accessibleName()


def test_sections_fold_by_keyboard_and_stay_folded(panel: LivePanel, qtbot) -> None:
    section = panel.sections["Model"]
    qtbot.keyClick(section.heading, Qt.Key.Key_Space)
    assert not panel.model.isVisible()
    panel.set_model_summary(summary())
    assert not panel.model.isVisible()
    qtbot.keyClick(section.heading, Qt.Key.Key_Space)
    assert panel.model.isVisible()
    card = panel.sections["Memory of the card"]
    panel.set_slots(SlotTable(metrics=metrics()))
    qtbot.keyClick(card.heading, Qt.Key.Key_Space)
    panel.set_slots(SlotTable(metrics=metrics(evictions=1)))
    assert not panel.card.isVisible(), "new figures don't open it"


def test_nothing_of_the_panel_is_english_where_chinese_is_spoken(qtbot, in_chinese) -> None:
    panel = LivePanel()
    qtbot.addWidget(panel)
    panel.set_titles(TITLES)
    panel.set_model_summary(summary("cuda"))
    told = metrics(evictions=3, fallbacks=1)
    window = LayerUse(total=94, at_once=7, present=7, brought=1234, evicted=5)
    told = replace(told, memory=replace(told.memory, layers=window))
    panel.set_slots(SlotTable(SLOTS, memory_bytes=5 * GB, metrics=told))
    panel.begin_answer("a")
    names = "Kestrels Falcons Model Llama NVIDIA H200 a processor"
    assert english_words(panel, names=names) == set()
    panel.show_prefill(PrefillStats(310, 10, 0.1))
    panel.plot.refresh()
    assert english_words(panel, names=names) == set()


@pytest.mark.parametrize("title", ["Kestrels", "红隼的飞行"])
def test_a_row_is_as_high_as_the_letters_of_its_title_are(panel: LivePanel, qtbot, title: str) -> None:
    panel.set_slots(SlotTable(SLOTS[:1], memory_bytes=0, metrics=None))
    panel.set_titles({"a": "x"})
    plain = panel.view.sizeHintForRow(0)
    panel.set_titles({"a": title})
    more = int(_line_height(title) - _line_height("x"))
    assert panel.view.sizeHintForRow(0) >= plain + more


def _line_height(words: str) -> float:
    layout = QTextLayout(words, QApplication.font())
    layout.beginLayout()
    line = layout.createLine()
    layout.endLayout()
    return line.height()
