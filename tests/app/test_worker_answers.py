"""Answers on the engine's thread: every word comes, in order, and every answer has one end."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from worker_steps import COMMAND, answer, load, message, names, watch

from app.context_policy import ContextPolicy
from app.conversations import Message
from app.engine_commands import AnswerDelta
from app.engine_loop import BEGIN_ANEW, WATCH_INTERVAL_SECONDS
from app.prompt import chat_messages
from app.worker import EngineWorker
from engine.errors import Cancelled, ContextFullError
from engine.generation import FinishReason, PrefillStats, ReuseReason
from engine.notices import Notice


@pytest.fixture
def events(worker: EngineWorker, record) -> list[tuple]:
    return watch(worker, record)


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


def test_a_card_that_fails_is_told_at_once_and_the_answer_goes_on(qtbot, worker, events, script) -> None:
    lost = Notice("card-lost-meanwhile", "From here on the model runs on the CPU.")
    script.device = "cuda"
    script.pieces = ["Hel", lost, "lo"]
    script.gates[2] = threading.Event()
    load(qtbot, worker)
    with qtbot.waitSignal(worker.model_moved) as moved:
        worker.generate(COMMAND)
    assert (moved.args[0].device, moved.args[0].notices[-1]) == ("cpu", lost)
    with qtbot.waitSignal(worker.answer_finished):
        script.gates[2].set()
    assert answer(events).text == "Hello"
    assert events.count(("notice", lost)) == 1


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


def test_figures_come_in_the_middle_of_an_answer_while_somebody_watches(
    qtbot, worker, events, script, record, monkeypatch
) -> None:
    script.pieces = [f"{number} " for number in range(500)]
    load(qtbot, worker)
    seen = record(watched=worker.engine_watched)
    with qtbot.waitSignal(worker.answer_finished):
        worker.generate(COMMAND)
    assert seen == [], "nobody watches"
    worker.watch(True)
    began = time.monotonic()
    with qtbot.waitSignal(worker.answer_finished):
        worker.generate(COMMAND)
    most = 1 + (time.monotonic() - began) / WATCH_INTERVAL_SECONDS
    assert 1 <= len(seen) <= most, "four times a second at most, however fast tokens come"
    assert seen[0][1].metrics is not None
    worker.watch(False)
    del seen[:]
    with qtbot.waitSignal(worker.answer_finished):
        worker.generate(COMMAND)
    assert seen == []


def test_figures_that_can_t_be_had_end_no_answer(qtbot, worker, events, script) -> None:
    load(qtbot, worker)
    worker.watch(True)
    script.slot_error = ValueError("no table")
    del events[:]
    with qtbot.waitSignal(worker.answer_finished):
        worker.generate(COMMAND)
    assert answer(events).text == "Hello there"
    assert "notice" in names(events)
