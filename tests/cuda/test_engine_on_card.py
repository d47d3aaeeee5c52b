"""The whole engine with a card: chosen, used, reused, run out of, and lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from emulated_card import EmulatedCard, EmulatedCompiler

from engine.checkpoints.model_folder import open_model
from engine.config import EngineConfig
from engine.cpu import compiler
from engine.cuda.availability import NoCard
from engine.cuda.backend import CudaBackend
from engine.cuda.driver import CardFaultError, Recording
from engine.cuda.embedding import CardEmbedding
from engine.cuda.page_pool import cache_bytes
from engine.engine import Engine
from engine.errors import Cancelled, ModelFileError, SettingError
from engine.generation import Finished, GenerationRequest, SamplingParams
from engine.kv_geometry import KvGeometry, pages_for
from engine.metrics import LayerUse
from engine.progress import LoadProgress, LoadStage, ProgressCallback, no_progress

MODEL = Path(__file__).resolve().parents[1] / "models" / "tiny-qwen2"

Load = Callable[..., Engine]


@pytest.fixture
def load(
    make_card: Callable[..., EmulatedCard],
    card_compiler: EmulatedCompiler,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Load]:
    """An engine on an emulated card, `card` if it is given."""
    engines: list[Engine] = []

    def load_engine(
        card: EmulatedCard | None = None,
        *,
        on_progress: ProgressCallback = no_progress,
        cancel: threading.Event | None = None,
        **settings: Any,
    ) -> Engine:
        found = make_card() if card is None else card
        monkeypatch.setattr("engine.card_loading.find_card", lambda: found.info)
        monkeypatch.setattr("engine.cuda.availability.open_card", lambda: found)
        monkeypatch.setattr("engine.cuda.nvrtc_compiler.NvrtcCompiler", lambda cache: card_compiler)
        config = EngineConfig(**{"device": "cuda", "keep_states": False, "context": 512, **settings})
        engines.append(Engine.load(open_model(MODEL), config, on_progress=on_progress, cancel=cancel))
        return engines[-1]

    yield load_engine
    for engine in engines:
        engine.close()


def answer(engine: Engine, ids: list[int], conversation: str = "a", count: int = 8) -> Finished:
    request = GenerationRequest(
        tuple(ids),
        SamplingParams(temperature=0),
        max_new_tokens=count,
        ignore_eos=True,
        conversation=conversation,
    )
    last = list(engine.generate(request))[-1]
    assert isinstance(last, Finished)
    return last


def codes(engine: Engine) -> list[str]:
    return [notice.code for notice in engine.summary.notices]


def test_a_model_runs_on_the_card_and_says_so(load: Load, card: EmulatedCard) -> None:
    stages: list[LoadProgress] = []
    engine = load(card, on_progress=stages.append)
    assert engine.summary.device == "cuda"
    assert card.info.name in engine.summary.device_description
    assert [step.stage for step in stages] == sorted(
        (step.stage for step in stages), key=list(LoadStage).index
    )
    upload = [step for step in stages if step.stage is LoadStage.UPLOAD]
    assert upload[-1].done == upload[-1].total > 100_000
    assert not [code for code in codes(engine) if code.startswith("card-")]
    assert answer(engine, [1, 2, 3]).decode.tokens


@pytest.mark.parametrize("capability", [(8, 6), (9, 0)])
def test_the_same_words_as_on_the_cpu(
    capability: tuple[int, int], load: Load, make_card: Callable[..., EmulatedCard]
) -> None:
    ids = list(range(5, 60))
    on_card = answer(load(make_card(compute_capability=capability), weights="q8"), ids, count=24)
    assert on_card.device == "cuda", "it went over to the CPU"
    folder = open_model(MODEL)
    cpu = Engine.load(
        folder, EngineConfig(device="cpu", weights="q8", activations="int8x2", keep_states=False)
    )
    assert answer(cpu, ids, count=24).token_ids == on_card.token_ids
    cpu.close()


def test_auto_takes_the_card(load: Load) -> None:
    assert load(device="auto").summary.device == "cuda"


def test_weights_are_packed_to_what_the_card_has_room_for(load: Load) -> None:
    assert load(weights="auto").summary.weights == "q8"
    assert load(weights="auto", vram_budget=500_000, context=64).summary.weights == "q4"


def test_nothing_is_compiled_loaded_or_recorded_while_somebody_chats(
    load: Load, card: EmulatedCard, card_compiler: EmulatedCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load(card)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("everything was prepared")

    for owner, name in (
        (card_compiler, "compile"),
        (card, "load"),
        (card, "record"),
        (compiler, "compiled_for"),
    ):
        monkeypatch.setattr(owner, name, never)
    first = answer(engine, list(range(300)), count=20)
    assert answer(engine, [*range(300), *first.token_ids, 7], count=20).prefill.reused > 300
    assert answer(engine, [9, 8, 7], conversation="b").token_ids


def test_a_second_turn_reads_what_is_new(load: Load) -> None:
    engine = load()
    first = answer(engine, list(range(100)))
    again = answer(engine, [*range(100), *first.token_ids, 7, 8])
    assert again.prefill.reused >= 100 + len(first.token_ids) - 1


def test_every_shortcut_gives_the_same_bits(load: Load) -> None:
    checks = list(load().selftest([(7 * i + 3) % 500 for i in range(24)]))
    assert [check.name for check in checks if not check.ok] == []
    assert len(checks) > 10


def test_no_memory_of_the_card_is_lost_to_what_happens_to_conversations(
    load: Load, card: EmulatedCard
) -> None:
    engine = load(card, slots=2, context=192)
    random = Random(1)
    used = []
    for number in range(90):
        name = random.choice("abcde")
        match random.randrange(6):
            case 0:
                engine.forget(name)
            case 1:
                engine.fork(f"{name}{number}", tuple(range(random.randrange(1, 100))))
            case _:
                ids = list(range(random.randrange(1, 150)))
                answer(engine, ids, conversation=name, count=random.randrange(1, 4))
        if number >= 30:
            used.append(card.used_bytes)
    assert max(used) == used[0]


def test_a_step_that_the_card_refuses_goes_on_on_the_cpu(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load()
    expected = answer(engine, list(range(80)), conversation="before").token_ids
    monkeypatch.setattr("engine.cuda.step_plans.ALIGNMENT", 2**40)
    last = answer(engine, list(range(80)))
    assert last.token_ids == expected
    assert [notice.code for notice in last.notices] == ["state-fallback"]


def test_too_little_memory_is_told_and_the_cpu_computes(
    load: Load, make_card: Callable[..., EmulatedCard]
) -> None:
    engine = load(make_card(total_bytes=2**20))
    assert engine.summary.device == "cpu"
    assert "card-fallback" in codes(engine)
    assert answer(engine, [1, 2, 3]).decode.tokens


def test_a_budget_that_holds_no_model_is_told(load: Load) -> None:
    engine = load(vram_budget=1000)
    [notice] = [notice for notice in engine.summary.notices if notice.code == "card-fallback"]
    assert "VRAM budget" in notice.message


def test_a_model_larger_than_the_budget_runs_a_few_layers_at_a_time_and_says_so(load: Load) -> None:
    ids = list(range(5, 60))
    whole = load(weights="q8")
    held = whole.metrics().memory
    short = cache_bytes(KvGeometry.of(open_model(MODEL).spec, "int8"), pages_for(512))
    assert isinstance(whole._backend, CudaBackend)
    embedding = whole._backend._weights.embedding
    assert isinstance(embedding, CardEmbedding)
    budget = held.weight_bytes + held.workspace_bytes + short - 1
    looks_up = load(weights="q8", vram_budget=budget)
    assert looks_up.summary.notices == whole.summary.notices, "the embedding goes before any layer does"
    assert looks_up.summary.weight_bytes == whole.summary.weight_bytes - embedding.num_bytes
    assert answer(looks_up, ids).token_ids == answer(whole, ids).token_ids
    last = looks_up.metrics().last_answer
    assert last is not None
    assert last.token_work.h2d_per_token == 1.0, "the row that the computer looked up"
    engine = load(weights="q8", vram_budget=budget - embedding.num_bytes)
    [notice] = [notice for notice in engine.summary.notices if notice.code.startswith("window")]
    assert notice.code == "window-on"
    assert "2 of 4 layers" in notice.message, "the room of a third is for the layer that runs"
    assert answer(engine, ids).token_ids == answer(whole, ids).token_ids


def test_layers_that_come_and_go_are_counted(load: Load) -> None:
    """Of four layers two at a time, each comes once a step; what is wanted next has come by its end."""
    whole = load(weights="q8").metrics().memory.layers
    assert whole == LayerUse(total=4, at_once=4, present=4, brought=4, evicted=0)
    engine = load(weights="q8", window=2)
    before = engine.metrics().memory.layers
    assert before is not None
    answer(engine, [1, 2, 3], count=5)
    after = engine.metrics().memory.layers
    assert after is not None
    assert (after.total, after.at_once, after.present) == (4, 2, 2)
    assert after.brought - before.brought == after.evicted - before.evicted
    assert (after.brought - before.brought) % 4 == 0
    assert after.brought - before.brought >= 5 * 4


def test_a_window_by_hand_is_told_and_gives_the_same_words(load: Load) -> None:
    ids = list(range(5, 60))
    engine = load(weights="q8", window=2)
    assert "window-on" in codes(engine)
    whole = load(weights="q8")
    assert isinstance(whole._backend, CudaBackend)
    embedding = whole._backend._weights.embedding
    assert isinstance(embedding, CardEmbedding)
    assert engine.summary.weight_bytes == whole.summary.weight_bytes - embedding.num_bytes
    assert answer(engine, ids).token_ids == answer(whole, ids).token_ids
    checks = list(engine.selftest([(7 * i + 3) % 500 for i in range(12)]))
    assert [check.name for check in checks if not check.ok] == []


@pytest.mark.parametrize("kv", ["int8", "native"])
def test_a_text_is_scored_on_the_card_with_all_layers_there_and_with_a_few(load: Load, kv: str) -> None:
    ids = list(range(5, 60))
    whole, some = (load(weights="q8", kv=kv, window=window).score(ids) for window in (0, 2))
    assert whole == some
    assert len(whole.logprobs) == len(ids) - 1


def test_a_window_that_holds_the_whole_model_is_told_to_have_no_effect(load: Load) -> None:
    assert [code for code in codes(load(window=4)) if "window" in code] == ["window-unused"]
    assert not [code for code in codes(load()) if "window" in code]


def test_a_card_that_fails_while_the_model_loads_is_told(
    load: Load, make_card: Callable[..., EmulatedCard]
) -> None:
    card = make_card()
    card.lose()
    engine = load(card)
    assert engine.summary.device == "cpu"
    assert "card-fallback" in codes(engine)


def test_no_place_on_the_card_is_told_once_and_the_answer_comes_from_the_cpu(
    load: Load, make_card: Callable[..., EmulatedCard]
) -> None:
    """The weights fit, and no page of a conversation does."""
    card = make_card()
    engine = load(card)
    card.total_bytes = card.used_bytes
    last = answer(engine, list(range(70)))
    assert [notice.code for notice in last.notices].count("state-fallback") == 1
    assert len(last.token_ids) == 8
    assert last.device == "cpu"
    assert engine.summary.device == "cuda"


def test_a_cancelled_upload_leaves_nothing(load: Load, card: EmulatedCard) -> None:
    cancel = threading.Event()

    def on_progress(step: LoadProgress) -> None:
        if step.stage is LoadStage.UPLOAD:
            cancel.set()

    with pytest.raises(Cancelled):
        load(card, on_progress=on_progress, cancel=cancel)
    assert card.live == {}


def test_a_load_that_fails_at_its_end_leaves_nothing_on_the_card(
    load: Load, card: EmulatedCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object, **__: object) -> None:
        raise ModelFileError("The files are gone.")

    monkeypatch.setattr("engine.loading.open_states", gone)
    with pytest.raises(ModelFileError):
        load(card)
    assert card.live == {}


def test_no_card_where_one_is_asked_for_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = NoCard("card-driver-missing", "there is no driver", "Install it.")
    monkeypatch.setattr("engine.card_loading.find_card", lambda: reason)
    with pytest.raises(SettingError, match="there is no driver"):
        Engine.load(open_model(MODEL), EngineConfig(device="cuda"))


def test_a_recording_that_is_refused_in_mid_answer_is_told_with_it(
    load: Load, card: EmulatedCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, refuses = card.record, threading.Event()

    def record(work: Callable[[], None]) -> Recording:
        if refuses.is_set():
            raise CardFaultError("The driver records nothing any more.")
        return records(work)

    monkeypatch.setattr(card, "record", record)
    monkeypatch.setattr("engine.cuda.rope_tables.FIRST_POSITIONS", 64)  # longer ones lie elsewhere
    engine = load(card)
    expected = answer(load(), [1, 2, 3] * 21).token_ids
    refuses.set()
    told = answer(engine, [1, 2, 3] * 21)
    assert [notice.code for notice in told.notices] == ["card-recording-refused"]
    assert told.token_ids == expected
    assert answer(engine, [4, 5]).notices == ()
