"""What an engine on a card says of itself, against what the card was really asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from emulated_card import Counts, EmulatedCard, EmulatedCompiler

from engine.checkpoints.model_folder import open_model
from engine.config import EngineConfig
from engine.engine import Engine
from engine.generation import GenerationRequest
from engine.metrics import AnswerMetrics, CardSpace

MODEL = Path(__file__).resolve().parents[1] / "models" / "tiny-qwen2"

Load = Callable[..., Engine]


@pytest.fixture
def load(
    card: EmulatedCard, card_compiler: EmulatedCompiler, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Load]:
    """An engine on `card`."""
    engines: list[Engine] = []

    def load_engine(**settings: Any) -> Engine:
        monkeypatch.setattr("engine.card_loading.find_card", lambda: card.info)
        monkeypatch.setattr("engine.cuda.availability.open_card", lambda: card)
        monkeypatch.setattr("engine.cuda.nvrtc_compiler.NvrtcCompiler", lambda cache: card_compiler)
        config = EngineConfig(**{"device": "cuda", "keep_states": False, "context": 512, **settings})
        engines.append(Engine.load(open_model(MODEL), config))
        return engines[-1]

    yield load_engine
    for engine in engines:
        engine.close()


def answer(engine: Engine, ids: list[int], conversation: str = "a", count: int = 6) -> AnswerMetrics:
    request = GenerationRequest(tuple(ids), max_new_tokens=count, ignore_eos=True, conversation=conversation)
    assert list(engine.generate(request))
    last = engine.metrics().last_answer
    assert last is not None
    return last


def test_a_decoded_token_takes_no_copy_to_the_card_and_one_from_it(load: Load, card: EmulatedCard) -> None:
    engine = load(weights="q8")
    card.counts = Counts()
    last = answer(engine, list(range(20)))
    assert (last.token_work.h2d_per_token, last.token_work.d2h_per_token) == (0.0, 1.0)
    assert last.decode.tokens == 5
    assert card.counts.uploads == 2, "settings of the answer, and the prompt"
    assert (card.counts.waits, card.counts.downloads) == (6, 0), "a token each, and no logits"
    again = answer(engine, list(range(30, 50)))
    assert again.token_work.launches_per_token >= 1.0
    assert again.token_work.launches_per_token.is_integer(), "every token takes the same"


def test_what_a_longer_context_brings_to_the_card_in_mid_answer_shows(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.cuda.rope_tables.FIRST_POSITIONS", 22)
    last = answer(load(weights="q8"), list(range(20)))
    assert last.token_work.h2d_per_token > 0.0


def test_memory_by_kind_adds_up_to_what_the_card_has_taken(load: Load, card: EmulatedCard) -> None:
    card.foreign_bytes = 123_456
    engine = load(weights="q8")
    before = engine.metrics().memory
    assert before.card == CardSpace("Emulated card", card.total_bytes, card.free_bytes())
    assert before.cache_pages == 0
    rounding = range(256 * len(card.live))
    assert before.other_bytes - 123_456 in rounding
    assert before.weight_bytes == engine.summary.weight_bytes > 0
    assert before.workspace_bytes > 0
    answer(engine, list(range(70)))
    after = engine.metrics().memory
    assert after.cache_bytes >= before.cache_bytes > 0
    assert after.other_bytes - 123_456 in rounding
    assert after.cache_pages == 2
    held = after.weight_bytes + after.cache_bytes + after.workspace_bytes
    assert held == sum(card.live.values())


def test_the_driver_is_asked_for_free_memory_once_a_second_and_not_for_tokens(
    load: Load, card: EmulatedCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load()
    memory = engine._backend.memory
    clock, asked = [100.0], []
    monkeypatch.setattr("engine.cuda.memory.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(memory.driver, "free_bytes", lambda: asked.append(clock[0]) or card.free_bytes())
    memory._others_asked = None
    engine.metrics()
    assert asked == [100.0]
    for _ in range(5):
        answer(engine, list(range(20)))
    assert asked == [100.0]
    clock[0] += 1.0
    card.foreign_bytes = 2**20
    space = [engine.metrics().memory.card for _ in range(5)][-1]
    assert asked == [100.0, 101.0]
    assert space is not None
    assert space.free_bytes == card.free_bytes()


def test_a_lost_card_still_says_what_it_said_last(
    load: Load, card: EmulatedCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load()
    before = engine.metrics().memory
    monkeypatch.setattr("engine.cuda.memory._SECONDS_BELIEVED", 0.0)
    card.lose()
    assert engine.metrics().memory == before


def test_conversations_that_make_room_for_others_are_counted(load: Load) -> None:
    engine = load(slots=1)
    for number, conversation in enumerate("abca"):
        answer(engine, [number, *range(30)], conversation)
    found = engine.metrics()
    assert (found.slots, found.most_slots) == (1, 1)
    assert found.most_pages == 512 // 64
    assert found.evictions == 3
    assert found.fallbacks == 0


def test_what_no_place_on_the_card_was_had_for_is_counted(load: Load, card: EmulatedCard) -> None:
    engine = load()
    card.total_bytes = card.used_bytes
    answer(engine, list(range(70)))
    answer(engine, list(range(70)), "b")
    assert engine.metrics().fallbacks == 2


def test_a_second_turn_reuses_the_first(load: Load) -> None:
    engine = load()
    answer(engine, list(range(100)))
    last = answer(engine, [*range(100), 7, 8])
    assert last.prefill.reused == engine.metrics().reused_tokens == 100


@pytest.mark.parametrize(("weights", "words"), [("q8", "8-bit weights"), ("native", "weights as stored")])
def test_the_card_s_description_is_for_people(weights: str, words: str, load: Load) -> None:
    assert load(weights=weights).summary.device_description == f"Emulated card, {words}"
