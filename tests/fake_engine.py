"""An engine that says what it is told to: everything of the program works on it as on the real one."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine.config import EngineConfig
from engine.errors import Cancelled, ContextFullError, EngineError
from engine.generation import (
    DecodeStats,
    DeviceChanged,
    Finished,
    FinishReason,
    GenerationRequest,
    Prefilled,
    PrefillStats,
    SamplingParams,
    SlotInfo,
    TextDelta,
)
from engine.metrics import CardSpace, LayerUse, MemoryUse, Metrics
from engine.notices import Notice
from engine.progress import LoadProgress, LoadStage, ProgressCallback
from engine.templates.chat_template import ChatPrompt


@dataclass(frozen=True)
class FakeSummary:
    """Has the fields of the engine's ModelSummary that the program reads."""

    path: Path
    name: str = "Fake"
    family: str = "Fake"
    architecture: str = "FakeForCausalLM"
    kind: str = "safetensors"
    parameters: int = 1_000
    weight_bytes: int = 4_000
    context_length: int = 128
    layers: int = 1
    device: str = "cpu"
    device_description: str = "a fake processor"
    sampling_defaults: SamplingParams = field(default_factory=SamplingParams)
    weights: str = "native"
    notices: tuple[Notice, ...] = ()


class FakeEngine:
    """Says `pieces`, one a token. Waits before the tokens in `gates` until their event is set or it is
    cancelled.
    """

    def __init__(self, path: Path, script: EngineScript) -> None:
        self.summary = FakeSummary(path, name=path.name, device=script.device, notices=script.summary_notices)
        self.script = script
        self.closed = False

    def chat_prompt(self, messages):
        self.script.prompts.append([(message.role, message.content) for message in messages])
        num_tokens = 3
        if self.script.counts_words:
            num_tokens = 2 + sum(2 + len(message.content.split()) for message in messages)
        ids = tuple(range(1, num_tokens + 1))
        return ChatPrompt(ids=ids, text=self.script.prompt_text, notices=self.script.prompt_notices)

    def encode(self, text: str) -> list[int]:
        return list(range(len(text.split())))

    def slot_table(self):
        if self.script.slot_error is not None:
            raise self.script.slot_error
        return self.script.slots

    def metrics(self) -> Metrics:
        return self.script.metrics

    def generate(self, request: GenerationRequest, cancel: threading.Event | None = None):
        assert not self.closed
        script = self.script
        script.requests.append(request)
        script.engine_threads.add(threading.get_ident())
        prefill = script.prefill or PrefillStats(tokens=len(request.prompt_ids), reused=1, seconds=0.5)
        if script.counts_words and len(request.prompt_ids) >= self.summary.context_length:
            raise ContextFullError("The prompt is too long.", "Shorten the prompt or raise the context.")
        yield Prefilled(prefill)
        said: list[str] = []
        reason = FinishReason.END
        for number, piece in enumerate(script.pieces):
            if number in script.gates:
                _wait_for(script.gates[number], cancel)
            if cancel is not None and cancel.is_set():
                reason = FinishReason.CANCELLED
                break
            if isinstance(piece, Exception):
                raise piece
            if isinstance(piece, Notice):
                told = (*self.summary.notices, piece)
                self.summary = replace(self.summary, device="cpu", device_description="CPU", notices=told)
                yield DeviceChanged(piece)
                continue
            said.append(piece)
            yield TextDelta(piece, token_id=number)
        yield Finished(
            text="".join(said),
            token_ids=tuple(range(len(said))),
            finish_reason=reason,
            prefill=prefill,
            decode=DecodeStats(tokens=len(said), seconds=0.25),
            notices=script.finish_notices,
        )

    def fork(self, conversation: str, prompt_ids) -> int:
        assert not self.closed
        if self.script.fork_error is not None:
            raise self.script.fork_error
        self.script.forked.append((conversation, tuple(prompt_ids)))
        self.script.calls.append("fork")
        return 0

    def forget(self, conversation: str) -> None:
        self.script.forgotten.append(conversation)
        self.script.calls.append("forget")

    def free_slots(self) -> None:
        self.script.calls.append("free slots")

    def limit_states(self, *, ram_budget: int | None, disk_budget: int | None) -> None:
        self.script.limits.append((ram_budget, disk_budget))

    def close(self) -> None:
        self.closed = True
        self.script.closed.append(self.summary.path)


@dataclass
class EngineScript:
    """What the fake engine is to do, and what it was asked. An exception among `pieces` is raised in its
    place; with a notice the card fails, and the CPU goes on.
    """

    pieces: list[str | Exception | Notice] = field(default_factory=lambda: ["Hel", "lo", " there"])
    gates: dict[int, threading.Event] = field(default_factory=dict)  # by number of the piece that waits
    load_gate: threading.Event | None = None  # a load waits for it, half-way
    load_errors: dict[str, Exception] = field(default_factory=dict)  # by name of the folder
    prompt_text: str = "prompt"
    prompt_notices: tuple[Notice, ...] = ()
    finish_notices: tuple[Notice, ...] = ()
    summary_notices: tuple[Notice, ...] = ()
    device: str = "cpu"
    counts_words: bool = False  # a prompt has 2 tokens, 2 more a message, and one a word; else it has 3
    prefill: PrefillStats | None = None
    slots: tuple[SlotInfo, ...] = ()
    metrics: Metrics = field(
        default_factory=lambda: Metrics("cpu", MemoryUse(4_000, 0, 0), slots=0, most_slots=8, most_pages=16)
    )
    slot_error: Exception | None = None
    prompts: list[list[tuple[str, str]]] = field(default_factory=list)
    requests: list[GenerationRequest] = field(default_factory=list)
    configs: list[EngineConfig] = field(default_factory=list)
    fork_error: Exception | None = None
    forked: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)  # of what changes what is kept, in their order
    limits: list[tuple[int | None, int | None]] = field(default_factory=list)  # memory and disk
    closed: list[Path] = field(default_factory=list)
    engine_threads: set[int] = field(default_factory=set)

    def load(
        self, path: Path, config: EngineConfig, on_progress: ProgressCallback, cancel: threading.Event
    ) -> FakeEngine:
        """The engine factory."""
        self.configs.append(config)
        self.engine_threads.add(threading.get_ident())
        on_progress(LoadProgress(LoadStage.WEIGHTS, 1, 2))
        if self.load_gate is not None:
            _wait_for(self.load_gate, cancel)
        if cancel.is_set():
            raise Cancelled
        if path.name in self.load_errors:
            raise self.load_errors[path.name]
        on_progress(LoadProgress(LoadStage.WEIGHTS, 2, 2))
        return FakeEngine(path, self)


def show_everything(script: EngineScript) -> None:
    """Gives a live panel as much to show as there can be: a card, a window of layers, and eight slots."""
    memory = MemoryUse(
        8_000_000_000,
        2_000_000_000,
        312,
        workspace_bytes=96_000_000,
        card=CardSpace("A card", 24_000_000_000, 12_000_000_000),
        layers=LayerUse(total=36, at_once=12, present=12, brought=4_000, evicted=3_988),
    )
    script.metrics = Metrics("cuda", memory, slots=8, most_slots=8, most_pages=4096, reused_tokens=12_345)
    script.slots = tuple(
        SlotInfo(f"chat-{number}", tokens=1000 * number, pages=16 * number, place="pool", reused=9, total=12)
        for number in range(1, 9)
    )


def _wait_for(gate: threading.Event, cancel: threading.Event | None) -> None:
    """Ends when either is set; nothing in a test may hang the whole run."""
    for _ in range(20_000):
        if gate.wait(0.001) or (cancel is not None and cancel.is_set()):
            return
    raise EngineError("The gate of the fake engine was never opened.")
