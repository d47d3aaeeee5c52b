"""Conversations that take turns on a card, token by token: each has the tokens and rows that it has alone,
whatever happens to the others, and while one's token is read, the card computes for the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from card_answers import MODEL, PROMPT, SAMPLED, Load, engines_on_cards, finish, start
from emulated_card import Counts, EmulatedCard, EmulatedCompiler

from engine.backend import Drawing
from engine.backend import Sequence as PageTable
from engine.checkpoints.model_folder import open_model
from engine.cpu.backend import CpuBackend
from engine.cuda.backend import CudaBackend
from engine.cuda.page_pool import CudaPagePool
from engine.engine import Engine
from engine.errors import ComputeFaultError
from engine.generation import (
    DeviceChanged,
    Finished,
    FinishReason,
    GenerationEvent,
    SamplingParams,
    TextDelta,
)
from engine.kv_geometry import PAGE, KvFormat, KvGeometry

GREEDY = SamplingParams(temperature=0)
SETTINGS = [SAMPLED, GREEDY, SamplingParams(temperature=1.3, seed=5, min_p=0.02)]
PROMPTS = [PROMPT[:60], [9, 8, 7, *PROMPT[:58]], [40, 3]]
COUNT = 12


@pytest.fixture
def load(
    make_card: Callable[..., EmulatedCard], card_compiler: EmulatedCompiler, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Load]:
    yield from engines_on_cards(make_card, card_compiler, monkeypatch)


@dataclass
class Turns:
    """Answers by name, and what they told."""

    answers: dict[str, Iterator[GenerationEvent]] = field(default_factory=dict)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    finished: dict[str, Finished] = field(default_factory=dict)
    moves: int = 0

    def add(self, name: str, answer: Iterator[GenerationEvent]) -> None:
        self.answers[name] = answer
        self.tokens[name] = []

    def go_round(self) -> None:
        """An event of each."""
        for name, answer in list(self.answers.items()):
            event = next(answer)
            if isinstance(event, TextDelta):
                self.tokens[name].append(event.token_id)
            elif isinstance(event, DeviceChanged):
                self.moves += 1
            elif isinstance(event, Finished):
                self.finished[name] = event
                self.give_up(name)

    def go_on(self) -> None:
        while self.answers:
            self.go_round()

    def give_up(self, name: str) -> None:
        self.answers.pop(name).close()  # type: ignore[attr-defined]


@pytest.fixture
def alone(load: Load) -> list[tuple[int, ...]]:
    """Tokens behind each of the prompts, of answers one after the other."""
    engine = load()
    return [
        finish(start(engine, prompt, str(number), sampling=sampling, count=COUNT)).token_ids
        for number, (prompt, sampling) in enumerate(zip(PROMPTS, SETTINGS, strict=True))
    ]


def start_all(engine: Engine, *, count: int = COUNT) -> Turns:
    turns = Turns()
    for number, (prompt, sampling) in enumerate(zip(PROMPTS, SETTINGS, strict=True)):
        turns.add(str(number), start(engine, prompt, str(number), sampling=sampling, count=count))
    return turns


@pytest.mark.parametrize("lagging", ["work", "uploads"])
def test_whatever_happens_to_one_the_others_have_the_tokens_that_they_have_alone(
    lagging: str, load: Load, make_card: Callable[..., EmulatedCard], alone: list[tuple[int, ...]]
) -> None:
    card = make_card(lagging=lagging)
    engine = load(card, slots=8)
    recorded = len(card.recordings)
    end = alone[2][4]
    engine._end_ids = frozenset({end})
    cancel = threading.Event()
    turns = start_all(engine)
    turns.add("ends", start(engine, PROMPTS[2], "ends", sampling=SETTINGS[2], count=COUNT, ignore_eos=False))
    turns.add("stopped", start(engine, PROMPTS[0], "stopped", count=COUNT, cancel=cancel))
    turns.add("given up", start(engine, PROMPTS[1], "given up", sampling=GREEDY, count=COUNT))
    for _ in range(5):  # the prompt, and four tokens
        turns.go_round()
    cancel.set()
    turns.give_up("given up")
    turns.add("late", start(engine, [*PROMPTS[1], *PROMPT], "late", sampling=SETTINGS[1], count=COUNT))
    turns.go_on()
    assert [tuple(turns.tokens[str(number)]) for number in range(3)] == alone
    cut = alone[2].index(end) + 1
    assert tuple(turns.tokens["ends"]) == alone[2][:cut]
    assert turns.finished["ends"].finish_reason is FinishReason.END
    assert turns.finished["stopped"].finish_reason is FinishReason.CANCELLED
    assert turns.finished["stopped"].token_ids == alone[0][:4]
    assert tuple(turns.tokens["given up"]) == alone[1][:4]
    late = finish(start(load(), [*PROMPTS[1], *PROMPT], sampling=SETTINGS[1], count=COUNT))
    assert tuple(turns.tokens["late"]) == late.token_ids
    assert len(card.recordings) == recorded
    engine._states.check()
    for name, number in (("ends", 2), ("stopped", 0), ("given up", 1)):
        told, prompt = turns.tokens[name], PROMPTS[number]
        again = [*prompt, *told, 7, 8]
        second = finish(start(engine, again, name, sampling=SETTINGS[number], count=4))
        assert second.prefill.reused >= len(prompt) + len(told) - 1
        assert second.token_ids == finish(start(load(), again, sampling=SETTINGS[number], count=4)).token_ids


def test_while_a_token_is_waited_for_the_other_conversations_steps_are_on_the_card(
    load: Load, card: EmulatedCard, alone: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load(card)
    turns = start_all(engine)
    turns.go_round()  # the prompts
    turns.go_round()  # the first tokens, which are theirs
    turns.go_round()
    in_flight, waited = 3, []
    assert isinstance(engine._backend, CudaBackend)
    driver, replay, wait = engine._backend._driver._driver, card.replay, card.wait

    def counted_replay(recording: object) -> None:
        nonlocal in_flight
        in_flight += 1
        replay(recording)  # type: ignore[arg-type]

    def counted_wait(mark: object) -> None:
        nonlocal in_flight
        waited.append(in_flight)
        in_flight -= 1
        wait(mark)  # type: ignore[arg-type]

    monkeypatch.setattr(driver, "replay", counted_replay)
    monkeypatch.setattr(driver, "wait", counted_wait)
    turns.go_on()
    assert waited == [3] * 3 * (COUNT - 3) + [3, 2, 1]
    assert in_flight == 0
    assert [tuple(turns.tokens[str(number)]) for number in range(3)] == alone


def test_a_token_takes_one_small_copy_to_the_card_and_one_back(load: Load, card: EmulatedCard) -> None:
    engine = load(card)
    turns = start_all(engine, count=4)
    turns.go_round()
    turns.go_round()
    turns.go_round()
    card.counts = Counts()
    turns.go_round()
    assert card.counts.uploads == card.counts.replays == card.counts.waits == 3
    assert card.counts.upload_bytes == 3 * 24 + 8 * (1 + 1 + 1), "slot, id, position, and the pages"
    assert (card.counts.downloads, card.counts.allocations, card.counts.copies) == (0, 0, 0)


@pytest.mark.parametrize("place", [*range(1, 14), 25, 40])
def test_a_card_that_is_lost_leaves_all_of_them_to_the_computer(
    place: int, load: Load, make_card: Callable[..., EmulatedCard]
) -> None:
    """With the same random numbers, and told once."""
    computer = load(device="cpu", activations="int8x2")
    expected = start_all(computer, count=6)
    expected.go_on()
    card = make_card()
    engine = load(card)
    turns = start_all(engine, count=6)
    turns.go_round()
    turns.go_round()
    card.lose_at_call(place)
    turns.go_on()
    assert turns.tokens == expected.tokens
    assert turns.moves == 1
    assert engine.summary.device == "cpu"


@pytest.fixture
def backend(make_card: Callable[..., EmulatedCard], card_compiler: EmulatedCompiler) -> Iterator[CudaBackend]:
    folder = open_model(MODEL)
    cpu = CpuBackend.load(folder.spec, folder.parameters, folder.tensors, weights="q8")
    folder.tensors.close()
    with closing(CudaBackend(cpu, make_card(lagging="work"), card_compiler, context=256)) as found:
        yield found


class Drawn:
    """One conversation's tokens, without an engine."""

    def __init__(
        self, backend: CudaBackend, pool: CudaPagePool, prompt: Sequence[int], params: SamplingParams
    ) -> None:
        self._pool = pool
        self.sequence = PageTable([pool.allocate_one() for _ in range(2)])
        found = backend.start_drawing(params, seed=params.seed, history=prompt)
        assert found is not None
        self._drawing: Drawing = found
        self.tokens = [found.prefill(prompt, self.sequence, pool)]

    def step(self, *, ahead: bool = True) -> None:
        token = self._drawing.decode(self.tokens[-1], self.sequence, self._pool, ahead=ahead)
        self.tokens.append(token)

    def end(self) -> list[torch.Tensor]:
        """What its pages hold."""
        self._drawing.close()
        pages = [self._pool.read(page) for page in self.sequence.pages]
        while self.sequence.pages:
            self._pool.free(self.sequence.pages.pop())
        return pages


@pytest.mark.parametrize("form", ["int8", "native"])
def test_rows_and_tokens_are_those_of_each_alone_bit_for_bit(form: KvFormat, backend: CudaBackend) -> None:
    pool = backend.new_pool(KvGeometry.of(backend.spec, form), 6)
    expected = []
    for prompt, params in zip(PROMPTS, SETTINGS, strict=True):
        each = Drawn(backend, pool, prompt, params)
        for number in range(1, 9):
            each.step(ahead=number < 8)
        assert each.sequence.length == len(prompt) + 8
        expected.append((each.tokens, each.end()))
    assert len(PROMPTS[0]) < PAGE < len(PROMPTS[0]) + 8, "a page ends on the way"
    several = [Drawn(backend, pool, *given) for given in zip(PROMPTS, SETTINGS, strict=True)]
    for number in range(1, 9):
        for each in several[:: 1 if number % 2 else -1]:  # in one order and the other
            each.step(ahead=number < 8)
    for each, (tokens, pages) in zip(several, expected, strict=True):
        assert each.tokens == tokens
        assert all(map(torch.equal, each.end(), pages))


def test_logits_that_are_no_numbers_are_those_of_one_conversation_alone(backend: CudaBackend) -> None:
    pool = backend.new_pool(KvGeometry.of(backend.spec, "native"), 6)
    each = Drawn(backend, pool, PROMPTS[1], SETTINGS[1])
    for _ in range(4):
        each.step()
    expected = each.tokens
    each.end()
    broken, whole = (Drawn(backend, pool, PROMPTS[i], SETTINGS[i]) for i in (0, 1))
    for each in (broken, whole):
        each.step()
    nan = torch.from_numpy(np.full(pool.geometry.page_bytes // 4, np.nan, np.float32)).view(torch.uint8)
    pool.write(broken.sequence.pages[0], nan)
    broken.step()  # was on the card before
    whole.step()
    with pytest.raises(ComputeFaultError, match="not numbers"):
        broken.step()
    for _ in range(2):
        whole.step()
    assert whole.tokens == expected
    broken.end()
    whole.end()
