"""The one thread that owns the engine: commands go in, signals come out.

Every public signal is emitted on the thread that the worker was made on (the GUI thread), in the order in
which things happened on the engine's thread, so any slot may touch widgets.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from PySide6.QtCore import QObject, Signal, Slot

from app.context_policy import ContextPolicy
from app.conversation_records import Message
from app.delta_throttle import DeltaThrottle
from app.engine_commands import (
    AnswerDelta,
    AnswerFailed,
    AnswerFinished,
    AnswerGrew,
    AnswerPrefilled,
    EngineCommand,
    EngineEvent,
    EngineWatched,
    Forget,
    ForgetAll,
    Fork,
    FreeSlots,
    Generate,
    GenerateCommand,
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
    PromptShortened,
    Quit,
    SlotsChanged,
    SlotTable,
    Unload,
)
from app.engine_loop import EngineFactory, EngineLoop, load_engine
from app.threads import LoopThread, Mailbox
from engine.config import EngineConfig

__all__ = ["AnswerDelta", "EngineWorker", "GenerateCommand", "SlotTable"]

JOIN_TIMEOUT_MS = 5_000


class EngineWorker(QObject):
    """Commands are taken in order. Signals carry the id that the command returned.

    Every `load_model` ends in exactly one of `model_loaded`, `load_failed` and `load_cancelled`; every
    `generate` in exactly one of `answer_finished` and `answer_failed`, after the last `text_received`.
    """

    load_progressed = Signal(int, object)  # id, LoadProgress
    model_loaded = Signal(int, object)  # id, ModelSummary
    model_moved = Signal(object)  # ModelSummary; the card failed, and the model computes elsewhere
    load_failed = Signal(int, object)  # id, Notice; the model that was loaded before goes on working
    load_cancelled = Signal(int)
    model_unloaded = Signal()
    prompt_shortened = Signal(int, int)  # id, how many of the oldest messages are not read; before prefilled
    prefilled = Signal(int, object)  # id, PrefillStats
    text_received = Signal(int, object)  # id, AnswerDelta; coalesced to about 30 ms
    answer_finished = Signal(int, object)  # id, Finished
    answer_failed = Signal(int, object)  # id, Notice
    engine_watched = Signal(object)  # SlotTable; in the middle of an answer, while `watch` says so
    slots_changed = Signal(object)  # SlotTable; after all that changes it, and after a look
    notice_raised = Signal(object)  # Notice

    def __init__(
        self,
        *,
        engine_factory: EngineFactory = load_engine,
        states_folder: Path | None = None,
        parent: QObject | None = None,
    ) -> None:
        """states_folder: what is kept of conversations, as in the configs; None: the engine's own."""
        super().__init__(parent)
        self._ids = itertools.count(1)
        self._cancels: dict[int, threading.Event] = {}  # of every load and answer that has not ended
        self._load_ids: set[int] = set()
        self._closed = False
        self.encode: Callable[[str], list[int]] | None = None  # of the model that is loaded; for any thread
        self._commands: queue.SimpleQueue[EngineCommand] = queue.SimpleQueue()
        self._mailbox = Mailbox(self)
        self._throttle = DeltaThrottle(self)
        self._throttle.ready.connect(self.text_received)
        loop = EngineLoop(self._commands, self._report, engine_factory, states_folder=states_folder)
        self._watched = loop.watched
        self._thread = LoopThread("engine", loop.run)
        self._thread.begin()

    def load_model(self, path: Path, config: EngineConfig, *, unloads_first: bool = False) -> int:
        """Load a model in place of the one there is, which goes on until the new one is ready; or it is
        unloaded first, and `model_unloaded` comes before the load's end. A load that has not ended yet is
        cancelled.
        """
        self.cancel_load()
        load = Load(next(self._ids), path, config, unloads_first)
        self._cancels[load.id] = load.cancel
        self._load_ids.add(load.id)
        self._commands.put(load)
        return load.id

    def cancel_load(self) -> None:
        for load_id in self._load_ids:
            self._cancels[load_id].set()

    def unload_model(self) -> None:
        self._commands.put(Unload())

    def generate(self, command: GenerateCommand) -> int:
        generate = Generate(next(self._ids), command)
        self._cancels[generate.id] = generate.cancel
        self._commands.put(generate)
        return generate.id

    def stop(self, request_id: int) -> None:
        """Takes effect within one token. For an answer that has ended already it does nothing."""
        cancel = self._cancels.get(request_id)
        if cancel is not None:
            cancel.set()

    def fork(self, conversation_id: str, messages: Sequence[Message], policy: ContextPolicy) -> None:
        """A new conversation begins with these messages: it gets a share of its own in what is computed of
        them, before anything that is asked of the worker after this.
        """
        self._commands.put(Fork(conversation_id, tuple(messages), policy))

    def forget(self, conversation_id: str) -> None:
        """Free what the engine keeps of a conversation."""
        self._commands.put(Forget(conversation_id))

    def forget_all(self) -> None:
        """Free what the engine keeps of all conversations."""
        self._commands.put(ForgetAll())

    def free_slots(self) -> None:
        """Free the memory of conversations in which nothing is being written; their files stay."""
        self._commands.put(FreeSlots())

    def limit_states(self, *, ram_bytes: int | None, disk_bytes: int | None) -> None:
        """Other budgets for what the engine keeps of conversations, from now on."""
        self._commands.put(LimitStates(ram_bytes, disk_bytes))

    def watch(self, watched: bool) -> None:
        """Whether figures are wanted while an answer is written, four times a second at most."""
        if watched:
            self._watched.set()
        else:
            self._watched.clear()

    def look(self) -> None:
        """Ends in `slots_changed`, as soon as the engine does nothing else."""
        self._commands.put(Look())

    def shutdown(self) -> bool:
        """Cancel everything, wait for the thread, emit what it still had to say. False: it did not end in
        time.
        """
        if self._closed:
            return True
        self._closed = True
        for cancel in self._cancels.values():
            cancel.set()
        self._commands.put(Quit())
        joined = self._thread.join(JOIN_TIMEOUT_MS)
        self._mailbox.drain()
        self._mailbox.close()
        return joined

    def _report(self, event: EngineEvent) -> None:
        """On the engine's thread."""
        self._mailbox.post(lambda: self._on_event(event))

    @Slot(object)
    def _on_event(self, event: EngineEvent) -> None:
        match event:
            case AnswerGrew(request_id, delta):
                self._throttle.push(request_id, delta)
            case PromptShortened(request_id, left_out):
                self.prompt_shortened.emit(request_id, left_out)
            case AnswerPrefilled(request_id, stats):
                self.prefilled.emit(request_id, stats)
            case AnswerFinished(request_id, finished):
                self._throttle.flush()
                del self._cancels[request_id]
                self.answer_finished.emit(request_id, finished)
            case AnswerFailed(request_id, notice):
                self._throttle.flush()
                del self._cancels[request_id]
                self.answer_failed.emit(request_id, notice)
            case LoadProgressed(load_id, progress):
                self.load_progressed.emit(load_id, progress)
            case ModelLoaded(load_id, summary, encode):
                self.encode = encode
                self._end_load(load_id)
                self.model_loaded.emit(load_id, summary)
            case ModelMoved(summary):
                self.model_moved.emit(summary)
            case LoadFailed(load_id, notice):
                self._end_load(load_id)
                self.load_failed.emit(load_id, notice)
            case LoadCancelled(load_id):
                self._end_load(load_id)
                self.load_cancelled.emit(load_id)
            case ModelUnloaded():
                self.encode = None
                self.model_unloaded.emit()
            case EngineWatched(table):
                self.engine_watched.emit(table)
            case SlotsChanged(table):
                self.slots_changed.emit(table)
            case NoticeRaised(notice):
                self.notice_raised.emit(notice)

    def _end_load(self, load_id: int) -> None:
        del self._cancels[load_id]
        self._load_ids.discard(load_id)
