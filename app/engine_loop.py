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

import psutil

from app.context_policy import ContextPolicy
from app.engine_answer import EngineAnswer
from app.engine_commands import (
    AnswerFailed,
    EngineCommand,
    EngineEvent,
    EngineWatched,
    Forget,
    ForgetAll,
    Fork,
    FreeSlots,
    Generate,
    LimitStates,
    Load,
    LoadCancelled,
    LoadFailed,
    LoadProgressed,
    Look,
    ModelLoaded,
    ModelMoved,
    ModelUnloaded,
    NoticeRaised,
    Quit,
    SlotsChanged,
    SlotTable,
    Unload,
)
from app.faults import notice_from
from app.prompt import PromptEngine, opening_prompt
from engine.config import EngineConfig
from engine.errors import Cancelled, ContextFullError, EngineError, OutOfMemoryError
from engine.generation import GenerationEvent, GenerationRequest, SlotInfo
from engine.metrics import Metrics
from engine.notices import Notice
from engine.progress import LoadProgress, LoadStage, ProgressCallback

if TYPE_CHECKING:
    from engine.model_summary import ModelSummary

log = logging.getLogger(__name__)

PROGRESS_INTERVAL_SECONDS = 0.03
WATCH_INTERVAL_SECONDS = 0.25


class ChatEngine(PromptEngine, Protocol):
    """What the loop needs of engine/engine.py."""

    def generate(
        self, request: GenerationRequest, cancel: threading.Event | None = None
    ) -> Iterator[GenerationEvent]: ...
    def fork(self, conversation: str, prompt_ids: Sequence[int]) -> int: ...
    def forget(self, conversation: str) -> None: ...
    def free_slots(self) -> None: ...
    def limit_states(self, *, ram_budget: int | None, disk_budget: int | None) -> None: ...
    def slot_table(self) -> tuple[SlotInfo, ...]: ...
    def metrics(self) -> Metrics: ...
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
        *,
        states_folder: Path | None = None,
    ) -> None:
        self._commands = commands
        self._report = report
        self._engine_factory = engine_factory
        self._states_folder = states_folder
        self._engine: ChatEngine | None = None
        self._summary: ModelSummary | None = None  # as it was told last
        self.watched = threading.Event()  # set by any thread while somebody looks at the figures
        self._next_look = 0.0

    def run(self) -> None:
        while True:
            match self._commands.get():
                case Load() as load:
                    self._load(load)
                case Generate() as generate:
                    self._generate(generate)
                case Fork() as fork:
                    self._fork(fork)
                    self._report_slots()
                case Forget(conversation_id):
                    self._forget(conversation_id)
                    self._report_slots()
                case ForgetAll():
                    self._forget_all()
                    self._report_slots()
                case FreeSlots():
                    self._free_slots()
                    self._report_slots()
                case LimitStates() as limits:
                    self._limit_states(limits)
                    self._report_slots()
                case Look():
                    self._report_slots()
                case Unload():
                    self._unload()
                case Quit():
                    self._close_engine()
                    return

    def _load(self, load: Load) -> None:
        try:
            if load.cancel.is_set():
                raise Cancelled
            progress = _ThinnedProgress(lambda step: self._report(LoadProgressed(load.id, step)))
            progress(LoadProgress(LoadStage.OPEN))
            if load.unloads_first:
                self._unload()
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
            self._summary = engine.summary
            self._report(ModelLoaded(load.id, engine.summary, engine.encode))
            self._report_slots()

    def _unload(self) -> None:
        self._close_engine()
        self._report(ModelUnloaded())
        self._report_slots()

    def _no_room(self, error: OutOfMemoryError) -> Notice:
        notice = notice_from(error, doing="loading")
        if self._engine is None:
            return notice
        advice = f"{self._engine.summary.name} is loaded as well: unload it first to make room."
        return replace(notice, hint=f"{advice} {notice.hint}".strip())

    def _generate(self, generate: Generate) -> None:
        answer = EngineAnswer(generate, self._report)
        try:
            if self._engine is None:
                self._report(AnswerFailed(generate.id, NO_MODEL))
            else:
                answer.write(self._engine, self._report_move, self._report_watched)
        except Cancelled:
            answer.finish_cancelled()
        except ContextFullError as error:
            dropping = generate.command.policy is ContextPolicy.DROP_OLDEST
            hint = SHORTEN if dropping else BEGIN_ANEW
            answer.fail(replace(notice_from(error, doing="answering"), hint=hint))
        except EngineError as error:
            answer.fail(notice_from(error, doing="answering"))
        except Exception as error:  # noqa: BLE001  (the thread must live on; the failure is reported)
            answer.fail(notice_from(error, doing="writing the answer"))
        self._report_slots()

    def _fork(self, fork: Fork) -> None:
        """Without a model, nobody can say which tokens the messages are: then there is nothing to share."""
        if self._engine is None:
            return
        try:
            prompt = opening_prompt(self._engine, fork.messages, fork.policy)
            self._engine.fork(fork.conversation_id, prompt.ids)
        except Exception as error:  # noqa: BLE001  (the thread must live on; the failure is reported)
            self._report(NoticeRaised(notice_from(error, doing="sharing what is computed with a branch")))

    def _forget(self, conversation_id: str) -> None:
        """Also without a model: files of its conversations lie on disk then, too."""
        try:
            if self._engine is not None:
                self._engine.forget(conversation_id)
                return
            for notice in _forget_files(self._states_folder, conversation_id):
                self._report(NoticeRaised(notice))
        except Exception as error:  # noqa: BLE001  (the thread must live on; the failure is reported)
            self._report(NoticeRaised(notice_from(error, doing="freeing a conversation's memory")))

    def _forget_all(self) -> None:
        try:
            if self._engine is not None:
                for slot in self._engine.slot_table():
                    self._engine.forget(slot.conversation)
            for notice in _forget_all_files(self._states_folder):
                self._report(NoticeRaised(notice))
        except Exception as error:  # noqa: BLE001  (the thread must live on; the failure is reported)
            self._report(NoticeRaised(notice_from(error, doing="removing what is kept of conversations")))

    def _free_slots(self) -> None:
        try:
            if self._engine is not None:
                self._engine.free_slots()
        except Exception as error:  # noqa: BLE001  (the thread must live on; the failure is reported)
            self._report(NoticeRaised(notice_from(error, doing="freeing the memory of other chats")))

    def _limit_states(self, limits: LimitStates) -> None:
        """Without a model, the next load brings the limits with it."""
        try:
            if self._engine is not None:
                self._engine.limit_states(ram_budget=limits.ram_bytes, disk_budget=limits.disk_bytes)
        except Exception as error:  # noqa: BLE001  (the thread must live on; the failure is reported)
            self._report(NoticeRaised(notice_from(error, doing="limiting what is kept of conversations")))

    def _report_move(self) -> None:
        """That the model computes elsewhere by now, and why."""
        if self._engine is None or self._summary is None or self._engine.summary == self._summary:
            return
        before, self._summary = self._summary, self._engine.summary
        for notice in self._summary.notices[len(before.notices) :]:
            self._report(NoticeRaised(notice))
        self._report(ModelMoved(self._summary))

    def _report_watched(self) -> None:
        """Between two tokens. It costs nothing while nobody looks."""
        if not self.watched.is_set() or time.monotonic() < self._next_look:
            return
        try:
            self._report(EngineWatched(self._table()))
        except Exception as error:  # noqa: BLE001  (no answer ends for its figures; the failure is reported)
            self.watched.clear()
            self._report(NoticeRaised(notice_from(error, doing="looking at what the engine does")))
        self._next_look = time.monotonic() + WATCH_INTERVAL_SECONDS

    def _table(self) -> SlotTable:
        memory = psutil.Process().memory_info().rss
        if self._engine is None:
            return SlotTable(memory_bytes=memory)
        return SlotTable(self._engine.slot_table(), memory, self._engine.metrics())

    def _report_slots(self) -> None:
        try:
            self._report_move()
            self._report(SlotsChanged(self._table()))
        except Exception as error:  # noqa: BLE001  (the thread must live on; the failure is reported)
            self._report(NoticeRaised(notice_from(error, doing="looking at what is kept of conversations")))

    def _close_engine(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            self._close(engine)

    def _close(self, engine: ChatEngine) -> None:
        try:
            engine.close()
        except Exception as error:  # noqa: BLE001  (the thread must live on; the failure is reported)
            self._report(NoticeRaised(notice_from(error, doing="unloading the model")))


def _forget_files(folder: Path | None, conversation_id: str) -> tuple[Notice, ...]:
    """Imported here, as `load_engine` does it."""
    from engine.default_folders import states_folder
    from engine.states.kv_folder import forget_conversation

    return forget_conversation(folder or states_folder(), conversation_id)


def _forget_all_files(folder: Path | None) -> tuple[Notice, ...]:
    from engine.default_folders import states_folder
    from engine.states.kv_folder import forget_all

    return forget_all(folder or states_folder())


BEGIN_ANEW = (
    "Begin a new chat, or choose at the context meter below that the oldest messages are no longer read."
)
SHORTEN = "Shorten the message, or load the model with a longer context."
NO_MODEL = Notice("no-model", "No model is loaded.", "Choose a model, then send the message again.")


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
