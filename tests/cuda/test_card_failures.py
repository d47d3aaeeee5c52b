"""A card that fails, or is filled by others, in the middle of whatever it does: nothing that was said is lost
or said twice, and the answer goes on as one that the CPU began with the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from card_answers import PROMPT, Load, engines_on_cards
from emulated_card import Counts, EmulatedCard, EmulatedCompiler

from engine.cuda.availability import NoCard, find_card
from engine.cuda.backend import CudaBackend
from engine.cuda.lost_card import earlier_loss
from engine.engine import Engine
from engine.errors import ComputeFaultError, SettingError
from engine.generation import (
    DeviceChanged,
    Finished,
    GenerationEvent,
    GenerationRequest,
    ReuseReason,
    SamplingParams,
    TextDelta,
)

COUNT = 6

MakeCard = Callable[..., EmulatedCard]


@pytest.fixture
def load(
    make_card: MakeCard, card_compiler: EmulatedCompiler, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Load]:
    yield from engines_on_cards(make_card, card_compiler, monkeypatch)


@pytest.fixture
def cpu(load: Load) -> Engine:
    return load(device="cpu", activations="int8x2")


def events(
    engine: Engine, ids: list[int] = PROMPT, conversation: str = "a", count: int = COUNT
) -> Iterator[GenerationEvent]:
    request = GenerationRequest(
        tuple(ids),
        SamplingParams(temperature=0),
        max_new_tokens=count,
        ignore_eos=True,
        conversation=conversation,
    )
    return engine.generate(request)


@dataclass(frozen=True)
class Told:
    """What an answer's events said."""

    ids: list[int]
    text: str
    changes: list[DeviceChanged]
    finished: Finished

    @classmethod
    def by(cls, events: Iterator[GenerationEvent]) -> Told:
        found = list(events)
        deltas = [event for event in found if isinstance(event, TextDelta)]
        *_, finished = found
        assert isinstance(finished, Finished)
        told = cls(
            [delta.token_id for delta in deltas],
            "".join(delta.text for delta in deltas),
            [event for event in found if isinstance(event, DeviceChanged)],
            finished,
        )
        assert (told.ids, told.text) == (list(finished.token_ids), finished.text)
        return told


def places(engine: Engine) -> dict[str, tuple[int, str]]:
    return {row.conversation: (row.tokens, row.place) for row in engine.slot_table()}


def check_on_cpu(engine: Engine, told: Told) -> None:
    [change] = told.changes
    assert change.notice.code == "card-lost-meanwhile"
    assert change.notice.message.startswith("From here on the model runs on the CPU")
    assert told.finished.notices == ()  # one of them is enough
    assert engine.summary.device == "cpu"
    assert engine.summary.device_description.startswith("CPU")
    assert [notice.code for notice in engine.summary.notices].count("card-lost-meanwhile") == 1


def calls_of_an_answer(load: Load, card: EmulatedCard, **settings: Any) -> int:
    engine = load(card, **settings)
    card.counts = Counts()
    Told.by(events(engine))
    calls = card.counts.calls
    engine.close()
    return calls


def test_the_answer_goes_on_on_the_cpu_whatever_call_fails(
    load: Load, make_card: MakeCard, cpu: Engine
) -> None:
    """From the first allocation of a page over uploads, launches and recordings to the last download."""
    expected = Told.by(events(cpu))
    last = calls_of_an_answer(load, make_card())
    for call in sorted({1, 2, 3, 4, 5, *(last * part // 8 for part in range(1, 8)), last - 1, last}):
        card = make_card()
        engine = load(card)
        card.lose_at_call(call)
        told = Told.by(events(engine))
        assert (call, told.ids, told.text) == (call, expected.ids, expected.text)
        check_on_cpu(engine, told)
        assert card.closed
        engine.close()


@pytest.mark.parametrize("kind", ["lose_at_launch", "fault_at_launch"])
def test_a_fault_in_mid_answer_is_no_end_for_the_other_conversations(
    load: Load, card: EmulatedCard, cpu: Engine, kind: str
) -> None:
    engine = load(card)
    for name in ("b", "c"):
        Told.by(events(engine, [9, 8, 7, *PROMPT], name))
    answer = events(engine)
    first = [next(answer) for _ in range(4)]
    deltas = [event for event in first if isinstance(event, TextDelta)]
    getattr(card, kind)(2)
    told = list(answer)
    assert [type(event) for event in told][:2] == [DeviceChanged, TextDelta]
    assert isinstance(told[-1], Finished)
    assert told[-1].decode.tokens == COUNT - 2  # neither the first, nor that for which all was read again
    rest = [event for event in told if isinstance(event, TextDelta)]
    expected = Told.by(events(cpu))
    assert [event.token_id for event in (*deltas, *rest)] == expected.ids
    assert places(engine) == {"a": (len(PROMPT) + COUNT - 1, "pool")}
    other = Told.by(events(engine, [9, 8, 7, *PROMPT, 11], "b"))
    assert (other.finished.prefill.reused, other.finished.prefill.reason) == (0, ReuseReason.EVICTED)
    assert other.finished.notices == ()
    assert other.ids == Told.by(events(cpu, [9, 8, 7, *PROMPT, 11], "b")).ids
    again = Told.by(events(engine, [*PROMPT, *expected.ids, 12]))
    assert again.finished.prefill.reused == len(PROMPT) + COUNT - 1


def test_what_was_parked_outlives_the_card(load: Load, card: EmulatedCard, cpu: Engine) -> None:
    engine = load(card, slots=1)
    for name in ("b", "a"):
        Told.by(events(engine, PROMPT if name == "a" else [9, *PROMPT], name))
    assert places(engine)["b"][1] == "ram"
    card.lose()
    told = Told.by(events(engine, [9, *PROMPT, 11], "b"))
    check_on_cpu(engine, told)
    assert told.finished.prefill.reused == len(PROMPT) + 1


@pytest.mark.parametrize("settings", [{}, {"window": 1}])
def test_a_card_that_is_lost_anywhere_in_a_load_is_told_and_closed(
    load: Load, make_card: MakeCard, settings: dict[str, Any]
) -> None:
    card = make_card()
    engine = load(card, **settings)
    assert engine.summary.device == "cuda"
    last = card.counts.calls
    engine.close()
    for call in (1, 2, *(last * part // 6 for part in range(1, 6)), last):
        card = make_card()
        card.lose_at_call(call)
        engine = load(card, **settings)
        assert engine.summary.device == "cpu"
        assert [notice.code for notice in engine.summary.notices].count("card-fallback") == 1
        assert card.closed
        assert Told.by(events(engine, count=2)).changes == []
        engine.close()


def test_a_window_of_layers_may_fail_too(load: Load, make_card: MakeCard, cpu: Engine) -> None:
    expected = Told.by(events(cpu))
    last = calls_of_an_answer(load, make_card(), window=1)
    for call in {last * part // 6 for part in range(1, 7)}:
        card = make_card()
        engine = load(card, window=1)
        card.lose_at_call(call)
        told = Told.by(events(engine))
        assert (call, told.ids) == (call, expected.ids)
        check_on_cpu(engine, told)
        engine.close()


def test_a_card_lost_between_two_answers_is_told_with_the_next_one(load: Load, card: EmulatedCard) -> None:
    engine = load(card)
    Told.by(events(engine))
    card.lose()
    engine.metrics()  # what the window shows beside it
    told = Told.by(events(engine, [*PROMPT, 3]))
    check_on_cpu(engine, told)
    assert (told.finished.prefill.reused, told.finished.prefill.reason) == (0, ReuseReason.EVICTED)


def test_unloading_after_a_loss_works_and_the_program_does_not_try_the_card_again(
    load: Load, make_card: MakeCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = make_card()
    engine = load(card)
    answer = events(engine)
    next(answer)
    card.lose()
    engine.close()  # nobody has noticed yet
    found = find_card()
    assert isinstance(found, NoCard)
    assert found.code == "card-failed"
    monkeypatch.setattr("engine.card_loading.find_card", find_card)
    with pytest.raises(SettingError, match="the card failed earlier in this program"):
        load(device="cuda")
    again = load(device="auto")
    assert again.summary.device == "cpu"
    assert "card-failed" in [notice.code for notice in again.summary.notices]
    assert Told.by(events(again)).changes == []


def test_a_fault_that_leaves_the_card_working_gives_its_memory_back(
    load: Load, card: EmulatedCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that is refused once: the model moves all the same, since nobody knows what else is wrong."""
    from engine.cuda.driver import CardFaultError

    engine = load(card)
    answer = events(engine)
    next(answer)

    def refused(*args: Any) -> None:
        raise CardFaultError("The graphics card refused a wait.")

    assert isinstance(engine._backend, CudaBackend)
    monkeypatch.setattr(engine._backend._driver, "wait", refused)
    [change] = [event for event in answer if isinstance(event, DeviceChanged)]
    assert "refused a wait" in change.notice.message
    assert earlier_loss() is None
    assert engine.summary.device == "cpu"
    assert card.live == {}


def test_no_memory_at_each_allocation_of_a_load(load: Load, make_card: MakeCard) -> None:
    card = make_card()
    load(card).close()
    for number in range(1, card.counts.allocations + 1):
        card = make_card()
        card.fail_allocation(number)
        engine = load(card)
        if engine.summary.device == "cpu":
            assert "card-fallback" in [notice.code for notice in engine.summary.notices]
            assert card.live == {}
        told = Told.by(events(engine, count=2))
        assert len(told.ids) == 2
        assert told.changes == []
        engine.close()
        assert card.live == {}


def test_no_memory_at_each_allocation_of_an_answer(
    load: Load, make_card: MakeCard, cpu: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of pages, and of a rotary table that grows."""
    monkeypatch.setattr("engine.cuda.rope_tables.FIRST_POSITIONS", 64)
    expected = Told.by(events(cpu))
    card = make_card()
    engine = load(card)
    card.counts = Counts()
    assert Told.by(events(engine)).ids == expected.ids
    assert card.counts.allocations >= 3  # a page and both halves of a table
    times_fallen_back = 0
    for number in range(1, card.counts.allocations + 1):
        card = make_card()
        engine = load(card)
        card.fail_allocation(number)
        told = Told.by(events(engine))
        assert told.ids == expected.ids
        assert told.changes == []
        for notice in told.finished.notices:
            assert notice.code == "state-fallback"
            assert "The graphics card has no memory left" in notice.message
        assert len(told.finished.notices) <= 1
        times_fallen_back += len(told.finished.notices)
        assert engine.summary.device == "cuda"
        again = Told.by(events(engine, [*PROMPT, *told.ids, 12]))  # there is room again
        assert again.finished.notices == ()
        assert again.finished.prefill.reused == len(PROMPT) + COUNT - 1
        assert places(engine)["a"][1] == "pool"
        engine.close()
    assert times_fallen_back >= 2  # a page may be had in the place of memory that is held ready


def test_another_program_that_takes_the_cards_memory_during_a_chat(
    load: Load, make_card: MakeCard, cpu: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.cuda.page_pool.CHUNK_BYTES", 1)  # a page at a time
    card = make_card()
    engine = load(card)
    prompt = PROMPT[:62]
    answer = events(engine, prompt)
    told = [next(answer) for _ in range(2)]
    card.foreign_bytes = card.total_bytes
    told += list(answer)  # the second page is missing
    finished = told[-1]
    assert isinstance(finished, Finished)
    assert [notice.code for notice in finished.notices] == ["state-fallback"]
    assert list(finished.token_ids) == Told.by(events(cpu, prompt)).ids
    still = Told.by(events(engine, [*prompt, *finished.token_ids, 12]))
    assert [notice.code for notice in still.finished.notices] == ["state-fallback"]
    card.foreign_bytes = 0
    again = Told.by(events(engine, [*prompt, *finished.token_ids, 12, *still.ids, 13]))
    assert again.finished.notices == ()
    assert places(engine)["a"][1] == "pool"


def test_numbers_that_are_none_end_the_answer_and_the_state_is_as_good_as_before(
    load: Load, card: EmulatedCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stand in the keys and values of the token that failed, too; nothing is ever read of those."""
    engine = load(card)
    expected = Told.by(events(engine, conversation="undisturbed"))
    backend = engine._backend
    assert isinstance(backend, CudaBackend)
    norm, width = backend._weights.final_norm, backend.spec.hidden_size
    sound = np.zeros(4 * width, np.uint8)
    card.download(sound, norm)
    answer = events(engine)
    for _ in range(3):  # the second token is there, and the step of it has begun
        next(answer)
    card.fill(norm, 0xFF, 4 * width)
    assert isinstance(next(answer), TextDelta)
    with pytest.raises(ComputeFaultError, match="not numbers"):
        list(answer)
    card.upload(norm, sound)
    assert places(engine)["a"] == (len(PROMPT) + 2, "pool")
    again = Told.by(events(engine))
    assert again.ids == expected.ids
    longer = Told.by(events(engine, [*PROMPT, *expected.ids[:2]], count=COUNT - 2))
    assert longer.ids == expected.ids[2:]
