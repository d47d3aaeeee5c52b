"""The one thread that owns the engine: commands go in, signals come out.

Every public signal is emitted on the thread that the worker was made on (the GUI thread), in the order in which
things happened on the engine's thread, so any slot may touch widgets.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QObject, Signal

from app.conversations import Message
from engine.config import EngineConfig
from engine.generation import SamplingParams


@dataclass(frozen=True)
class AnswerDelta:
    """A piece of an answer: what to append to its thinking and to its text. Never half a character."""

    thinking: str = ""
    text: str = ""


@dataclass(frozen=True)
class GenerateCommand:
    """One answer to write: the messages so far, oldest first, without the answer itself."""

    conversation_id: str  # the engine keeps this conversation's cache and reuses its prefix
    messages: tuple[Message, ...]
    sampling: SamplingParams
    max_new_tokens: int | None = None  # None: until the context is full


class EngineWorker(QObject):
    """Signals carry the id that the command returned."""

    load_progressed = Signal(int, object)  # id, LoadProgress
    model_loaded = Signal(int, object)  # id, ModelSummary
    load_failed = Signal(int, object)  # id, Notice
    load_cancelled = Signal(int)
    model_unloaded = Signal()
    prefilled = Signal(int, object)  # id, PrefillStats
    text_received = Signal(int, object)  # id, AnswerDelta
    answer_finished = Signal(int, object)  # id, Finished
    answer_failed = Signal(int, object)  # id, Notice
    notice_raised = Signal(object)  # Notice

    def load_model(self, path: Path, config: EngineConfig) -> int:
        raise NotImplementedError

    def cancel_load(self) -> None:
        raise NotImplementedError

    def unload_model(self) -> None:
        raise NotImplementedError

    def generate(self, command: GenerateCommand) -> int:
        raise NotImplementedError

    def stop(self, request_id: int) -> None:
        raise NotImplementedError

    def shutdown(self) -> bool:
        raise NotImplementedError
