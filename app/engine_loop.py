"""What the engine's thread does, with no Qt in it: takes commands from a queue, reports events through a
function.

This is the one place that ever touches a model. Nothing that goes wrong with a command ends the loop: the
command's own failure event says what it was, and a model that was loaded before goes on working.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from app.engine_commands import (
    AnswerDelta,
    AnswerFailed,
    AnswerFinished,
    AnswerGrew,
    AnswerPrefilled,
    EngineCommand,
    EngineEvent,
    Forget,
    Generate,
    Load,
    LoadCancelled,
    LoadFailed,
    LoadProgressed,
    ModelLoaded,
    ModelUnloaded,
    NoticeRaised,
    Quit,
    Unload,
)
from app.faults import notice_from
from app.prompt import chat_messages
from engine.config import EngineConfig
from engine.errors import Cancelled, ContextFullError, EngineError, OutOfMemoryError
from engine.generation import (
    DecodeStats,
    Finished,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    Prefilled,
    PrefillStats,
    TextDelta,
)
from engine.notices import Notice
from engine.progress import LoadProgress, LoadStage, ProgressCallback
from engine.thinking import ThinkingSplitter, leaves_thinking_open

if TYPE_CHECKING:
    from engine.engine import ModelSummary
    from engine.templates.chat_template import ChatMessage, ChatPrompt

log = logging.getLogger(__name__)

PROGRESS_INTERVAL_SECONDS = 0.03


class ChatEngine(Protocol):
    """What the loop needs of engine/engine.py."""

    summary: ModelSummary

    def chat_prompt(self, messages: Sequence[ChatMessage]) -> ChatPrompt: ...
    def generate(
        self, request: GenerationRequest, cancel: threading.Event | None = None
    ) -> Iterator[GenerationEvent]: ...
    def forget(self, conversation: str) -> None: ...
    def close(self) -> None: ...


EngineFactory = Callable[[Path, EngineConfig, ProgressCallback, threading.Event], ChatEngine]
"""Makes a loaded engine, on the engine's thread. Raises EngineError or Cancelled."""


def load_engine(
    path: Path, config: EngineConfig, on_progress: ProgressCallback, cancel: threading.Event
) -> ChatEngine:
    """The real one. Its modules are imported here, so that the window need not wait for them."""
    from engine.checkpoints.model_folder import open_model
    from engine.engine import Engine

    return Engine.load(open_model(path), config, on_progress=on_progress, cancel=cancel)


class EngineLoop:
    """Owns the engine. `run` returns after Quit."""

    def __init__(
        self,
        commands: queue.SimpleQueue[EngineCommand],
        report: Callable[[EngineEvent], None],
        engine_factory: EngineFactory = load_engine,
    ) -> None:
        self._commands = commands
        self._report = report
        self._engine_factory = engine_factory
        self._engine: ChatEngine | None = None

    def run(self) -> None:
        while True:
            match self._commands.get():
                case Load() as load:
                    self._load(load)
                case Generate() as generate:
                    self._generate(generate)
                case Forget(conversation_id):
                    self._forget(conversation_id)
                case Unload():
                    self._close_engine()
                    self._report(ModelUnloaded())
                case Quit():
                    self._close_engine()
                    return

    def _load(self, load: Load) -> None:
        try:
            if load.cancel.is_set():
                raise Cancelled
            progress = _ThinnedProgress(lambda step: self._report(LoadProgressed(load.id, step)))
            progress(LoadProgress(LoadStage.OPEN))
            engine = self._engine_factory(load.path, load.config, progress, load.cancel)
            if load.cancel.is_set():  # too late for the engine to notice, but not for us
                self._close(engine)
                raise Cancelled
        except Cancelled:
            self._report(LoadCancelled(load.id))
        except OutOfMemoryError as error:
            self._report(LoadFailed(load.id, self._no_room(error)))
        except Exception as error:  # noqa: BLE001  (the thread must live on; the failure is reported)
            self._report(LoadFailed(load.id, notice_from(error, doing=f"loading {load.path.name}")))
        else:
            self._close_engine()
            self._engine = engine
            self._report(ModelLoaded(load.id, engine.summary))

    def _no_room(self, error: OutOfMemoryError) -> Notice:
        notice = notice_from(error, doing="loading")
        if self._engine is None:
            return notice
        advice = f"{self._engine.summary.name} is loaded as well: unload it first to make room."
        return replace(notice, hint=f"{advice} {notice.hint}".strip())

    def _generate(self, generate: Generate) -> None:
        answer = _Answer(generate, self._report)
        try:
            if self._engine is None:
                self._report(AnswerFailed(generate.id, NO_MODEL))
            else:
                answer.write(self._engine)
        except Cancelled:
            answer.finish_cancelled()
        except ContextFullError as error:
            answer.fail(replace(notice_from(error, doing="answering"), hint=BEGIN_ANEW))
        except EngineError as error:
            answer.fail(notice_from(error, doing="answering"))
        except Exception as error:  # noqa: BLE001  (the thread must live on; the failure is reported)
            # Nobody knows how far the step came: what is cached of this conversation is dropped, not read.
            self._forget(generate.command.conversation_id)
            answer.fail(notice_from(error, doing="writing the answer"))

    def _forget(self, conversation_id: str) -> None:
        if self._engine is None:
            return
        try:
            self._engine.forget(conversation_id)
        except Exception as error:  # noqa: BLE001  (the thread must live on; the failure is reported)
            self._report(NoticeRaised(notice_from(error, doing="freeing a conversation's memory")))

    def _close_engine(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            self._close(engine)

    def _close(self, engine: ChatEngine) -> None:
        try:
            engine.close()
        except Exception as error:  # noqa: BLE001  (the thread must live on; the failure is reported)
            self._report(NoticeRaised(notice_from(error, doing="unloading the model")))


BEGIN_ANEW = "Begin a new chat: this one has grown longer than what the model can keep in view."
NO_MODEL = Notice("no-model", "No model is loaded.", "Choose a model, then send the message again.")


class _Answer:
    """One answer, from its prompt to its end."""

    def __init__(self, generate: Generate, report: Callable[[EngineEvent], None]) -> None:
        self._id = generate.id
        self._command = generate.command
        self._cancel = generate.cancel
        self._report = report
        self._splitter: ThinkingSplitter | None = None  # once the prompt is there
        self._text = ""  # as the model wrote it, thinking included
        self._token_ids: list[int] = []
        self._prefill = PrefillStats(tokens=0, reused=0, seconds=0.0)
        self._decode_began = 0.0

    def write(self, engine: ChatEngine) -> None:
        if self._cancel.is_set():
            raise Cancelled
        prompt = engine.chat_prompt(chat_messages(self._command.messages))
        for notice in prompt.notices:
            self._report(NoticeRaised(notice))
        self._splitter = splitter = ThinkingSplitter(open=leaves_thinking_open(prompt.text))
        request = GenerationRequest(
            prompt_ids=prompt.ids,
            sampling=self._command.sampling,
            max_new_tokens=self._command.max_new_tokens,
            stop=prompt.stop,
            conversation=self._command.conversation_id,
        )
        for event in engine.generate(request, self._cancel):
            match event:
                case Prefilled(stats):
                    self._prefill = stats
                    self._decode_began = time.perf_counter()
                    self._report(AnswerPrefilled(self._id, stats))
                case TextDelta(text, token_id):
                    self._text += text
                    self._token_ids.append(token_id)
                    self._grow(*splitter.push(text))
                case Finished():
                    self._finish(event)
                    return
        raise AssertionError("the engine ended an answer without Finished")

    def finish_cancelled(self) -> None:
        """For an answer that was stopped where the engine had nothing to return: before or during the
        prefill.
        """
        decoded = max(len(self._token_ids) - 1, 0)
        seconds = time.perf_counter() - self._decode_began if decoded else 0.0
        self._finish(
            Finished(
                text=self._text,
                token_ids=tuple(self._token_ids),
                finish_reason=FinishReason.CANCELLED,
                prefill=self._prefill,
                decode=DecodeStats(decoded, seconds),
            )
        )

    def fail(self, notice: Notice) -> None:
        self._grow_rest()
        self._report(AnswerFailed(self._id, notice))

    def _finish(self, finished: Finished) -> None:
        self._grow_rest()
        self._report(AnswerFinished(self._id, finished))

    def _grow_rest(self) -> None:
        """What the splitter held back because it could have become a tag."""
        if self._splitter is not None:
            self._grow(*self._splitter.finish())

    def _grow(self, thinking: str, text: str) -> None:
        if thinking or text:
            self._report(AnswerGrew(self._id, AnswerDelta(thinking, text)))


class _ThinnedProgress:
    """Lets through every new stage, the end of each, and a step about as often as a screen is drawn."""

    def __init__(self, report: ProgressCallback) -> None:
        self._report = report
        self._stage: LoadStage | None = None
        self._next = 0.0

    def __call__(self, progress: LoadProgress) -> None:
        now = time.monotonic()
        at_end = progress.total > 0 and progress.done >= progress.total
        if progress.stage is not self._stage or at_end or now >= self._next:
            self._stage = progress.stage
            self._next = now + PROGRESS_INTERVAL_SECONDS
            self._report(progress)
