"""Answers drawn on the card, a step ahead of whoever waits: the tokens of the computer's own sampler,
whatever happens between two of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from card_answers import PROMPT, SAMPLED, Load, engines_on_cards, finish, start
from emulated_card import Counts, EmulatedCard, EmulatedCompiler

from engine.cuda.backend import CudaBackend
from engine.errors import OutOfMemoryError
from engine.generation import DeviceChanged, Finished, FinishReason, SamplingParams, TextDelta
from engine.kv_geometry import PAGE


@pytest.fixture
def load(
    make_card: Callable[..., EmulatedCard], card_compiler: EmulatedCompiler, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Load]:
    yield from engines_on_cards(make_card, card_compiler, monkeypatch)


@pytest.fixture
def drawn_by_computer(load: Load, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, ...]]:
    """The tokens of an answer whose logits a card computes, and from which the computer draws."""
    engine = load()
    monkeypatch.setattr(engine._backend, "start_drawing", lambda *_, **__: None)
    return lambda *arguments, **more: finish(start(engine, *arguments, **more)).token_ids


@pytest.mark.parametrize(
    "sampling", [SamplingParams(temperature=0), SAMPLED, SamplingParams(temperature=1.5, seed=3)], ids=str
)
@pytest.mark.parametrize("settings", [{}, {"window": 2}, {"kv": "native"}], ids=str)
def test_an_answer_has_the_tokens_that_the_computer_would_draw(
    sampling: SamplingParams,
    settings: dict[str, Any],
    load: Load,
    drawn_by_computer: Callable[..., tuple[int, ...]],
) -> None:
    engine = load(**settings)
    found = finish(start(engine, sampling=sampling, count=20))
    assert found.seed == sampling.seed
    if settings.get("kv") != "native":
        assert found.token_ids == drawn_by_computer(sampling=sampling, count=20)
    else:
        assert len(found.token_ids) == 20
    again = finish(start(engine, sampling=sampling, count=20, conversation="b"))
    assert again.token_ids == found.token_ids


def test_a_token_takes_nothing_to_the_card_but_a_new_page(load: Load, card: EmulatedCard) -> None:
    engine = load(card)
    answer = start(engine, PROMPT[:60], count=10)
    next(answer)  # the prompt
    card.counts = Counts()
    finished = finish(answer)
    assert finished.decode.tokens == 9
    assert (card.counts.uploads, card.counts.upload_bytes) == (1, 8), "the second page, at token 64"
    assert (card.counts.waits, card.counts.downloads) == (9, 0)
    assert card.counts.replays == 9, "none more than there are tokens"
    assert (card.counts.allocations, card.counts.copies) == (0, 0)


def test_a_step_is_launched_before_anybody_waits_for_the_token_before_it(
    load: Load, card: EmulatedCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load(card)
    told: list[str] = []
    replay, wait = card.replay, card.wait
    assert isinstance(engine._backend, CudaBackend)
    driver = engine._backend._driver._driver
    monkeypatch.setattr(driver, "replay", lambda recording: (told.append("step"), replay(recording)))
    monkeypatch.setattr(driver, "wait", lambda mark: (told.append("wait"), wait(mark)))
    finish(start(engine, count=5))
    assert told == ["wait", "step", "step", "wait", "step", "wait", "step", "wait", "wait"]


def test_a_step_too_many_behind_an_end_token_leaves_the_state_as_it_should_be(load: Load) -> None:
    engine = load()
    tokens = finish(start(engine, count=12)).token_ids
    other = load()
    end = tokens[4]
    other._end_ids = frozenset({end})
    first = finish(start(other, count=12, ignore_eos=False))
    assert first.finish_reason is FinishReason.END
    cut = tokens[: tokens.index(end) + 1]
    assert first.token_ids == cut
    other._states.check()
    [slot] = other.slot_table()
    assert slot.tokens == len(PROMPT) + len(cut) - 1
    prompt = [*PROMPT, *cut, 9, 8, 7]
    second = finish(start(other, prompt))
    assert second.prefill.reused == len(PROMPT) + len(cut) - 1
    assert second.token_ids == finish(start(load(), prompt)).token_ids


@pytest.mark.parametrize("length", [60, 64, 65])
def test_stopping_at_any_token_leaves_what_was_taken(length: int, load: Load) -> None:
    engine = load()
    whole = finish(start(engine, PROMPT[:length], "whole", count=8)).token_ids
    for number in range(1, 7):
        cancel = threading.Event()
        answer = start(engine, PROMPT[:length], "stopped", count=8, cancel=cancel)
        tokens = []
        for event in answer:
            if isinstance(event, TextDelta):
                tokens.append(event.token_id)
            if len(tokens) == number:
                cancel.set()
        assert tuple(tokens[:number]) == whole[:number]
        engine._states.check()
        again = finish(start(engine, PROMPT[:length], "stopped", count=8))
        assert again.token_ids == whole
        engine.forget("stopped")


def test_the_context_is_filled_to_its_last_token(
    load: Load, drawn_by_computer: Callable[..., tuple[int, ...]]
) -> None:
    engine = load(context=PAGE + 10)
    found = finish(start(engine, PROMPT[:62], count=None))
    assert found.finish_reason is FinishReason.CONTEXT
    assert len(found.token_ids) == 12
    assert found.token_ids == drawn_by_computer(PROMPT[:62], count=12)


def test_the_next_answer_may_begin_where_the_one_before_ended(load: Load) -> None:
    """The card then has a token for that very position, and it is another answer's."""
    engine = load()
    expected = {length: finish(start(load(), PROMPT[:length], count=4)).token_ids for length in (30, 34)}
    for length in (30, 34, 30):
        finish(start(engine, PROMPT[:33], str(length), count=1))  # so that a single token is left to read
        assert finish(start(engine, PROMPT[:length], str(length), count=4)).token_ids == expected[length]


def test_forks_and_deletions_in_the_middle_of_an_answer(load: Load) -> None:
    engine = load()
    whole = finish(start(engine, count=16)).token_ids
    engine.forget("a")
    answer, tokens = start(engine, count=16), []
    for event in answer:
        if not isinstance(event, TextDelta):
            continue
        tokens.append(event.token_id)
        name = f"fork {len(tokens)}"
        assert engine.fork(name, [*PROMPT, *tokens]) == len(PROMPT) + len(tokens) - 1
        if len(tokens) % 3 == 0:
            engine.forget(name)
        engine._states.check()
    assert tuple(tokens) == whole
    forked = finish(start(engine, [*PROMPT, *whole[:4]], "fork 4", sampling=SamplingParams(), count=4))
    alone = finish(start(load(), [*PROMPT, *whole[:4]], sampling=SamplingParams(), count=4))
    assert forked.token_ids == alone.token_ids


@pytest.mark.parametrize("place", range(1, 12))
def test_a_card_that_is_lost_leaves_the_rest_to_the_computer_with_the_same_random_numbers(
    place: int, load: Load, make_card: Callable[..., EmulatedCard]
) -> None:
    sampling = SamplingParams(temperature=0.9, top_k=50, repetition_penalty=1.1, seed=11)
    computer = load(device="cpu", activations="int8x2")
    expected = finish(start(computer, sampling=sampling, count=6)).token_ids
    card = make_card()
    engine = load(card)
    answer = start(engine, sampling=sampling, count=6)
    told = [next(answer), next(answer)]
    card.lose_at_call(place)
    told += list(answer)
    assert sum(isinstance(event, DeviceChanged) for event in told) == 1
    assert tuple(event.token_id for event in told if isinstance(event, TextDelta)) == expected
    assert engine.summary.device == "cpu"


def test_no_memory_for_a_page_ahead_is_no_reason_to_leave_the_card(
    load: Load, card: EmulatedCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool is full: the next step waits, and where its page is never needed, nobody hears of it."""
    engine = load(card)
    expected = finish(start(engine, PROMPT[:58], "before", count=7)).token_ids
    pools: list[Any] = list(engine._backend._pools)  # type: ignore[union-attr]
    answer = start(engine, PROMPT[:58], count=7)
    told = [next(answer) for _ in range(2)]
    for pool in pools:
        monkeypatch.setattr(pool, "allocate", lambda: None)
    told += list(answer)
    last = told[-1]
    assert isinstance(last, Finished)
    assert last.token_ids == expected
    assert last.notices == ()


def test_no_memory_for_an_answer_s_settings_has_the_computer_draw(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load()
    expected = finish(start(engine)).token_ids

    def full(*_: object) -> None:
        raise OutOfMemoryError("The card is full.")

    first = start(engine, conversation="b")
    next(first)  # has the only slot
    monkeypatch.setattr("engine.cuda.drawing.DrawSlot", full)
    assert finish(start(engine, conversation="c")).token_ids == expected
    assert finish(first).token_ids == expected


def test_answers_come_and_go_and_nothing_of_the_card_is_used_up(load: Load, card: EmulatedCard) -> None:
    engine = load(card, slots=2)
    used = []
    for number in range(12):
        answer = start(engine, PROMPT[: 20 + number], "abc"[number % 3], count=5)
        for _ in range(number % 4 + 1):
            next(answer)
        answer.close()  # type: ignore[attr-defined]
        engine._states.check()
        used.append((card.used_bytes, card.num_letterboxes))
    assert len(set(used[3:])) == 1


@pytest.mark.parametrize("lagging", ["work", "uploads"])
def test_a_card_that_is_late_gives_the_same_tokens(
    lagging: str, load: Load, make_card: Callable[..., EmulatedCard]
) -> None:
    assert finish(start(load(make_card(lagging=lagging)))).token_ids == finish(start(load())).token_ids
