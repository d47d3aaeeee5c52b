"""What tests do with the worker on the fake engine, step by step."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from app.conversations import Message, MessageStatus
from app.engine_commands import AnswerDelta, GenerateCommand
from app.worker import EngineWorker
from engine.config import EngineConfig
from engine.generation import SamplingParams

MODEL = Path("/models/first")


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


def watch(worker: EngineWorker, record) -> list[tuple]:
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
    """Until all that a load says has been said: its figures come behind the model."""
    with qtbot.waitSignals([worker.model_loaded, worker.slots_changed]):
        return worker.load_model(path, EngineConfig())


def names(events: list[tuple]) -> list[str]:
    return [event[0] for event in events]


def answer(events: list[tuple]) -> AnswerDelta:
    deltas = [event[2] for event in events if event[0] == "text"]
    return AnswerDelta("".join(delta.thinking for delta in deltas), "".join(delta.text for delta in deltas))
