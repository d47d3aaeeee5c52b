"""What a plan says before a load is what the load does then, to the byte."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
from emulated_card import EmulatedCard, EmulatedCompiler

from engine.checkpoints.model_folder import open_model
from engine.config import EngineConfig
from engine.cuda.availability import NoCard
from engine.cuda.backend import CudaBackend
from engine.cuda.embedding import CardEmbedding
from engine.cuda.page_pool import cache_bytes
from engine.engine import Engine
from engine.errors import SettingError
from engine.kv_geometry import KvGeometry, pages_for
from engine.load_plan import Freed, LoadPlan
from engine.planning import LoadPlanner, Machine

MODELS = Path(__file__).resolve().parents[1] / "models"
FAMILIES = sorted(path.name for path in MODELS.iterdir() if path.is_dir())

Both = Callable[..., tuple[LoadPlan, Engine]]


def planner_for(
    path: Path, card: EmulatedCard | None, *, why: NoCard | None = None, **machine: Any
) -> LoadPlanner:
    folder = open_model(path)
    try:
        found = Machine.now(why if card is None else card.info)
        free = None if card is None else card.free_bytes()
        found = Machine(**{**vars(found), "card_free": free, **machine})
        return LoadPlanner(folder.spec, folder.parameters, dict(folder.tensors.tensors()), found)
    finally:
        folder.tensors.close()


@pytest.fixture
def both(
    make_card: Callable[..., EmulatedCard],
    card_compiler: EmulatedCompiler,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Both]:
    """The plan for a model, and the engine that was loaded after it, on an emulated card."""
    engines: list[Engine] = []

    def load(path: Path, *, total_bytes: int | None = None, **settings: Any) -> tuple[LoadPlan, Engine]:
        card = make_card() if total_bytes is None else make_card(total_bytes=total_bytes)
        config = EngineConfig(**{"device": "auto", "keep_states": False, "context": 512, **settings})
        plan = planner_for(path, card).plan(config)
        monkeypatch.setattr("engine.card_loading.find_card", lambda: card.info)
        monkeypatch.setattr("engine.cuda.availability.open_card", lambda: card)
        monkeypatch.setattr("engine.cuda.nvrtc_compiler.NvrtcCompiler", lambda cache: card_compiler)
        engines.append(Engine.load(open_model(path), config))
        return plan, engines[-1]

    yield load
    for engine in engines:
        engine.close()


def backend_of(engine: Engine) -> CudaBackend:
    assert isinstance(engine._backend, CudaBackend)
    return engine._backend


def assert_kept(plan: LoadPlan, engine: Engine) -> None:
    """What the plan said."""
    assert engine.summary.device == plan.device
    assert engine.summary.weights == plan.weights
    assert engine.summary.context_length == plan.context
    held = engine.metrics().memory
    assert held.weight_bytes == plan.weight_bytes
    if plan.device == "cuda":
        assert held.workspace_bytes == plan.workspace_bytes
        assert backend_of(engine).window == plan.window
    else:
        assert (plan.problem is not None) == any(
            notice.code.startswith("card-") for notice in engine.summary.notices
        )


@pytest.mark.parametrize("weights", ["native", "q8", "q4"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_takes_what_was_planned_to_the_byte(both: Both, family: str, weights: str) -> None:
    plan, engine = both(MODELS / family, weights=weights)
    assert plan.device == "cuda"
    assert plan.window is None
    assert_kept(plan, engine)


@pytest.mark.parametrize("kv", ["int8", "native"])
@pytest.mark.parametrize("context", [1, 64, 65, 300])
def test_a_context_and_a_form_of_the_cache_are_planned_as_they_are_taken(
    both: Both, context: int, kv: str
) -> None:
    plan, engine = both(MODELS / "tiny-qwen2", weights="q8", context=context, kv=kv)
    assert plan.kv == kv
    assert plan.tokens == context
    assert_kept(plan, engine)


@pytest.mark.parametrize("window", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("family", ["tiny-qwen2", "tiny-qwen3moe-mix"])
def test_a_window_by_hand_takes_what_was_planned(both: Both, family: str, window: int) -> None:
    assert_kept(*both(MODELS / family, weights="q8", window=window))


def test_with_less_and_less_of_the_card_embedding_layers_and_card_go_as_planned(both: Both) -> None:
    """Every budget on the way down, in steps of less than a layer."""
    path = MODELS / "tiny-qwen2"
    plan, engine = both(path, weights="q8")
    cache = cache_bytes(KvGeometry.of(backend_of(engine).spec, "int8"), pages_for(512))
    whole = plan.weight_bytes + plan.workspace_bytes + cache
    embeddings, windows, devices = set(), set(), set()
    for budget in [whole + 2**20, *range(whole, cache, -(plan.weight_bytes // 5))]:
        less, engine = both(path, weights="q8", vram_budget=budget)
        assert_kept(less, engine)
        devices.add(less.device)
        if less.device == "cuda":
            windows.add(less.window)
            embeddings.add(isinstance(backend_of(engine).weights.embedding, CardEmbedding))
    assert devices == {"cuda", "cpu"}
    assert embeddings == {True, False}
    assert None in windows
    assert len(windows) > 1


@pytest.mark.parametrize("megabytes", [1, 258, 400])
def test_a_small_card_is_used_as_planned(both: Both, megabytes: int) -> None:
    assert_kept(*both(MODELS / "tiny-qwen3", weights="auto", total_bytes=megabytes * 2**20))


def test_what_other_programs_have_of_the_card_is_not_planned_with(
    make_card: Callable[..., EmulatedCard],
) -> None:
    card = make_card(total_bytes=2**30)
    path, config = MODELS / "tiny-qwen2", EngineConfig(weights="q8", context=64)
    assert planner_for(path, card).plan(config).device == "cuda"
    full = planner_for(path, card, card_free=0).plan(config)
    assert full.device == "cpu"
    assert full.problem is not None
    assert full.problem.code == "card-fallback"
    assert full.is_loadable


def test_where_the_driver_does_not_say_what_is_free_the_plan_says_so(
    make_card: Callable[..., EmulatedCard],
) -> None:
    plan = planner_for(MODELS / "tiny-qwen2", make_card(), card_free=None).plan(EngineConfig())
    assert plan.device == "cuda"
    assert not plan.free_is_known
    assert plan.free_bytes == plan.total_bytes


def test_without_a_card_the_processor_is_planned_with_the_reason() -> None:
    reason = NoCard("card-driver-missing", "there is no driver", "Install it.")
    planner = planner_for(MODELS / "tiny-qwen2", None, why=reason)
    plan = planner.plan(EngineConfig(weights="q8"))
    assert (plan.device, plan.is_loadable) == ("cpu", True)
    assert plan.problem == reason.as_notice()
    assert planner.plan(EngineConfig(device="cpu", weights="q8")).problem is None
    refused = planner.plan(EngineConfig(device="cuda"))
    assert not refused.is_loadable
    assert refused.problem is not None
    assert "there is no driver" in refused.problem.message


@pytest.mark.parametrize("settings", [{"context": 10**9}, {"context": 0}, {"slots": 0}, {"weight_group": 7}])
def test_a_choice_that_a_load_refuses_is_refused_by_the_plan_in_the_same_words(
    settings: dict[str, Any],
) -> None:
    plan = planner_for(MODELS / "tiny-qwen2", None).plan(EngineConfig(device="cpu", **settings))
    assert not plan.is_loadable
    assert plan.problem is not None
    with pytest.raises(SettingError) as refusal:
        Engine.load(open_model(MODELS / "tiny-qwen2"), EngineConfig(device="cpu", **settings))
    assert str(plan.problem.message) in str(refusal.value)


def test_weights_that_the_computer_has_no_memory_for_are_not_loadable() -> None:
    plan = planner_for(MODELS / "tiny-qwen2", None, ram_free=2**20).plan(EngineConfig(weights="q4"))
    assert not plan.is_loadable
    assert plan.problem is not None
    assert plan.left_bytes < 0


def test_a_plan_needs_no_torch() -> None:
    code = (
        "import sys; from pathlib import Path; from engine.inspection import inspect_model;"
        "from engine.config import EngineConfig;"
        f"report = inspect_model(Path({str(MODELS / 'tiny-qwen2')!r}));"
        "print(report.plan(EngineConfig()).weights, 'torch' in sys.modules)"
    )
    root = Path(__file__).resolve().parents[2]
    done = run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["q8", "False"]


def test_what_a_loaded_model_gives_back_is_planned_with_as_if_it_were_free(make_card) -> None:
    card = make_card()
    config = EngineConfig(device="auto", keep_states=False, context=512)
    path = MODELS / "tiny-qwen3"
    free, ram = card.free_bytes(), 2**30
    full = planner_for(path, card, card_free=1000, ram_free=ram, ram_total=4 * ram)
    assert full.plan(config).device == "cpu"
    roomy = planner_for(path, card, card_free=free, ram_free=2 * ram, ram_total=4 * ram)
    assert full.after(Freed(ram=ram, card=free - 1000)).plan(config) == roomy.plan(config)
    assert full.plan(config).device == "cpu", "and asking changes nothing"
    more = full.after(Freed(ram=9 * ram, card=9 * card.info.total_bytes)).plan(config)
    assert more.free_bytes == more.total_bytes == card.info.total_bytes
