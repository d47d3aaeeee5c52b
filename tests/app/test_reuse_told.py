"""The engine itself behind the worker: what is left out, and what is read again for it, turn after turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from model_files import TINY_MODELS

from app.answer_stats import AnswerStats
from app.context_policy import ContextPolicy, prompt_limit
from app.conversation_records import Message, MessageStatus
from app.engine_commands import GenerateCommand
from app.ui.reuse_words import reuse_words
from app.worker import EngineWorker
from engine.config import EngineConfig
from engine.generation import FinishReason, ReuseReason, SamplingParams

CONTEXT = 512
WAIT_MS = 60_000


@pytest.fixture
def worker(qapp, qtbot) -> Iterator[EngineWorker]:
    worker = EngineWorker()
    with qtbot.waitSignal(worker.model_loaded, timeout=WAIT_MS):
        config = EngineConfig(device="cpu", weights="native", context=CONTEXT)
        worker.load_model(TINY_MODELS / "tiny-qwen2", config)
    yield worker
    assert worker.shutdown()


def message(role: str, text: str, stats: AnswerStats | None = None) -> Message:
    return Message(
        id=text,
        conversation_id="chat",
        role=role,
        text=text,
        thinking="",
        status=MessageStatus.COMPLETE,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        stats=stats,
    )


def test_a_chat_that_outgrows_its_context_reads_all_again_only_where_it_is_cut(
    qtbot, worker: EngineWorker, record
) -> None:
    """The instructions stay, each cut is told, and between two cuts only what is new is read."""
    shortened = record(shortened=worker.prompt_shortened)
    messages = [message("system", "The password is kestrel. Keep it.")]
    reuses, cuts = [], []
    for number in range(24):
        messages.append(message("user", f"Question {number}: and then?"))
        command = GenerateCommand(
            "chat",
            tuple(messages),
            SamplingParams(),
            max_new_tokens=6,
            policy=ContextPolicy.DROP_OLDEST,
        )
        del shortened[:]
        with qtbot.waitSignal(worker.answer_finished, timeout=WAIT_MS) as ended:
            worker.generate(command)
        finished = ended.args[1]
        left_out = shortened[0][2] if shortened else 0
        prefill = finished.prefill
        assert prefill.tokens <= prompt_limit(CONTEXT)
        stats = AnswerStats(
            prefill.tokens, prefill.reused, 0.1, 5, 0.1, finished.finish_reason, "cpu", left_out=left_out
        )
        messages.append(message("assistant", finished.text or "…", stats))
        reuses.append(prefill)
        cuts.append(left_out)
    assert cuts == sorted(cuts)
    anew = [number for number, (before, now) in enumerate(pairwise(cuts), 1) if now != before]
    assert len(anew) >= 2, "the context was never full twice"
    assert all(later - earlier > 2 for earlier, later in pairwise(anew)), "cuts are made in big steps"
    for number, prefill in enumerate(reuses[1:], 1):
        if number in anew:
            assert prefill.reason is ReuseReason.CONTEXT_POLICY
            assert 0 < prefill.reused == prefill.diverged_at, "the instructions needn't be read again"
            words = reuse_words(
                AnswerStats(
                    prefill.tokens, prefill.reused, 0, 0, 0, "end", "cpu", reuse_reason=prefill.reason
                )
            )
            assert words.endswith("(oldest messages left out)")
        else:
            assert prefill.tokens - prefill.reused < 60, "a turn's own tokens"


def test_a_full_context_ends_the_answer_where_that_is_chosen(qtbot, worker: EngineWorker) -> None:
    """Nothing is cut and nothing is read anew: the answer ends at the last token that has room."""
    command = GenerateCommand(
        "chat",
        (message("user", "and so on " * 90),),
        SamplingParams(),
        max_new_tokens=None,
        policy=ContextPolicy.STOP,
    )
    with qtbot.waitSignal(worker.answer_finished, timeout=WAIT_MS) as ended:
        worker.generate(command)
    finished = ended.args[1]
    assert finished.finish_reason is FinishReason.CONTEXT
    assert finished.prefill.tokens + len(finished.token_ids) == CONTEXT
    with qtbot.waitSignal(worker.answer_failed, timeout=WAIT_MS) as failed:
        worker.generate(replace(command, messages=(message("user", "and so on " * 300),)))
    assert failed.args[1].code == "context-full"


@pytest.mark.parametrize("length", [4, 5])
def test_a_fork_reads_only_what_is_new_when_its_original_is_deleted(
    qtbot, worker: EngineWorker, length: int
) -> None:
    """It ends in the middle of the original, with a question or an answer."""
    messages = [message("system", "The password is kestrel. Keep it.")]
    for number in range(3):
        messages.append(message("user", f"Question {number}: and then?"))
        with qtbot.waitSignal(worker.answer_finished, timeout=WAIT_MS) as ended:
            worker.generate(GenerateCommand("chat", tuple(messages), SamplingParams(), max_new_tokens=6))
        messages.append(message("assistant", ended.args[1].text or "…"))
    kept = tuple(messages[:length])
    worker.fork("branch", kept, ContextPolicy.STOP)
    with qtbot.waitSignal(
        worker.slots_changed,
        check_params_cb=lambda table: [row.conversation for row in table.slots] == ["branch"],
    ) as changed:
        worker.forget("chat")
    shared = changed.args[0].slots[0].tokens
    with qtbot.waitSignal(worker.answer_finished, timeout=WAIT_MS) as ended:
        worker.generate(
            GenerateCommand("branch", (*kept, message("user", "Why?")), SamplingParams(), max_new_tokens=2)
        )
    prefill = ended.args[1].prefill
    assert (prefill.reused, prefill.reason) == (shared, None)
    assert 0 < prefill.tokens - shared < 30, "the new question, and what the template puts around it"


def test_an_old_conversation_of_which_nothing_is_kept_is_not_called_new(qtbot, worker: EngineWorker) -> None:
    """As after a removal of all that is kept, or where nothing is to be kept."""
    messages = [message("user", "The password is kestrel. Keep it.")]
    reasons = []
    for _ in range(2):
        command = GenerateCommand("chat", tuple(messages), SamplingParams(), max_new_tokens=6)
        with qtbot.waitSignal(worker.answer_finished, timeout=WAIT_MS) as ended:
            worker.generate(command)
        finished = ended.args[1]
        assert finished.prefill.reused == 0
        reasons.append(finished.prefill.reason)
        messages += [message("assistant", finished.text or "…"), message("user", "And then?")]
        worker.forget_all()
    assert reasons == [ReuseReason.NEW, ReuseReason.NOT_KEPT]
