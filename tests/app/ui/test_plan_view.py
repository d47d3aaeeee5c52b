"""The card of a model before it is loaded: what will fit, and the sliders that change it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from load_plans import GB, PLAN
from PySide6.QtCore import Qt

from app.making_room import RoomPlan
from app.model_runs import RunChoice, with_run
from app.ui.model_card import ModelCard
from app.ui.plan_words import context_stops, nearest_stop, plan_shares, verdict
from engine.config import EngineConfig
from engine.cuda.driver import CardInfo
from engine.inspection import ModelReport
from engine.load_plan import LoadPlan
from engine.notices import Notice
from engine.weights.sizes import WeightBytes

CARD = CardInfo("A card", (8, 6), total_bytes=24 * GB, multiprocessors=28, driver="580")


class Planner:
    """A model whose weights take a billion bytes a bit, and a chat a hundred thousand a token."""

    def __init__(self) -> None:
        self.asked: list[EngineConfig] = []

    def plan(self, config: EngineConfig) -> LoadPlan:
        self.asked.append(config)
        weights = "q8" if config.weights == "auto" else config.weights
        bits = {"q4": 4, "q8": 8, "native": 16}[weights]
        context = config.context or 8192
        return replace(
            PLAN, weights=weights, weight_bytes=bits * GB, context=context, tokens=context,
            cache_bytes=context * (400_000 if config.kv == "native" else 100_000),
        )  # fmt: skip


def report(path: Path, *, config: EngineConfig | None = None, context: int = 8192) -> ModelReport:
    return ModelReport(
        path=path,
        name="Model",
        kind="safetensors",
        architecture="LlamaForCausalLM",
        family="Llama",
        parameters=10**9,
        file_bytes=2 * GB,
        layers=30,
        context_length=context,
        kv_bytes_per_token=100_000,
        kv_bytes_per_token_native=400_000,
        weight_bytes=WeightBytes(native=16 * GB, q8=8 * GB, q4=4 * GB),
        fits={},
        problems=(),
        notices=(),
        card=CARD,
        config=config or EngineConfig(),
        planner=Planner(),  # type: ignore[arg-type]
    )


@pytest.fixture
def card(qtbot, tmp_path: Path) -> ModelCard:
    card = ModelCard()
    qtbot.addWidget(card)
    card.show_report(report(tmp_path))
    card.show()
    return card


def amount(card: ModelCard, kind: str) -> str:
    """What the legend says."""
    label = card.plan.legend(kind)
    assert label.isVisibleTo(card)
    return label.text().removeprefix(kind).strip().replace("\u202f", " ")


@given(st.integers(1, 2_000_000))
def test_a_slider_of_contexts_rises_and_ends_at_the_models_own(longest: int) -> None:
    stops = context_stops(longest)
    assert list(stops) == sorted(set(stops))
    assert stops[-1] == longest
    assert all(nearest_stop(stops, stop) == index for index, stop in enumerate(stops))


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({}, "chip", "Runs whole on A card with 8-bit weights, and a chat of 8,192 tokens has room there."),
        ({"tokens": 4096}, "warning", "up to 4,096 tokens; a longer one goes on on the processor"),
        ({"window": 7, "weights": "q4"}, "warning", "Only 7 of its 30 layers have room on A card"),
        ({"device": "cpu", "weights": "native"}, "chip", "Runs on the processor with weights as stored"),
        ({"device": "cpu", "tokens": 64}, "warning", "a chat of 64 tokens fits, not one of 8,192"),
        (
            {"device": "cpu", "problem": Notice("card-fallback", "The card is full.", "Close something.")},
            "warning",
            "The card is full.",
        ),
        (
            {"device": "cpu", "is_loadable": False, "problem": Notice("memory-short", "No memory.", "")},
            "error",
            "No memory.",
        ),
    ],
)
def test_one_sentence_says_what_a_load_would_do(changes, kind: str, words: str) -> None:
    found, notice = verdict(replace(PLAN, **changes), "A card")
    assert found == kind
    assert words in notice.message


def test_a_computer_without_a_card_hears_why_and_is_not_warned_of_it() -> None:
    why = Notice("card-missing", "The model runs on the CPU: the NVIDIA driver finds no card.", "")
    kind, notice = verdict(replace(PLAN, device="cpu", problem=why), "")
    assert kind == "chip"
    assert notice.hint == why.message


def test_an_unknown_share_of_other_programs_is_said() -> None:
    _, notice = verdict(replace(PLAN, free_is_known=False), "A card")
    assert "doesn't say" in notice.hint


@given(free=st.integers(0, 24 * GB), weights=st.integers(0, 40 * GB), cache=st.integers(0, 40 * GB))
def test_the_bar_shows_all_memory_and_what_is_missing_besides(free: int, weights: int, cache: int) -> None:
    plan = replace(PLAN, free_bytes=free, weight_bytes=weights, cache_bytes=cache)
    shares = {share.kind: share.num_bytes for share in plan_shares(RoomPlan(plan))}
    assert sum(shares.values()) - shares["Missing"] == max(24 * GB, sum(shares.values()) - shares["Missing"])
    assert not (shares["Free"] and shares["Missing"])
    assert shares["Free"] - shares["Missing"] == plan.left_bytes


def test_moving_the_context_changes_what_fits_at_once(card: ModelCard, qtbot) -> None:
    before = amount(card, "This chat")
    assert before == "819 MB"
    with qtbot.waitSignal(card.run_chosen) as chosen:
        qtbot.keyClick(card.plan.context, Qt.Key.Key_Home)
    assert amount(card, "This chat") == "51.2 MB"
    assert card.plan.context_words.text() == "512 tokens"
    assert "512 tokens" in card.verdict.notice.message
    assert chosen.args == [card.path, RunChoice(context=512)]


def test_moving_the_precision_changes_what_fits_at_once(card: ModelCard, qtbot) -> None:
    assert card.plan.weights_words.text() == "Automatic: 8 bits"
    assert amount(card, "Weights") == "8 GB"
    for wanted, size in (("native", "16 GB"), ("q8", "8 GB"), ("q4", "4 GB")):
        with qtbot.waitSignal(card.run_chosen) as chosen:
            qtbot.keyClick(card.plan.weights, Qt.Key.Key_Left)
        assert amount(card, "Weights") == size
        assert chosen.args[1] == RunChoice(weights=wanted), "the context is left to the settings"


def test_the_form_of_the_cache_changes_what_a_chat_takes(card: ModelCard, qtbot) -> None:
    card.plan.kv.setFocus()
    with qtbot.waitSignal(card.run_chosen) as chosen:
        qtbot.keyClick(card.plan.kv, Qt.Key.Key_Down)
        card.plan.kv.activated.emit(card.plan.kv.currentIndex())
    assert chosen.args[1].kv == "native"
    assert amount(card, "This chat") == "3.28 GB"


def test_what_was_chosen_before_is_where_the_sliders_begin(qtbot, tmp_path: Path) -> None:
    card = ModelCard()
    qtbot.addWidget(card)
    card.show_report(report(tmp_path, config=EngineConfig(context=3000, weights="q4", kv="native")))
    assert card.plan.choice == RunChoice(3000, "q4", "native")


def test_a_context_for_every_model_that_is_too_long_for_this_one_is_put_right_when_it_is_loaded(
    qtbot, tmp_path: Path
) -> None:
    card = ModelCard()
    qtbot.addWidget(card)
    card.show_report(report(tmp_path, config=EngineConfig(context=100_000)))
    signals = [card.run_chosen, card.load_requested]
    with qtbot.waitSignals(signals, order="strict"):
        card.load_button.click()
    assert card.plan.choice.context == 8192


def test_sliders_are_away_while_the_model_loads_and_come_back(card: ModelCard) -> None:
    card.show_loading(None)
    assert not card.plan.isVisible()
    card.show_cancelled()
    assert card.plan.isVisible()
    assert card.verdict.isVisible()


def test_every_control_has_a_name_that_says_its_value(card: ModelCard) -> None:
    assert card.plan.context.accessibleName() == "Context: 8,192 tokens"
    assert card.plan.weights.accessibleName() == "Weights: Automatic: 8 bits"
    assert "this chat" in card.plan.bar.accessibleName()
    for control in (card.plan.context, card.plan.weights, card.plan.kv):
        assert control.toolTip()
        assert control.accessibleName()


def test_choices_are_remembered_by_model_and_a_choice_of_nothing_is_forgotten() -> None:
    one, two = Path("/m/1"), Path("/m/2")
    runs = with_run(with_run({}, one, RunChoice(weights="q4")), two, RunChoice(context=512))
    assert list(runs) == [one, two]
    assert with_run(runs, one, RunChoice()) == {two: RunChoice(context=512)}


@pytest.mark.parametrize(
    "values", [{"context": True}, {"context": -1}, {"context": "8"}, {"weights": "q2"}, {"kv": []}, {}]
)
def test_a_remembered_choice_that_makes_no_sense_is_left_to_the_program(values) -> None:
    assert RunChoice.from_values(values) == RunChoice()


def test_a_remembered_choice_comes_back_as_it_was() -> None:
    choice = RunChoice(2048, "native", "native")
    assert RunChoice.from_values(choice.as_values()) == choice
