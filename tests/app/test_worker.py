"""The engine's thread: every command has one end, nothing kills the thread, and the window never waits."""

from __future__ import annotations

import subprocess
import sys
import threading
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PySide6.QtCore import QObject, Slot
from worker_steps import COMMAND, MODEL, answer, load, names, watch

from app.context_policy import ContextPolicy
from app.threads import running_threads
from app.worker import EngineWorker
from engine.config import EngineConfig
from engine.default_folders import states_folder
from engine.errors import Cancelled, ModelFileError, OutOfMemoryError
from engine.generation import SlotInfo
from engine.kv_geometry import KvGeometry
from engine.progress import LoadProgress, LoadStage
from engine.states.kv_file import KvKey
from engine.states.kv_folder import KvFolder


@pytest.fixture
def events(worker: EngineWorker, record) -> list[tuple]:
    return watch(worker, record)


OTHER = Path("/models/second")


# Loading


def test_a_load_reports_its_stages_and_then_its_model(qtbot, worker, events, script) -> None:
    load_id = load(qtbot, worker)
    assert events[0] == ("progressed", load_id, LoadProgress(LoadStage.OPEN))
    assert ("progressed", load_id, LoadProgress(LoadStage.WEIGHTS, 2, 2)) in events
    assert events[-1][:2] == ("loaded", load_id)
    assert events[-1][2].path == MODEL
    assert threading.get_ident() not in script.engine_threads


def test_a_thousand_steps_of_one_stage_do_not_flood_the_window(qtbot, qapp, record) -> None:
    def factory(path, config, on_progress, cancel):
        for done in range(1, 1001):
            on_progress(LoadProgress(LoadStage.WEIGHTS, done, 1000))
        raise Cancelled

    worker = EngineWorker(engine_factory=factory)
    events = record(progressed=worker.load_progressed)
    with qtbot.waitSignal(worker.load_cancelled):
        worker.load_model(MODEL, EngineConfig())
    assert worker.shutdown()
    assert len(events) < 200
    assert events[-1][2].done == 1000  # the end of a stage is never left out


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ModelFileError("config.json is missing in /models/second.", "Choose another folder."), "model-file"),
        (RuntimeError("a bug"), "fault"),
    ],
)
def test_a_failed_load_leaves_the_model_before_it_working(
    qtbot, worker, events, script, error: Exception, code: str
) -> None:
    load(qtbot, worker)
    script.load_errors["second"] = error
    with qtbot.waitSignal(worker.load_failed) as failed:
        load_id = worker.load_model(OTHER, EngineConfig())
    assert failed.args[0] == load_id
    assert failed.args[1].code == code
    assert "\n" not in failed.args[1].message
    assert script.closed == []
    with qtbot.waitSignal(worker.answer_finished):
        worker.generate(COMMAND)
    assert answer(events).text == "Hello there"


def test_a_second_model_that_does_not_fit_beside_the_first_says_to_unload_it(qtbot, worker, script) -> None:
    script.load_errors["second"] = OutOfMemoryError("It needs 9 GiB and 4 GiB are free.", "Close programs.")
    with qtbot.waitSignal(worker.load_failed) as alone:
        worker.load_model(OTHER, EngineConfig())
    assert alone.args[1].hint == "Close programs."
    load(qtbot, worker)
    with qtbot.waitSignal(worker.load_failed) as beside:
        worker.load_model(OTHER, EngineConfig())
    assert "first is loaded as well: unload it" in beside.args[1].hint


def test_a_new_model_takes_the_place_of_the_old_one_only_when_it_is_ready(qtbot, worker, script) -> None:
    load(qtbot, worker)
    script.load_gate = threading.Event()
    with qtbot.waitSignal(worker.load_progressed, check_params_cb=lambda _, step: step.done == 1):
        worker.load_model(OTHER, EngineConfig())
    assert script.closed == []
    with qtbot.waitSignal(worker.model_loaded):
        script.load_gate.set()
    assert script.closed == [MODEL]


def test_a_cancelled_load_ends_as_cancelled_and_keeps_the_old_model(qtbot, worker, events, script) -> None:
    load(qtbot, worker)
    script.load_gate = threading.Event()
    with qtbot.waitSignal(worker.load_progressed, check_params_cb=lambda _, step: step.done == 1):
        load_id = worker.load_model(OTHER, EngineConfig())
    with qtbot.waitSignal(worker.load_cancelled) as cancelled:
        worker.cancel_load()
    assert cancelled.args == [load_id]
    assert script.closed == []
    assert [event for event in events if event[0] in ("loaded", "load_failed") and event[1] == load_id] == []


def test_a_cancel_that_comes_when_the_model_is_ready_still_counts(qtbot, qapp, script) -> None:
    ready, let_go = threading.Event(), threading.Event()

    def factory(path, config, on_progress, cancel):
        engine = script.load(path, config, on_progress, cancel)
        ready.set()
        assert let_go.wait(20)
        return engine

    worker = EngineWorker(engine_factory=factory)
    with qtbot.waitSignal(worker.load_cancelled):
        worker.load_model(MODEL, EngineConfig())
        assert ready.wait(20)
        worker.cancel_load()
        let_go.set()
    assert script.closed == [MODEL]
    assert worker.shutdown()


def test_a_load_gives_up_the_one_before_it(qtbot, worker, events, script) -> None:
    script.load_gate = threading.Event()
    with qtbot.waitSignal(worker.load_progressed, check_params_cb=lambda _, step: step.done == 1):
        first = worker.load_model(MODEL, EngineConfig())
    with qtbot.waitSignals([worker.load_cancelled, worker.model_loaded], order="strict"):
        second = worker.load_model(OTHER, EngineConfig())
        script.load_gate.set()
    ends = [event[:2] for event in events if event[0] in ("load_cancelled", "loaded")]
    assert ends == [("load_cancelled", first), ("loaded", second)]


def test_unloading_closes_the_model_and_a_send_then_says_that_there_is_none(qtbot, worker, script) -> None:
    load(qtbot, worker)
    with qtbot.waitSignal(worker.model_unloaded):
        worker.unload_model()
    assert script.closed == [MODEL]
    with qtbot.waitSignal(worker.answer_failed) as failed:
        worker.generate(COMMAND)
    assert failed.args[1].code == "no-model"


# What is kept of conversations


def test_the_slot_table_comes_after_each_load_answer_forget_and_unloading(
    qtbot, worker, script, record
) -> None:
    slot = SlotInfo("chat", tokens=70, pages=2, place="pool", reused=60, total=68)
    tables = record(slots=worker.slots_changed)
    with qtbot.waitSignal(worker.slots_changed):
        worker.load_model(MODEL, EngineConfig())
    assert tables[-1][1].slots == ()
    assert tables[-1][1].memory_bytes > 1_000_000
    assert tables[-1][1].metrics is script.metrics
    script.slots = (slot,)
    with qtbot.waitSignal(worker.slots_changed):
        worker.generate(COMMAND)
    assert tables[-1][1].slots == (slot,)
    script.slots = ()
    with qtbot.waitSignal(worker.slots_changed):
        worker.forget("chat")
    assert tables[-1][1].slots == ()
    script.slots = (slot,)
    with qtbot.waitSignal(worker.slots_changed):
        worker.unload_model()
    assert tables[-1][1].slots == ()
    assert tables[-1][1].metrics is None
    assert len(tables) == 4


def test_a_look_says_anew_what_is_taken_and_changes_nothing(qtbot, worker, script, record) -> None:
    load(qtbot, worker)
    tables = record(slots=worker.slots_changed)
    script.metrics = replace(script.metrics, evictions=7)
    with qtbot.waitSignal(worker.slots_changed):
        worker.look()
    assert [table.metrics.evictions for _, table in tables] == [7]
    assert script.calls == []


def test_a_chat_that_is_deleted_without_a_model_leaves_no_file(qtbot, worker, script, record) -> None:
    root = states_folder()
    key = KvKey("model", "native", KvGeometry("int8", ((1, 4),)))
    folder = KvFolder(root, key, context=64)
    pages = [torch.zeros(key.geometry.page_bytes, dtype=torch.uint8)]
    for name in ("chat", "other"):
        folder.write(name, array("I", [1, 2, 3]), pages, used_ns=1)
    folder.wait()
    notices = record(notice=worker.notice_raised)
    with qtbot.waitSignal(worker.slots_changed):
        worker.forget("chat")
    assert list(root.iterdir()) == [folder.path("other")]
    assert (notices, script.forgotten) == ([], [])


def test_a_file_of_a_deleted_chat_that_cannot_be_removed_is_told(qtbot, worker) -> None:
    folder = KvFolder(states_folder(), KvKey("model", "native", KvGeometry("int8", ((1, 4),))), context=64)
    folder.path("chat").mkdir(parents=True)  # a folder can't be removed as a file
    with qtbot.waitSignal(worker.notice_raised) as told:
        worker.forget("chat")
    assert told.args[0].code == "state-file-stays"


def test_a_fork_without_a_model_shares_nothing_and_says_nothing(qtbot, worker, script, events) -> None:
    with qtbot.waitSignal(worker.slots_changed):
        worker.fork("branch", COMMAND.messages, ContextPolicy.STOP)
    assert (events, script.forked) == ([], [])


def test_a_fork_that_fails_is_told_and_the_thread_lives_on(qtbot, worker, script) -> None:
    load(qtbot, worker)
    script.fork_error = OutOfMemoryError("There is no memory for a copy of a page.")
    with qtbot.waitSignal(worker.notice_raised) as told:
        worker.fork("branch", COMMAND.messages, ContextPolicy.STOP)
    assert told.args[0].code == "out-of-memory"
    with qtbot.waitSignal(worker.answer_finished):
        worker.generate(COMMAND)


def test_a_table_that_cannot_be_made_is_told_and_the_thread_lives_on(qtbot, worker, script) -> None:
    load(qtbot, worker)
    with qtbot.waitSignal(worker.notice_raised) as told:
        script.slot_error = RuntimeError("a bug")
        worker.forget("chat")
    assert told.args[0].code == "fault"
    script.slot_error = None
    with qtbot.waitSignal(worker.answer_finished):
        worker.generate(COMMAND)


# Threads


class _Witness(QObject):
    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()

    @Slot(int, object)
    def on_signal(self, _number: int, _value: object) -> None:
        self.threads.add(threading.get_ident())


def test_every_signal_arrives_on_the_gui_thread_for_slots_and_plain_functions_alike(
    qtbot, worker, script
) -> None:
    witness = _Witness()
    for signal in (worker.load_progressed, worker.model_loaded, worker.text_received, worker.answer_finished):
        signal.connect(witness.on_signal)
        signal.connect(lambda *_: witness.threads.add(threading.get_ident()))
    load(qtbot, worker)
    with qtbot.waitSignal(worker.answer_finished):
        worker.generate(COMMAND)
    assert witness.threads == {threading.get_ident()}
    assert threading.get_ident() not in script.engine_threads
    assert len(script.engine_threads) == 1


def test_the_event_loop_never_stalls_while_the_engine_works(qtbot, worker, script, stall_meter) -> None:
    script.pieces = [f"{number} " for number in range(5_000)]
    stall_meter.start()
    load(qtbot, worker)
    with qtbot.waitSignal(worker.answer_finished, timeout=20_000):
        worker.generate(COMMAND)
    assert stall_meter.stop() < 100


@pytest.mark.parametrize("state", ["idle", "loaded", "loading", "generating", "waiting"])
def test_shutdown_in_any_state_ends_the_thread_and_every_command(
    qtbot, qapp, script, record, state: str
) -> None:
    worker = EngineWorker(engine_factory=script.load)
    ends = record(
        load_cancelled=worker.load_cancelled, finished=worker.answer_finished, failed=worker.answer_failed
    )
    script.gates[1] = threading.Event()
    if state == "loading":
        script.load_gate = threading.Event()
        with qtbot.waitSignal(worker.load_progressed, check_params_cb=lambda _, step: step.done == 1):
            worker.load_model(MODEL, EngineConfig())
    elif state != "idle":
        load(qtbot, worker)
    if state in ("generating", "waiting"):
        with qtbot.waitSignal(worker.text_received):
            worker.generate(COMMAND)
    if state == "waiting":
        worker.generate(COMMAND)
        worker.load_model(OTHER, EngineConfig())
    assert worker.shutdown()
    assert running_threads() == []
    expected = {
        "loading": ["load_cancelled"],
        "generating": ["finished"],
        "waiting": ["finished", "finished", "load_cancelled"],
    }
    assert names(ends) == expected.get(state, [])
    assert script.closed == ([] if state in ("idle", "loading") else [MODEL])


_STUCK = """
import os, sys, threading
from pathlib import Path
from PySide6.QtCore import QCoreApplication
import app.worker
from engine.config import EngineConfig

app.worker.JOIN_TIMEOUT_MS = 50
application = QCoreApplication(sys.argv)
began, let_go = threading.Event(), threading.Event()
def factory(path, config, on_progress, cancel):
    began.set()
    let_go.wait()
    on_progress(None)
worker = app.worker.EngineWorker(engine_factory=factory)
worker.load_model(Path("/models/stuck"), EngineConfig())
began.wait()
joined = worker.shutdown()
del worker
let_go.set()
print(joined, flush=True)
os._exit(3)
"""


def test_an_engine_that_does_not_let_go_is_reported_and_does_not_abort_the_process() -> None:
    """Importing torch from a cold disk can't be interrupted."""
    done = subprocess.run(
        [sys.executable, "-c", _STUCK],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    assert (done.returncode, done.stdout) == (3, "False\n")
    assert "Destroyed while thread" not in done.stderr
