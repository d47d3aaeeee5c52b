"""The engine's thread: every command has one end, nothing kills the thread, and the window never waits."""

from __future__ import annotations

import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
from PySide6.QtCore import QObject, Slot

from app.context_policy import ContextPolicy
from app.conversations import Message, MessageStatus
from app.engine_commands import AnswerDelta, GenerateCommand
from app.engine_loop import BEGIN_ANEW
from app.prompt import chat_messages
from app.threads import running_threads
from app.worker import EngineWorker
from engine.config import EngineConfig
from engine.errors import Cancelled, ContextFullError, ModelFileError, OutOfMemoryError
from engine.generation import FinishReason, PrefillStats, ReuseReason, SamplingParams, SlotInfo
from engine.kv_geometry import KvGeometry
from engine.notices import Notice
from engine.progress import LoadProgress, LoadStage
from engine.states.kv_file import KvKey
from engine.states.kv_folder import KvFolder, default_root

MODEL = Path("/models/first")
OTHER = Path("/models/second")


def message(role: str, text: str, *, thinking: str = "", status: str = "complete") -> Message:
    return Message(
        id=text,
        conversation_id="chat",
        role=role,
        text=text,
        thinking=thinking,
        status=MessageStatus(status),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


COMMAND = GenerateCommand("chat", (message("user", "Hi"),), SamplingParams(temperature=0.5, seed=3))


@pytest.fixture
def worker(qapp, script) -> Iterator[EngineWorker]:
    worker = EngineWorker(engine_factory=script.load)
    yield worker
    assert worker.shutdown()


@pytest.fixture
def events(worker: EngineWorker, record) -> list[tuple]:
    """Everything the worker says, in order."""
    return record(
        progressed=worker.load_progressed,
        loaded=worker.model_loaded,
        load_failed=worker.load_failed,
        load_cancelled=worker.load_cancelled,
        unloaded=worker.model_unloaded,
        prefilled=worker.prefilled,
        text=worker.text_received,
        finished=worker.answer_finished,
        failed=worker.answer_failed,
        notice=worker.notice_raised,
    )


def load(qtbot, worker: EngineWorker, path: Path = MODEL) -> int:
    with qtbot.waitSignal(worker.model_loaded):
        return worker.load_model(path, EngineConfig())


def names(events: list[tuple]) -> list[str]:
    return [event[0] for event in events]


def answer(events: list[tuple]) -> AnswerDelta:
    deltas = [event[2] for event in events if event[0] == "text"]
    return AnswerDelta("".join(delta.thinking for delta in deltas), "".join(delta.text for delta in deltas))


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
    assert len(tables) == 4


def test_a_chat_that_is_deleted_without_a_model_leaves_no_file(qtbot, worker, script, record) -> None:
    root = default_root()
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
    folder = KvFolder(default_root(), KvKey("model", "native", KvGeometry("int8", ((1, 4),))), context=64)
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


# Answering


def test_an_answer_comes_as_prefill_text_and_end(qtbot, worker, events, script) -> None:
    load(qtbot, worker)
    del events[:]
    with qtbot.waitSignal(worker.answer_finished):
        request_id = worker.generate(COMMAND)
    assert list(dict.fromkeys(names(events))) == ["prefilled", "text", "finished"]
    assert {event[1] for event in events} == {request_id}
    assert answer(events) == AnswerDelta("", "Hello there")
    assert events[-1][2].finish_reason is FinishReason.END
    (request,) = script.requests
    assert request.conversation == "chat"  # so that the engine reuses what it has cached
    assert request.sampling == COMMAND.sampling
    assert request.prompt_ids == (1, 2, 3)
    assert script.prompts == [[("user", "Hi")]]


def test_text_is_coalesced_and_none_of_it_is_lost_or_late(qtbot, worker, events, script) -> None:
    script.pieces = [f"{number} " for number in range(2_000)]
    load(qtbot, worker)
    del events[:]
    with qtbot.waitSignal(worker.answer_finished):
        worker.generate(COMMAND)
    assert answer(events).text == "".join(script.pieces)
    assert names(events).count("text") < 400
    assert names(events)[-1] == "finished"


def test_a_piece_that_comes_alone_is_shown_without_waiting_for_the_next(qtbot, worker, script) -> None:
    gate = script.gates[1] = threading.Event()
    load(qtbot, worker)
    with qtbot.waitSignal(worker.text_received) as received:
        worker.generate(COMMAND)
    assert received.args[1] == AnswerDelta("", "Hel")
    with qtbot.waitSignal(worker.answer_finished):
        gate.set()


def test_a_stop_ends_the_answer_at_the_next_token_and_keeps_its_text(qtbot, worker, events, script) -> None:
    script.gates[2] = threading.Event()  # never opened: only the stop ends it
    load(qtbot, worker)
    with qtbot.waitSignal(worker.prefilled):
        request_id = worker.generate(COMMAND)
    qtbot.waitUntil(lambda: answer(events).text == "Hello")
    with qtbot.waitSignal(worker.answer_finished) as finished:
        worker.stop(request_id)
    assert finished.args[1].finish_reason is FinishReason.CANCELLED
    assert answer(events).text == "Hello"
    worker.stop(request_id)  # too late, and no error


def test_an_answer_that_is_stopped_while_it_waits_never_begins(qtbot, worker, events, script) -> None:
    gate = script.gates[0] = threading.Event()
    load(qtbot, worker)
    first, second = worker.generate(COMMAND), worker.generate(COMMAND)
    worker.stop(second)
    with qtbot.waitSignals([worker.answer_finished, worker.answer_finished]):
        gate.set()
    ends = {event[1]: event[2].finish_reason for event in events if event[0] == "finished"}
    assert ends == {first: FinishReason.END, second: FinishReason.CANCELLED}
    assert len(script.requests) == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ContextFullError("The prompt has 200 tokens and the context 128."), "context-full"),
        (RuntimeError("a bug"), "fault"),
    ],
)
def test_an_engine_that_fails_half_way_keeps_the_text_and_can_answer_again(
    qtbot, worker, events, script, error: Exception, code: str
) -> None:
    script.pieces = ["Hel", error]
    load(qtbot, worker)
    with qtbot.waitSignal(worker.answer_failed) as failed:
        worker.generate(COMMAND)
    assert failed.args[1].code == code
    assert (failed.args[1].hint == BEGIN_ANEW) is (code == "context-full"), "what a person in a chat can do"
    assert answer(events).text == "Hel"
    assert script.forgotten == [], "what is kept of the conversation is the engine's to judge"
    script.pieces = ["fine"]
    with qtbot.waitSignal(worker.answer_finished):
        worker.generate(COMMAND)


def test_a_cancel_that_the_engine_raises_is_a_stopped_answer(qtbot, worker, events, script) -> None:
    script.pieces = ["Hel", Cancelled()]
    load(qtbot, worker)
    with qtbot.waitSignal(worker.answer_finished) as finished:
        worker.generate(COMMAND)
    assert finished.args[1].finish_reason is FinishReason.CANCELLED
    assert finished.args[1].prefill.reused == 1
    assert finished.args[1].text == answer(events).text == "Hel"


@pytest.mark.parametrize(
    ("prompt_text", "pieces", "thinking", "text"),
    [
        ("prompt", ["<thi", "nk>why", "</th", "ink>", "because"], "why", "because"),
        ("prompt<think>\n", ["why", "</think>", "because"], "why", "because"),
        ("prompt", ["plain <b> text"], "", "plain <b> text"),
        ("prompt", ["<think>cut off", "</thi"], "cut off</thi", ""),
    ],
)
def test_thinking_is_told_apart_from_the_answer(
    qtbot, worker, events, script, prompt_text: str, pieces: list[str], thinking: str, text: str
) -> None:
    script.prompt_text, script.pieces = prompt_text, pieces
    load(qtbot, worker)
    with qtbot.waitSignal(worker.answer_finished):
        worker.generate(COMMAND)
    assert answer(events).thinking.strip() == thinking
    assert answer(events).text.strip() == text


def test_what_the_template_changed_is_told(qtbot, worker, events, script) -> None:
    script.prompt_notices = (Notice("system-rewritten", "The model knows no system role."),)
    load(qtbot, worker)
    with qtbot.waitSignal(worker.answer_finished):
        worker.generate(COMMAND)
    assert ("notice", script.prompt_notices[0]) in events


def test_answers_without_text_are_left_out_of_the_prompt() -> None:
    turns = chat_messages(
        [
            message("system", "be kind"),
            message("user", "one"),
            message("assistant", "", status="stopped"),
            message("user", "two"),
            message("assistant", " \n", thinking="hm", status="interrupted"),
            message("user", "three"),
            message("assistant", "so far", thinking="hm", status="stopped"),
            message("user", ""),
        ]
    )
    assert [(turn.role, turn.content, turn.thinking) for turn in turns] == [
        ("system", "be kind", ""),
        ("user", "one", ""),
        ("user", "two", ""),
        ("user", "three", ""),
        ("assistant", "so far", "hm"),
        ("user", "", ""),
    ]


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


# A conversation that outgrows the context


def turns(count: int) -> tuple[Message, ...]:
    """Of a system prompt and questions and answers of eight words each, a question last."""
    words = "one two three four five six seven eight"
    roles = ["system", *["user", "assistant"] * count, "user"]
    return tuple(
        replace(COMMAND.messages[0], id=str(i), role=role, text=words) for i, role in enumerate(roles)
    )


def test_a_full_context_ends_the_answer_with_its_reason(qtbot, worker, script, events) -> None:
    script.counts_words = True
    load(qtbot, worker)
    with qtbot.waitSignal(worker.answer_failed) as failed:
        worker.generate(replace(COMMAND, messages=turns(20)))
    assert failed.args[1].code == "context-full"
    assert "oldest messages" in failed.args[1].hint
    assert "shortened" not in names(events)


def test_the_oldest_turns_are_left_out_where_that_is_chosen_and_it_is_told_before_anything_is_read(
    qtbot, worker, script, record
) -> None:
    script.counts_words = True
    script.prefill = PrefillStats(30, 3, 0.1, reason=ReuseReason.HISTORY_REWRITTEN, diverged_at=3)
    load(qtbot, worker)
    events = record(
        shortened=worker.prompt_shortened, prefilled=worker.prefilled, finished=worker.answer_finished
    )
    messages = turns(20)
    with qtbot.waitSignal(worker.answer_finished) as finished:
        request_id = worker.generate(replace(COMMAND, messages=messages, policy=ContextPolicy.DROP_OLDEST))
    assert names(events) == ["shortened", "prefilled", "finished"]
    left_out = events[0][2]
    assert events[0][1] == request_id
    read = (messages[0], *messages[1 + left_out :])
    assert [role for role, _ in script.prompts[-1]] == [one.role for one in read]
    (request,) = script.requests
    assert len(request.prompt_ids) <= 96
    assert finished.args[1].prefill.reason is ReuseReason.CONTEXT_POLICY, "it is the program that rewrote it"


def test_a_message_that_is_too_long_by_itself_says_so_also_where_the_oldest_are_left_out(
    qtbot, worker, script
) -> None:
    script.counts_words = True
    load(qtbot, worker)
    message = replace(COMMAND.messages[0], text="word " * 200)
    with qtbot.waitSignal(worker.answer_failed) as failed:
        worker.generate(
            replace(COMMAND, messages=(*turns(2)[:-1], message), policy=ContextPolicy.DROP_OLDEST)
        )
    assert failed.args[1].code == "context-full"
    assert failed.args[1].hint.startswith("Shorten the message")


def test_every_token_is_counted_also_those_whose_text_was_held_back(qtbot, worker, script, events) -> None:
    script.pieces = ["a", "", "", "b", ""]
    load(qtbot, worker)
    with qtbot.waitSignal(worker.answer_finished):
        worker.generate(COMMAND)
    assert sum(event[2].num_tokens for event in events if event[0] == "text") == 4
