"""Loading, failing, cancelling, unloading and looking at models, on a fake engine."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from controller_steps import FIRST, begin, codes, only, rejected, send, start, watch

from app.controller import ChatController, ModelPhase
from app.conversations import MessageStatus
from app.settings import Settings, load_settings, save_settings
from engine.errors import ModelFileError
from engine.notices import Notice

SECOND = Path("/models/second")


@pytest.fixture
def events(controller: ChatController, record) -> list[tuple]:
    return watch(controller, record)


# Models


def test_a_load_goes_through_its_states_and_is_remembered(
    qtbot, controller, events, app_paths, script
) -> None:
    controller.update_settings(context_tokens=64, threads=2)
    start(qtbot, controller)
    states = [event[1] for event in only(events, "model_state_changed")]
    phases = list(dict.fromkeys(state.phase for state in states))
    assert phases == [ModelPhase.NONE, ModelPhase.LOADING, ModelPhase.READY]
    assert states[1].path == FIRST
    assert states[1].name == "first"
    assert states[1].progress is None  # it waits for the engine's thread
    assert any(state.progress is not None for state in states)
    assert states[-1].summary.path == FIRST
    assert controller.settings.recent_models == (FIRST,)
    assert (script.configs[0].context, script.configs[0].threads) == (64, 2)
    assert (script.configs[0].device, script.configs[0].vram_budget) == ("auto", None)


@pytest.mark.parametrize(("device", "budget"), [("auto", 10**9), ("cuda", 10**9), ("cpu", None)])
def test_the_device_and_its_budget_are_those_that_were_chosen(
    qtbot, controller, script, device: str, budget: int | None
) -> None:
    """A budget that was meant for a card is nothing to be told of on the processor."""
    controller.update_settings(device=device, vram_bytes=10**9)
    start(qtbot, controller)
    assert (script.configs[0].device, script.configs[0].vram_budget) == (device, budget)


def test_a_failed_load_goes_back_to_the_model_before_it_which_works(
    qtbot, controller, events, script
) -> None:
    start(qtbot, controller)
    before = controller.model_state
    error = ModelFileError("config.json is missing in /models/second.", "Choose another folder.")
    script.load_errors["second"] = error
    with qtbot.waitSignal(controller.load_failed) as failed:
        controller.load_model(SECOND)
        assert controller.model_state.phase is ModelPhase.LOADING
        assert controller.model_state.path == SECOND
        assert controller.model_state.summary == before.summary
    assert failed.args == [SECOND, Notice("model-file", error.message, error.hint)]
    assert controller.model_state == before
    assert controller.settings.recent_models == (FIRST,)
    send(qtbot, controller, "Hi")


def test_a_cancelled_load_is_no_failure(qtbot, controller, events, script) -> None:
    start(qtbot, controller, model=None)
    script.load_gate = threading.Event()
    with qtbot.waitSignal(controller.model_state_changed, check_params_cb=lambda state: state.progress):
        controller.load_model(FIRST)
    with qtbot.waitSignal(
        controller.model_state_changed, check_params_cb=lambda state: state.phase is ModelPhase.NONE
    ):
        controller.cancel_load()
    assert only(events, "load_failed", "notice_raised") == []
    assert rejected(controller, events, "Hi") == "no-model"


def test_a_card_that_fails_during_an_answer_leaves_a_model_on_the_cpu_and_a_banner(
    qtbot, controller, events, script
) -> None:
    lost = Notice("card-lost-meanwhile", "From here on the model runs on the CPU.")
    script.device = "cuda"
    script.pieces = ["Hel", lost, "lo"]
    start(qtbot, controller)
    assert controller.model_state.summary.device == "cuda"
    send(qtbot, controller, "hi")
    state = controller.model_state
    assert (state.phase, state.summary.device) == (ModelPhase.READY, "cpu")
    assert codes(events).count("card-lost-meanwhile") == 1
    finished = only(events, "answer_finished")[-1][-1]
    assert (finished.text, finished.status, finished.stats.device) == ("Hello", MessageStatus.COMPLETE, "cpu")


def test_a_second_load_takes_the_place_of_the_one_that_runs(qtbot, controller, events, script) -> None:
    start(qtbot, controller, model=None)
    script.load_gate = threading.Event()
    with qtbot.waitSignal(controller.model_state_changed, check_params_cb=lambda state: state.progress):
        controller.load_model(FIRST)
    del events[:]
    with qtbot.waitSignal(
        controller.model_state_changed, check_params_cb=lambda state: state.phase is ModelPhase.READY
    ):
        controller.load_model(SECOND)
        script.load_gate.set()
    states = [event[1] for event in only(events, "model_state_changed")]
    assert {state.path for state in states} == {SECOND}  # the first one's end is not shown
    assert only(events, "load_failed") == []


def test_a_model_chosen_during_an_answer_is_loaded_when_it_ends(qtbot, controller, events, script) -> None:
    start(qtbot, controller)
    gate = begin(qtbot, controller, script, "Hi")
    controller.load_model(SECOND)
    assert controller.model_state.phase is ModelPhase.LOADING
    with qtbot.waitSignal(
        controller.model_state_changed, check_params_cb=lambda state: state.phase is ModelPhase.READY
    ):
        gate.set()
    qtbot.waitUntil(lambda: not controller.answering)
    ((_, _, answer),) = only(events, "answer_finished")
    assert (answer.text, answer.status) == ("Hello there", MessageStatus.COMPLETE)
    assert controller.settings.recent_models == (SECOND, FIRST)


def test_unloading_stops_the_answer_and_is_remembered(qtbot, controller, events, script) -> None:
    start(qtbot, controller)
    begin(qtbot, controller, script, "Hi")
    with qtbot.waitSignal(
        controller.model_state_changed, check_params_cb=lambda state: state.phase is ModelPhase.NONE
    ):
        controller.unload_model()
    qtbot.waitUntil(lambda: not controller.answering)
    ((_, _, answer),) = only(events, "answer_finished")
    assert answer.status is MessageStatus.STOPPED
    assert script.closed == [FIRST]
    assert controller.settings.last_model is None
    assert controller.settings.recent_models == (FIRST,)


def test_a_model_whose_load_took_the_program_down_is_not_loaded_by_itself_again(
    qtbot, make_controller, script, app_paths, record
) -> None:
    save_settings(app_paths.settings_file, Settings(last_model=FIRST, recent_models=(FIRST,)))
    app_paths.load_marker_file.parent.mkdir(parents=True)
    app_paths.load_marker_file.write_text(json.dumps({"model": str(FIRST)}))  # of a process that ended
    for expected in (["load-ended-program"], []):  # the second start finds no reason to tell it again
        controller = make_controller()
        events = watch(controller, record)
        start(qtbot, controller, model=None)
        qtbot.waitUntil(lambda events=events, expected=expected: codes(events) == expected)
        assert controller.shutdown()
        assert script.configs == []
        assert not app_paths.load_marker_file.exists()
    assert load_settings(app_paths.settings_file).settings.recent_models == (FIRST,)


def test_the_mark_stands_on_disk_exactly_while_the_last_model_loads_by_itself(
    qtbot, make_controller, script, app_paths
) -> None:
    save_settings(app_paths.settings_file, Settings(last_model=FIRST))
    script.load_gate = threading.Event()
    controller = make_controller()
    with qtbot.waitSignal(controller.model_state_changed, check_params_cb=lambda state: state.progress):
        controller.start()
    assert json.loads(app_paths.load_marker_file.read_text())["model"] == str(FIRST)
    script.load_gate.set()
    qtbot.waitUntil(lambda: not app_paths.load_marker_file.exists())


def test_a_second_window_takes_the_load_of_the_first_for_no_crash(
    qtbot, make_controller, script, app_paths, record
) -> None:
    save_settings(app_paths.settings_file, Settings(last_model=FIRST))
    script.load_gate = threading.Event()
    first = make_controller()
    with qtbot.waitSignal(first.model_state_changed, check_params_cb=lambda state: state.progress):
        first.start()
    second = make_controller()
    events = watch(second, record)
    with qtbot.waitSignal(second.model_state_changed, check_params_cb=lambda state: state.progress):
        second.start()
    script.load_gate.set()
    for controller in (first, second):
        qtbot.waitUntil(lambda controller=controller: controller.model_state.phase is ModelPhase.READY)
    assert codes(events) == []


def test_closing_the_window_during_the_first_load_is_no_crash(
    qtbot, make_controller, script, app_paths
) -> None:
    save_settings(app_paths.settings_file, Settings(last_model=FIRST))
    script.load_gate = threading.Event()
    controller = make_controller()
    with qtbot.waitSignal(controller.model_state_changed, check_params_cb=lambda state: state.progress):
        controller.start()
    assert controller.shutdown()
    assert not app_paths.load_marker_file.exists()
    assert load_settings(app_paths.settings_file).settings.last_model == FIRST


def test_a_model_given_at_the_start_is_loaded_instead_of_the_last_one(
    qtbot, make_controller, app_paths
) -> None:
    save_settings(app_paths.settings_file, Settings(last_model=FIRST))
    controller = make_controller()
    with qtbot.waitSignal(
        controller.model_state_changed, check_params_cb=lambda state: state.phase is ModelPhase.READY
    ):
        controller.start(SECOND)
    assert controller.model_state.path == SECOND


# Looking at a model


def test_only_the_last_model_looked_at_is_reported_and_the_looking_blocks_nothing(
    qtbot, make_controller, record
) -> None:
    gate = threading.Event()
    threads: set[int] = set()

    def inspector(path: Path, config) -> SimpleNamespace:
        threads.add(threading.get_ident())
        assert gate.wait(20)
        return SimpleNamespace(path=path)

    controller = make_controller(inspector=inspector)
    events = watch(controller, record)
    for path in (FIRST, Path("/models/between"), SECOND):
        controller.inspect_model(path)
    start(qtbot, controller)  # the store and the engine go on meanwhile
    send(qtbot, controller, "Hi")
    assert only(events, "model_inspected") == []
    with qtbot.waitSignal(controller.model_inspected):
        gate.set()
    assert [event[1].path for event in only(events, "model_inspected")] == [SECOND]
    assert threading.get_ident() not in threads


def test_a_look_that_fails_is_told(qtbot, make_controller) -> None:
    def inspector(path: Path, config) -> None:
        raise ValueError("bug")

    controller = make_controller(inspector=inspector)
    with qtbot.waitSignal(controller.inspection_failed) as told:
        controller.inspect_model(FIRST)
    path, notice = told.args
    assert (path, notice.code) == (FIRST, "fault")
