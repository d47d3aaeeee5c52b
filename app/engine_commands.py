"""What goes into the engine's thread and what comes out of it, as plain records."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from app.context_policy import ContextPolicy
from app.conversation_records import Message
from engine.config import EngineConfig
from engine.generation import Finished, PrefillStats, SamplingParams, SlotInfo
from engine.metrics import Metrics
from engine.notices import Notice
from engine.progress import LoadProgress

if TYPE_CHECKING:
    from engine.model_summary import ModelSummary


@dataclass(frozen=True)
class AnswerDelta:
    """A piece of an answer: what to append to its thinking and to its text. Never half a character."""

    thinking: str = ""
    text: str = ""
    num_tokens: int = field(default=0, compare=False)  # that made it; the same words may take more or fewer


@dataclass(frozen=True)
class GenerateCommand:
    """One answer to write: the messages so far, oldest first, without the answer itself."""

    conversation_id: str  # the engine keeps this conversation's cache and reuses its prefix
    messages: tuple[Message, ...]
    sampling: SamplingParams
    max_new_tokens: int | None = None  # None: until the context is full
    policy: ContextPolicy = ContextPolicy.STOP
    stop: tuple[str, ...] = ()  # strings that end the answer, beside the model's own


@dataclass(frozen=True)
class SlotTable:
    """What the engine keeps of conversations, the memory that the whole program takes, and what the model
    takes and did; no metrics where there is none.
    """

    slots: tuple[SlotInfo, ...] = ()
    memory_bytes: int = 0
    metrics: Metrics | None = None


# Commands


@dataclass(frozen=True)
class Load:
    id: int
    path: Path
    config: EngineConfig
    unloads_first: bool = False  # there is no room for it beside the model that is loaded
    cancel: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Generate:
    id: int
    command: GenerateCommand
    cancel: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Unload:
    pass


@dataclass(frozen=True)
class Forget:
    """Drop what is cached of a conversation."""

    conversation_id: str


@dataclass(frozen=True)
class Fork:
    """A new conversation begins with these messages: it gets a share of what is computed of them."""

    conversation_id: str
    messages: tuple[Message, ...]
    policy: ContextPolicy


@dataclass(frozen=True)
class ForgetAll:
    """Drop what is cached of all conversations, of other models too."""


@dataclass(frozen=True)
class FreeSlots:
    """What idle conversations have of the card's memory and the computer's goes; files stay."""


@dataclass(frozen=True)
class LimitStates:
    """Other budgets for what is kept of conversations; see `EngineConfig`."""

    ram_bytes: int | None
    disk_bytes: int | None


@dataclass(frozen=True)
class Look:
    """Say anew what is kept and what is taken: other programs have changed it, perhaps."""


@dataclass(frozen=True)
class Quit:
    pass


EngineCommand = Load | Generate | Unload | Fork | Forget | ForgetAll | FreeSlots | LimitStates | Look | Quit


# Events


@dataclass(frozen=True)
class LoadProgressed:
    id: int
    progress: LoadProgress


@dataclass(frozen=True)
class ModelLoaded:
    id: int
    summary: ModelSummary
    encode: Callable[[str], list[int]]  # text to ids; may be called from any thread


@dataclass(frozen=True)
class ModelMoved:
    """The model that is loaded computes elsewhere now: its card failed."""

    summary: ModelSummary


@dataclass(frozen=True)
class LoadFailed:
    id: int
    notice: Notice


@dataclass(frozen=True)
class LoadCancelled:
    id: int


@dataclass(frozen=True)
class ModelUnloaded:
    pass


@dataclass(frozen=True)
class PromptShortened:
    """The oldest messages are not read, so that the others have room."""

    id: int
    left_out: int


@dataclass(frozen=True)
class AnswerPrefilled:
    id: int
    stats: PrefillStats


@dataclass(frozen=True)
class AnswerGrew:
    id: int
    delta: AnswerDelta


@dataclass(frozen=True)
class AnswerFinished:
    id: int
    finished: Finished


@dataclass(frozen=True)
class AnswerFailed:
    id: int
    notice: Notice


@dataclass(frozen=True)
class EngineWatched:
    """In the middle of an answer, a few times a second while somebody watches."""

    table: SlotTable


@dataclass(frozen=True)
class SlotsChanged:
    table: SlotTable


@dataclass(frozen=True)
class NoticeRaised:
    notice: Notice


EngineEvent = (
    LoadProgressed
    | ModelLoaded
    | ModelMoved
    | LoadFailed
    | LoadCancelled
    | ModelUnloaded
    | PromptShortened
    | AnswerPrefilled
    | AnswerGrew
    | AnswerFinished
    | AnswerFailed
    | EngineWatched
    | SlotsChanged
    | NoticeRaised
)
