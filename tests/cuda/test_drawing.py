"""Draws on the card: the tokens that the computer draws from the same logits, whatever the settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch
from emulated_card import EmulatedCard, EmulatedCompiler
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.cuda.drawing import DrawKernels, DrawSlot, DrawSlots
from engine.cuda.driver import Address, as_bytes
from engine.cuda.kernel_set import KernelSet
from engine.cuda.memory import CardMemory, Use
from engine.drawing import check_finite
from engine.errors import ComputeFaultError
from engine.generation import SamplingParams
from engine.sampling import Sampler

NAN, INF = float("nan"), float("inf")
HISTORY = [0, 3]


class Table:
    """A card that draws from logits as they are put there."""

    def __init__(self, card: EmulatedCard, compiler: EmulatedCompiler) -> None:
        self.card = card
        self.memory = CardMemory(card)
        self._kernels = KernelSet(card, compiler)
        self._turn = self.memory.allocate(64, Use.WORKSPACE)
        self._of_size: dict[int, tuple[Address, DrawKernels, DrawSlot]] = {}
        card.fill(self._turn, 0, 64)

    def of_size(self, size: int) -> tuple[Address, DrawKernels, DrawSlot]:
        if size not in self._of_size:
            logits = self.memory.allocate(4 * size, Use.WORKSPACE)
            kernels = DrawKernels(self.memory, self._kernels, turn=self._turn, logits=logits, vocab_size=size)
            self._of_size[size] = logits, kernels, DrawSlot(self.memory, size)
        return self._of_size[size]

    def begin(self, params: SamplingParams, size: int, history: Sequence[int] = HISTORY) -> DrawSlot:
        _, _, slot = self.of_size(size)
        slot.begin(params, seed=params.seed, history=[each % size for each in history])
        self.card.upload(self._turn, np.array([slot.address], np.uint64).view(np.uint8))
        return slot

    def start(self, slot: DrawSlot, logits: torch.Tensor, *, rows: int = 1) -> None:
        address, kernels, _ = self.of_size(len(logits))
        self.card.upload(address, as_bytes(logits))
        kernels.launch(self._turn, rows=rows)
        slot.started()

    def draw(self, slot: DrawSlot, logits: torch.Tensor) -> int | None:
        self.start(slot, logits)
        return slot.take()

    def turn(self) -> tuple[int, int]:
        """The next token, and its position."""
        found = np.zeros(24, np.uint8)
        self.card.download(found, self._turn)
        return int(found[8:12].view(np.int32)[0]), int(found[16:24].view(np.int64)[0])


@pytest.fixture
def table(card: EmulatedCard, card_compiler: EmulatedCompiler) -> Iterator[Table]:
    table = Table(card, card_compiler)
    yield table
    table.memory.free_all()


def drawn_by_computer(
    params: SamplingParams, logits: Sequence[torch.Tensor], history: Sequence[int] = HISTORY
) -> list[int | None]:
    """Up to the first that are no numbers."""
    sampler, so_far = Sampler(params), [each % len(logits[0]) for each in history]
    found: list[int | None] = []
    for each in logits:
        try:
            check_finite(each)
            found.append(sampler.sample(each, so_far))
        except ComputeFaultError:
            return [*found, None]
        so_far.append(found[-1])  # type: ignore[arg-type]
    return found


def assert_same(table: Table, params: SamplingParams, logits: Sequence[torch.Tensor]) -> None:
    expected = drawn_by_computer(params, logits)
    slot = table.begin(params, len(logits[0]))
    found = [table.draw(slot, each) for each in logits[: len(expected)]]
    assert found == expected, params


SETTINGS = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=0, repetition_penalty=1.3),
    SamplingParams(temperature=0.7, seed=1),
    SamplingParams(temperature=1e-300, seed=1),
    SamplingParams(temperature=1.0, top_k=1, seed=2),
    SamplingParams(temperature=1.0, top_k=40, seed=3),
    SamplingParams(temperature=2.0, top_k=2500, top_p=0.9, seed=4),
    SamplingParams(temperature=0.7, top_p=0.9, seed=5),
    SamplingParams(temperature=3.0, top_p=0.999, seed=6),
    SamplingParams(temperature=1.0, top_p=1e-9, seed=7),
    SamplingParams(temperature=1.0, min_p=0.05, seed=8),
    SamplingParams(temperature=0.6, top_k=20, top_p=0.95, min_p=0.01, repetition_penalty=1.1, seed=2**63 - 1),
    SamplingParams(temperature=0.3, top_p=0.9, min_p=0.05, repetition_penalty=1.05, seed=9),
    SamplingParams(temperature=100.0, top_k=10**12, repetition_penalty=0.5, seed=10),
]


@pytest.mark.parametrize("params", SETTINGS, ids=str)
@pytest.mark.parametrize("size", [1, 2, 31, 129, 2049, 6151])
def test_the_card_draws_what_the_computer_does(size: int, params: SamplingParams, table: Table) -> None:
    generator = torch.Generator().manual_seed(size)
    spreads = (0.01, 3.0, 3.0, 12.0)
    assert_same(table, params, [torch.randn(size, generator=generator) * spread for spread in spreads])


@pytest.mark.parametrize("params", SETTINGS, ids=str)
def test_equal_logits_are_told_apart_by_their_ids(params: SamplingParams, table: Table) -> None:
    generator = torch.Generator().manual_seed(3)
    rough = [torch.randint(-3, 4, (5000,), generator=generator).float() for _ in range(3)]
    assert_same(table, params, [*rough, torch.zeros(5000), torch.full((5000,), -0.0)])


LOGITS = st.floats(-30, 30, width=32) | st.sampled_from([0.0, -0.0, 1.0, 2.0, 3.0e38, -3.0e38, 1e-45])


@given(
    logits=st.lists(LOGITS, min_size=1, max_size=12),
    repeats=st.sampled_from([1, 1, 7, 200]),
    temperature=st.sampled_from([0.0, 1e-30, 0.3, 1.0, 5.0]) | st.floats(0.01, 10),
    top_k=st.integers(0, 20) | st.just(2300),
    top_p=st.just(1.0) | st.floats(0.001, 1) | st.sampled_from([0.25, 0.5, 0.75]),
    min_p=st.just(0.0) | st.floats(0, 0.99),
    penalty=st.sampled_from([1.0, 1.1, 0.5, 100.0]),
    seed=st.integers(0, 2**63 - 1),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_logits_and_settings_give_the_computer_s_tokens(
    table: Table,
    logits: list[float],
    repeats: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    penalty: float,
    seed: int,
) -> None:
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=penalty,
        seed=seed,
    )
    assert_same(table, params, [torch.tensor(logits).repeat(repeats)] * 3)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("place", [0, 1500, 2999])
def test_logits_that_are_no_numbers_are_told_and_the_next_answer_draws_again(
    value: float, temperature: float, place: int, table: Table
) -> None:
    params = SamplingParams(temperature=temperature, top_k=5, seed=1)
    logits = torch.linspace(-3, 3, 3000)
    broken = logits.clone()
    broken[place] = value
    assert_same(table, params, [logits, broken])
    assert_same(table, params, [logits, logits, logits])


def test_a_penalty_that_makes_infinity_of_a_number_is_a_fault(table: Table) -> None:
    logits = torch.full((40,), 3e38)
    assert_same(table, SamplingParams(temperature=0, repetition_penalty=0.01), [logits])
    assert_same(table, SamplingParams(temperature=1, seed=1, repetition_penalty=100.0), [-logits, -logits])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_next_step_finds_token_and_position(temperature: float, table: Table) -> None:
    logits = torch.linspace(0, 5, 300)
    slot = table.begin(SamplingParams(temperature=temperature, seed=5), 300)
    table.card.fill(Address(table._turn + 16), 0, 8)
    table.start(slot, logits, rows=70)
    assert table.turn() == (slot.take(), 70)
    table.start(slot, logits)
    table.start(slot, -logits)
    first, second = slot.take(), slot.take()
    assert table.turn() == (second, 72)
    assert first != second


def test_where_it_is_nobody_s_turn_nothing_changes(table: Table) -> None:
    logits = torch.linspace(0, 5, 300)
    slot = table.begin(SamplingParams(temperature=0), 300)
    table.card.fill(table._turn, 0, 24)
    _, kernels, _ = table.of_size(300)
    kernels.launch(table._turn, rows=1)
    assert table.turn() == (0, 0)
    table.begin(SamplingParams(temperature=0), 300)
    assert table.draw(slot, logits) == 299


def test_two_answers_by_turns_draw_what_each_draws_alone(table: Table) -> None:
    params = [
        SamplingParams(temperature=1.0, seed=1, repetition_penalty=1.5),
        SamplingParams(temperature=0.5, top_p=0.9, seed=2),
    ]
    logits = [torch.randn(700, generator=torch.Generator().manual_seed(seed)) for seed in range(6)]
    expected = [drawn_by_computer(each, logits) for each in params]
    slots = DrawSlots(table.memory, 700)
    taken = [slots.take(), slots.take()]
    for slot, each in zip(taken, params, strict=True):
        assert slot is not None
        slot.begin(each, seed=each.seed, history=HISTORY)
    found: list[list[int | None]] = [[], []]
    for each in logits:
        for slot, tokens in zip(taken, found, strict=True):
            assert slot is not None
            table.card.upload(table._turn, np.array([slot.address], np.uint64).view(np.uint8))
            tokens.append(table.draw(slot, each))
    assert found == expected
    slots.give_back(taken[1])  # type: ignore[arg-type]
    assert slots.take() is taken[1]


def test_what_is_in_flight_when_an_answer_ends_is_no_matter_to_the_next(table: Table) -> None:
    params = SamplingParams(temperature=1.0, seed=3, repetition_penalty=1.2)
    logits = [torch.randn(300, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    slot = table.begin(params, 300)
    table.start(slot, logits[0])
    table.start(slot, logits[1])
    assert_same(table, params, logits)


def test_a_token_is_there_only_once_it_was_waited_for(
    make_card: Callable[..., EmulatedCard], card_compiler: EmulatedCompiler
) -> None:
    """On a card that does its work as late as may be."""
    table = Table(make_card(lagging="work"), card_compiler)
    logits = torch.linspace(0, 5, 3000)
    assert_same(table, SamplingParams(temperature=1.0, top_k=9, seed=3), [logits, -logits, logits])
    table.memory.free_all()


def test_blocks_and_threads_in_any_order_draw_the_same(
    make_card: Callable[..., EmulatedCard], card_compiler: EmulatedCompiler
) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = [torch.randint(-9, 9, (9000,), generator=generator).float() / 2 for _ in range(2)]
    for order_seed in (1, 2):
        table = Table(make_card(order_seed=order_seed), card_compiler)
        for params in SETTINGS[6:9]:
            assert_same(table, params, logits)
        table.memory.free_all()


def test_no_memory_for_one_more_answer_is_said_and_nothing_is_held(card: EmulatedCard, table: Table) -> None:
    slots = DrawSlots(table.memory, 100)
    assert slots.take() is not None
    card.fail_allocation()
    assert slots.take() is None
