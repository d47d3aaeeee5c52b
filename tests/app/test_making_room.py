"""Whether the model that is loaded has to go before the next one is loaded, and what becomes of it then."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from controller_steps import FIRST, codes, load, only, start, watch
from load_plans import GB
from load_plans import PLAN as ROOMY

from app.controller import ChatController, ModelPhase
from app.making_room import LoadedModel, RoomPlan, plan_room
from app.settings import load_settings
from app.ui.plan_words import leaving_words, plan_shares, where_words
from engine.config import EngineConfig
from engine.errors import ModelFileError
from engine.load_plan import Freed, LoadPlan
from engine.metrics import CardSpace, MemoryUse, Metrics

SECOND = Path("/models/second")
CONFIG = EngineConfig()
PLAN = replace(ROOMY, free_bytes=8 * GB)
LOADED = LoadedModel(FIRST, "First", Freed(ram=3 * GB, card=10 * GB))


class Report:
    """A look at a model whose load does `beside` now, and `instead` once the loaded one is gone."""

    def __init__(self, path: Path, beside: LoadPlan | None, instead: LoadPlan | None) -> None:
        self.path = path
        self.beside = beside
        self.instead = instead
        self.freed: list[Freed] = []

    def plan(self, _config: EngineConfig, *, freed: Freed | None = None) -> LoadPlan | None:
        if freed is None:
            return self.beside
        self.freed.append(freed)
        return self.instead


def room(beside: LoadPlan, instead: LoadPlan) -> RoomPlan:
    found = plan_room(Report(SECOND, beside, instead), CONFIG, LOADED)  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.mark.parametrize(
    "worse",
    [
        {"is_loadable": False},
        {"device": "cpu"},
        {"window": 7},
        {"weights": "q4"},
        {"tokens": 4096},
    ],
)
def test_a_model_that_would_run_worse_beside_the_loaded_one_takes_its_place(worse) -> None:
    after = replace(PLAN, free_bytes=18 * GB)
    found = room(replace(PLAN, **worse), after)
    assert found == RoomPlan(after, LOADED, goes_first=True)


def test_the_loaded_model_stays_as_long_as_nothing_is_won_by_its_going() -> None:
    assert room(PLAN, replace(PLAN, free_bytes=18 * GB)) == RoomPlan(PLAN, LOADED)


def test_without_a_loaded_model_there_is_one_plan_and_for_a_broken_one_none() -> None:
    report = Report(SECOND, PLAN, None)
    assert plan_room(report, CONFIG, None) == RoomPlan(PLAN)  # type: ignore[arg-type]
    assert report.freed == []
    assert plan_room(Report(SECOND, None, None), CONFIG, LOADED) is None  # type: ignore[arg-type]


def test_what_the_loaded_model_has_is_told_apart_from_other_programs() -> None:
    beside = {share.kind: share.num_bytes for share in plan_shares(room(PLAN, PLAN))}
    assert (beside["Loaded model"], beside["Other programs"], beside["Free"]) == (10 * GB, 6 * GB, GB)
    goes = RoomPlan(replace(PLAN, free_bytes=18 * GB), LOADED, goes_first=True)
    after = {share.kind: share.num_bytes for share in plan_shares(goes)}
    assert (after["Loaded model"], after["Other programs"], after["Free"]) == (0, 6 * GB, 11 * GB)
    assert sum(beside.values()) == sum(after.values()) == 24 * GB


def test_that_the_loaded_model_goes_first_is_said_with_its_name() -> None:
    goes = RoomPlan(replace(PLAN, free_bytes=18 * GB), LOADED, goes_first=True)
    assert (
        where_words(goes).replace("\u202f", " ").endswith("18 GB of 24 GB available once First is unloaded")
    )
    assert leaving_words(goes).startswith("First is unloaded first")
    assert leaving_words(RoomPlan(PLAN, LOADED)) == ""
    assert "now" in where_words(RoomPlan(PLAN, LOADED))


def test_what_a_model_gives_back_is_where_it_computes_and_on_a_card_its_weights_in_memory_too() -> None:
    card = CardSpace("A card", 24 * GB, 10 * GB)
    memory = MemoryUse(4 * GB, 2 * GB, 7, workspace_bytes=GB, card=card, host_bytes=5 * GB)
    on_card = Metrics("cuda", memory, slots=0, most_slots=8, most_pages=16)
    assert LoadedModel.of(FIRST, "First", on_card).freed == Freed(ram=5 * GB, card=7 * GB)
    on_cpu = replace(on_card, memory=MemoryUse(4 * GB, 2 * GB, 7))
    assert LoadedModel.of(FIRST, "First", on_cpu).freed == Freed(ram=6 * GB)


# The load


@pytest.fixture
def inspected(qtbot, make_controller, record) -> SimpleNamespace:
    """A controller with the first model loaded, that has looked at the second: it has room only without."""
    report = Report(SECOND, replace(PLAN, device="cpu"), PLAN)
    controller: ChatController = make_controller(inspector=lambda _path, _config: report)
    start(qtbot, controller)
    qtbot.waitUntil(lambda: controller.loaded_model is not None)
    with qtbot.waitSignal(controller.model_inspected):
        controller.inspect_model(SECOND)
    return SimpleNamespace(controller=controller, events=watch(controller, record), report=report)


def phases(events: list[tuple]) -> list[tuple]:
    states = [event[1] for event in only(events, "model_state_changed")]
    return list(dict.fromkeys((state.phase, state.path) for state in states))


def test_the_loaded_model_goes_before_the_next_one_comes_where_both_have_no_room(
    qtbot, inspected, script
) -> None:
    script.load_gate = threading.Event()
    inspected.controller.load_model(SECOND)
    assert inspected.controller.model_state.summary is None, "it won't go on working"
    qtbot.waitUntil(lambda: script.closed == [FIRST])
    assert inspected.controller.model_state.phase is ModelPhase.LOADING
    with qtbot.waitSignal(
        inspected.controller.model_state_changed,
        check_params_cb=lambda state: state.phase is ModelPhase.READY,
    ):
        script.load_gate.set()
    assert phases(inspected.events) == [(ModelPhase.LOADING, SECOND), (ModelPhase.READY, SECOND)]
    assert inspected.report.freed == [Freed(ram=4_000)]
    assert inspected.controller.settings.last_model == SECOND


def test_a_program_that_ends_in_the_middle_begins_with_the_model_that_made_room(
    qtbot, inspected, script
) -> None:
    script.load_gate = threading.Event()
    inspected.controller.load_model(SECOND)
    with qtbot.waitSignal(inspected.controller.slots_changed):
        pass
    assert script.closed == [FIRST]
    inspected.controller.shutdown()
    file = inspected.controller.folders.settings / "settings.json"
    assert load_settings(file).settings.last_model == FIRST


def test_a_model_that_made_room_is_loaded_again_when_the_other_one_fails(qtbot, inspected, script) -> None:
    script.load_errors["second"] = ModelFileError("A file is damaged.", "Download it again.")
    with qtbot.waitSignal(
        inspected.controller.model_state_changed,
        check_params_cb=lambda state: state.phase is ModelPhase.READY,
    ):
        inspected.controller.load_model(SECOND)
    assert inspected.controller.model_state.summary.path == FIRST
    assert [event[1] for event in only(inspected.events, "load_failed")] == [SECOND]
    assert codes(inspected.events) == ["model-file"], "the card shows another load by then"
    assert inspected.controller.settings.last_model == FIRST


def test_a_model_that_made_room_is_loaded_again_when_the_load_is_cancelled(qtbot, inspected, script) -> None:
    gate = script.load_gate = threading.Event()
    inspected.controller.load_model(SECOND)
    qtbot.waitUntil(lambda: script.closed == [FIRST])
    with qtbot.waitSignal(
        inspected.controller.model_state_changed,
        check_params_cb=lambda state: state.phase is ModelPhase.READY,
    ):
        inspected.controller.cancel_load()
        qtbot.waitUntil(lambda: inspected.controller.model_state.path == FIRST)
        gate.set()
    assert only(inspected.events, "load_failed") == []


def test_a_model_that_made_room_and_fails_to_come_back_is_told_once(qtbot, inspected, script) -> None:
    for name in ("first", "second"):
        script.load_errors[name] = ModelFileError(f"The {name} is damaged.", "Download it again.")
    inspected.controller.load_model(SECOND)
    qtbot.waitUntil(lambda: len(only(inspected.events, "load_failed")) == 2)
    assert [event[1] for event in only(inspected.events, "load_failed")] == [SECOND, FIRST]
    assert inspected.controller.model_state.phase is ModelPhase.NONE


def test_unloading_in_the_middle_brings_nothing_back(qtbot, inspected, script) -> None:
    script.load_gate = threading.Event()
    inspected.controller.load_model(SECOND)
    qtbot.waitUntil(lambda: script.closed == [FIRST])
    inspected.controller.unload_model()
    qtbot.waitUntil(lambda: inspected.controller.model_state.phase is ModelPhase.NONE)
    assert len(script.configs) == 2


def test_a_plan_of_before_another_load_decides_nothing(qtbot, inspected, script) -> None:
    """Memory is another one since."""
    third = Path("/models/third")
    load(qtbot, inspected.controller, third)
    script.load_gate = threading.Event()
    inspected.controller.load_model(SECOND)
    assert inspected.controller.model_state.summary.path == third
    script.load_gate.set()
    qtbot.waitUntil(lambda: inspected.controller.model_state.phase is ModelPhase.READY)
