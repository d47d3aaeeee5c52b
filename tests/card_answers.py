"""Engines on emulated cards, and their answers. Needs the folder of the emulated card on the path."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from emulated_card import EmulatedCard, EmulatedCompiler

from engine.checkpoints.model_folder import open_model
from engine.config import EngineConfig
from engine.engine import Engine
from engine.generation import Finished, GenerationEvent, GenerationRequest, SamplingParams

MODEL = Path(__file__).resolve().parent / "models" / "tiny-qwen2"
PROMPT = list(range(5, 75))
SAMPLED = SamplingParams(temperature=0.9, top_k=50, top_p=0.95, repetition_penalty=1.1, seed=11)

Load = Callable[..., Engine]


def engines_on_cards(
    make_card: Callable[..., EmulatedCard], card_compiler: EmulatedCompiler, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Load]:
    """For a fixture: `load(card, **settings)` loads a small model. Without a card one is made, unless the
    settings name a device: then it finds what the test has left there. All engines are closed at the end.
    """
    engines: list[Engine] = []

    def load_engine(card: EmulatedCard | None = None, **settings: Any) -> Engine:
        found = make_card() if card is None and "device" not in settings else card
        if found is not None:
            monkeypatch.setattr("engine.card_loading.find_card", lambda: found.info)
            monkeypatch.setattr("engine.cuda.availability.open_card", lambda: found)
            monkeypatch.setattr("engine.cuda.nvrtc_compiler.NvrtcCompiler", lambda cache: card_compiler)
        common = {"device": "cuda", "keep_states": False, "context": 512, "weights": "q8"}
        engines.append(Engine.load(open_model(MODEL), EngineConfig(**{**common, **settings})))
        return engines[-1]

    yield load_engine
    for engine in engines:
        engine.close()


def start(
    engine: Engine,
    ids: Sequence[int] = PROMPT,
    conversation: str = "a",
    *,
    count: int | None = 8,
    sampling: SamplingParams = SAMPLED,
    cancel: threading.Event | None = None,
    **more: Any,
) -> Iterator[GenerationEvent]:
    request = GenerationRequest(
        tuple(ids),
        sampling,
        max_new_tokens=count,
        conversation=conversation,
        **{"ignore_eos": True, **more},
    )
    return engine.generate(request, cancel)


def finish(events: Iterator[GenerationEvent]) -> Finished:
    *_, last = events
    assert isinstance(last, Finished)
    return last
