"""Each step on hand-written logits, then the fast steps against the plain definition."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ComputeFaultError, SettingError
from engine.generation import SamplingParams
from engine.sampling import (
    MAX_SEED,
    WEIGHT_BITS,
    Candidates,
    Sampler,
    apply_temperature,
    draw,
    greedy,
    min_p,
    penalise_repetition,
    possible_tokens,
    top_k,
    top_p,
    validate,
    weights_of,
)

ROOT = Path(__file__).parents[2]
NAN, INF = float("nan"), float("inf")
# Sizes at which blocks (64), the whole sort (4096) and the first guess (256 blocks = 16,384) begin and end.
SIZES = [1, 2, 63, 64, 65, 127, 1000, 4095, 4096, 4097, 16383, 16384, 16385, 50257]


def probabilities(candidates: Candidates, size: int) -> torch.Tensor:
    """Probabilities of all `size` tokens, float64."""
    full = torch.zeros(size, dtype=torch.float64)
    weights = candidates.scores.double().exp()
    ids = torch.arange(size) if candidates.ids is None else candidates.ids
    full[ids] = weights / weights.sum()
    return full


def plain_probabilities(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Every step by its definition, over the whole vocabulary, in float64 after the temperature.

    This is the chain of transformers' logits warpers, with equal logits ordered by id.
    """
    scores = ((logits - logits.max()) / params.temperature).double()
    if 0 < params.top_k < len(scores):
        scores[scores < scores.sort(descending=True).values[params.top_k - 1]] = -INF
    if params.top_p < 1:
        order = scores.sort(descending=True, stable=True).indices
        ordered = scores[order].softmax(0)
        before = ordered.cumsum(0) - ordered
        scores[order[before >= params.top_p]] = -INF
    if params.min_p > 0:
        relative = scores.softmax(0)
        scores[relative < params.min_p * relative.max()] = -INF
    return scores.softmax(0)


def scores_of(*probabilities: float) -> Candidates:
    scores = torch.tensor(probabilities).log()
    return Candidates(scores - scores.max())


def ids_of(candidates: Candidates) -> list[int]:
    return list(range(len(candidates.scores))) if candidates.ids is None else candidates.ids.tolist()


# --- each step ---


def test_repetition_penalty_divides_positive_logits_and_multiplies_negative_ones():
    logits = torch.tensor([2.0, -2.0, 0.0, 3.0, -1.0])
    result = penalise_repetition(logits, torch.tensor([0, 1, 2]), 2.0)
    assert result.tolist() == [1.0, -4.0, 0.0, 3.0, -1.0]
    assert logits.tolist() == [2.0, -2.0, 0.0, 3.0, -1.0], "the caller's logits are left alone"


def test_repetition_penalty_counts_a_token_once_however_often_it_was_seen():
    logits = torch.tensor([4.0, 1.0])
    assert penalise_repetition(logits, torch.tensor([0, 0, 0]), 2.0).tolist() == [2.0, 1.0]


def test_temperature_divides_and_keeps_everything():
    scores = apply_temperature(torch.tensor([1.0, 3.0, -1.0, -INF]), 2.0).scores
    assert scores.tolist() == [-1.0, 0.0, -2.0, -INF]


@pytest.mark.parametrize("temperature", [1e-300, 1e-45, 1e-10])
def test_a_tiny_temperature_is_greedy_and_never_a_fault(temperature):
    params = SamplingParams(temperature=temperature, seed=1)
    assert Sampler(params).sample(torch.tensor([1.0, 2.0, 1.5])) == 1


@pytest.mark.parametrize(
    ("k", "expected"), [(1, [3]), (2, [0, 3]), (3, [0, 1, 3, 4]), (4, [0, 1, 3, 4]), (9, [0, 1, 2, 3, 4])]
)
def test_top_k_keeps_all_that_equal_the_last_of_the_best(k, expected):
    candidates = apply_temperature(torch.tensor([2.0, 1.0, 0.0, 3.0, 1.0]), 1.0)
    assert ids_of(top_k(candidates, k)) == expected


@pytest.mark.parametrize(
    ("p", "expected"),
    [(0.01, [1]), (0.49, [1]), (0.51, [1, 3]), (0.74, [1, 3]), (0.76, [0, 1, 3]), (0.95, [0, 1, 2, 3])],
)
def test_top_p_keeps_the_token_that_passes_the_limit(p, expected):
    assert ids_of(top_p(scores_of(0.15, 0.5, 0.1, 0.25), p)) == expected


def test_top_p_prefers_the_lower_id_among_equal_tokens():
    assert ids_of(top_p(scores_of(0.25, 0.25, 0.25, 0.25), 0.5)) == [0, 1]


@pytest.mark.parametrize(
    ("p", "expected"), [(0.0, [0, 1, 2, 3]), (0.25, [0, 1, 3]), (0.6, [1]), (0.999, [1])]
)
def test_min_p_is_relative_to_the_best_token(p, expected):
    assert ids_of(min_p(scores_of(0.2, 0.5, 0.1, 0.2), p)) == expected


def test_top_p_sees_what_top_k_left():
    # Of the two best, 0.4 and 0.3, the first alone has 0.57 of what is left.
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    params = SamplingParams(temperature=1.0, top_k=2, top_p=0.55)
    assert ids_of(possible_tokens(logits, params)) == [0]


@pytest.mark.parametrize(
    ("uniform", "expected"), [(0.0, 0), (0.09, 0), (0.11, 2), (0.59, 2), (0.61, 3), (1 - 2**-53, 3)]
)
def test_drawing_goes_by_the_sum_of_probabilities_and_never_hits_an_impossible_token(uniform, expected):
    assert draw(scores_of(0.1, 0.0, 0.5, 0.4, 0.0), uniform) == expected


def test_drawing_from_selected_candidates_gives_their_ids():
    candidates = Candidates(torch.tensor([-1.0, 0.0]), torch.tensor([17, 42]))
    assert draw(candidates, 0.0) == 17
    assert draw(candidates, 0.9) == 42


@pytest.mark.parametrize("size", [5, 150_000])
def test_greedy_takes_the_lowest_id_of_equal_logits(size):
    logits = torch.zeros(size)
    logits[[2, 4, size - 1]] = 7.0
    assert greedy(logits) == 2
    assert Sampler(SamplingParams(temperature=0)).sample(logits) == 2


# --- against the plain definition ---

PARAMS = [
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.0, top_k=40),
    SamplingParams(temperature=0.7, top_k=1000),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(temperature=1.5, top_p=0.99),
    SamplingParams(temperature=3.0, top_p=0.5),
    SamplingParams(temperature=1.0, top_p=1e-6),
    SamplingParams(temperature=1.0, min_p=0.05),
    SamplingParams(temperature=0.6, top_k=20, top_p=0.95),
    SamplingParams(temperature=1.2, top_k=3000, top_p=0.8, min_p=0.02),
]


def assert_same_distribution(logits: torch.Tensor, params: SamplingParams) -> None:
    actual = probabilities(possible_tokens(logits, params), len(logits))
    expected = plain_probabilities(logits, params)
    # The two may only differ on a token whose running sum meets the limit within rounding.
    assert torch.equal(actual > 0, expected > 0)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("params", PARAMS, ids=str)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("spread", [0.3, 3.0, 12.0])
def test_fast_steps_have_exactly_the_plain_distribution(size, spread, params):
    logits = torch.randn(size, generator=torch.Generator().manual_seed(size)) * spread
    assert_same_distribution(logits, params)


@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_equal_and_impossible_logits_keep_the_plain_distribution(params):
    logits = torch.randint(-6, 7, (20_000,), generator=torch.Generator().manual_seed(3)).float()
    logits[1000:9000] = -INF
    assert_same_distribution(logits, params)


@pytest.mark.parametrize("size", [70, 20_000])
def test_all_logits_equal_is_a_fair_draw_among_all(size):
    params = SamplingParams(temperature=1.0, top_k=5, top_p=0.5)
    kept = possible_tokens(torch.zeros(size), params)
    assert ids_of(kept) == list(range(size // 2)), "top-k keeps all ties, top-p half of the mass"


@given(
    st.lists(st.floats(-30, 30, width=32) | st.just(-INF), min_size=1, max_size=40).filter(
        lambda x: max(x) > -INF
    ),
    st.floats(0.05, 5),
    st.integers(0, 45),
    st.floats(0.01, 1),
    st.floats(0, 0.99),
    st.floats(0, 1, exclude_max=True),
)
def test_one_possible_token_always_remains_and_the_best_is_among_them(values, temperature, k, p, m, uniform):
    logits = torch.tensor(values)
    params = SamplingParams(temperature=temperature, top_k=k, top_p=p, min_p=m)
    kept = possible_tokens(logits, params)
    assert int(logits.argmax()) in ids_of(kept)
    token = draw(kept, uniform)
    assert token in ids_of(kept)
    assert logits[token] > -INF


@settings(max_examples=50)
@given(st.integers(1, 200), st.integers(0, 2**32))
def test_draw_is_the_inverse_of_the_running_sum(size, seed):
    generator = torch.Generator().manual_seed(seed)
    candidates = apply_temperature(torch.randn(size, generator=generator) * 4, 1.0)
    sums = probabilities(candidates, size).cumsum(0)
    for uniform in torch.rand(20, generator=generator, dtype=torch.float64).tolist():
        token = draw(candidates, uniform)
        below = float(sums[token - 1]) if token else 0.0
        assert below - 1e-6 <= uniform <= float(sums[token]) + 1e-6


# --- the sampler ---

LOGITS = torch.randn(500, generator=torch.Generator().manual_seed(5))


def answer(params: SamplingParams, length: int = 20) -> list[int]:
    sampler, history = Sampler(params), [1, 2, 3]
    for _ in range(length):
        history.append(sampler.sample(LOGITS, history))
    return history[3:]


def test_the_same_seed_gives_the_same_ids_whatever_else_draws_random_numbers():
    params = SamplingParams(temperature=1.0, top_p=0.9, seed=7)
    first = answer(params)
    torch.manual_seed(123)
    torch.rand(10)
    assert answer(params) == first
    assert answer(SamplingParams(temperature=1.0, top_p=0.9, seed=8)) != first


def test_two_samplers_that_take_turns_do_not_disturb_each_other():
    params = SamplingParams(temperature=1.0, seed=7)
    alone = answer(params)
    one, two = Sampler(params), Sampler(params)
    pairs = [(one.sample(LOGITS), two.sample(LOGITS)) for _ in range(20)]
    assert [a for a, _ in pairs] == [b for _, b in pairs] == alone


def test_an_answer_without_a_seed_reports_one_that_makes_it_again():
    sampler = Sampler(SamplingParams(temperature=1.0))
    drawn = [sampler.sample(LOGITS) for _ in range(20)]
    assert sampler.seed is not None
    assert answer(SamplingParams(temperature=1.0, seed=sampler.seed)) == drawn
    assert Sampler(SamplingParams(temperature=1.0)).seed != sampler.seed


def test_greedy_reports_no_seed_but_keeps_a_given_one():
    assert Sampler(SamplingParams()).seed is None
    assert Sampler(SamplingParams(seed=3)).seed == 3


@pytest.mark.parametrize("temperature", [0.0, 1e-6])
def test_the_penalty_reads_prompt_and_answer_as_they_grow(temperature):
    logits = torch.tensor([3.0, 2.9, 2.8, 0.1])
    sampler = Sampler(SamplingParams(temperature=temperature, repetition_penalty=1.5, seed=0))
    history = [0]
    drawn = []
    for _ in range(4):
        drawn.append(sampler.sample(logits, history))
        history.append(drawn[-1])
    assert drawn == [1, 2, 0, 0]
    assert logits.tolist() == pytest.approx([3.0, 2.9, 2.8, 0.1])


def test_tokens_are_drawn_as_often_as_their_probability_says():
    """The draws of one seed are fixed, so this either always holds or never: no luck is involved."""
    sampler = Sampler(SamplingParams(temperature=1.0, seed=11))
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    counts = Counter(sampler.sample(logits) for _ in range(4000))
    for token, probability in enumerate([0.5, 0.3, 0.15, 0.05]):
        assert counts[token] / 4000 == pytest.approx(probability, abs=0.02)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "values", [[0.0, NAN, 1.0], [NAN, NAN, NAN], [0.0, INF, 1.0], [-INF, -INF, -INF], [NAN, INF, -INF]]
)
def test_logits_that_are_no_numbers_are_a_fault_not_a_token(values, temperature):
    for size in (3, 100_000):
        logits = torch.zeros(size)
        logits[-3:] = torch.tensor(values)
        if values == [-INF] * 3:
            logits[:] = -INF
        with pytest.raises(ComputeFaultError, match="not numbers"):
            Sampler(SamplingParams(temperature=temperature, top_k=2, seed=1)).sample(logits)


# --- settings ---


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("temperature", value) for value in (-0.1, NAN, INF)],
        *[("top_k", value) for value in (-1, 2.5)],
        *[("top_p", value) for value in (0, -0.5, 1.01, NAN)],
        *[("min_p", value) for value in (-0.01, 1, NAN)],
        *[("repetition_penalty", value) for value in (0, -1, 1e-300, 1e300, NAN, INF)],
        *[("seed", value) for value in (-1, MAX_SEED + 1, 1.5)],
    ],
)
def test_a_setting_out_of_range_is_refused_with_its_name_and_value(name, value):
    with pytest.raises(SettingError) as caught:
        Sampler(SamplingParams(**{name: value}))
    assert name.replace("_", "-" if name != "repetition_penalty" else " ") in caught.value.message
    assert str(value) in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=100, top_k=10**9, top_p=1, min_p=0.99, repetition_penalty=0.5, seed=0),
        SamplingParams(seed=MAX_SEED, temperature=1),
    ],
)
def test_settings_at_their_limits_work(params):
    validate(params)
    assert 0 <= Sampler(params).sample(LOGITS, [0]) < len(LOGITS)


def test_checking_settings_needs_no_torch():
    code = (
        "import sys, json\n"
        "from engine.generation import SamplingParams\n"
        "from engine.sampling import Sampler\n"
        "Sampler(SamplingParams(temperature=1.0))\n"
        "print(json.dumps('torch' in sys.modules))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(result.stdout) is False


def test_the_tokens_of_a_seed_are_the_same_for_ever():
    """They depend on no library's random numbers, exponential or order of sums."""
    params = SamplingParams(
        temperature=0.8, top_k=50, top_p=0.95, min_p=0.01, repetition_penalty=1.1, seed=42
    )
    logits = torch.arange(1000).mul(7919).remainder(1000).float() / 100
    sampler, history = Sampler(params), [5]
    for _ in range(8):
        history.append(sampler.sample(logits, history))
    assert history[1:] == [494, 321, 667, 704, 852, 272, 766, 383]


def test_weights_are_whole_and_near_the_exponential():
    scores = torch.cat((torch.linspace(-30, 0, 20_001), torch.tensor([-INF, -1e30])))
    weights = weights_of(scores)
    assert weights.dtype == torch.int64
    assert (int(weights[20_000]), weights[-2:].tolist()) == (2**WEIGHT_BITS, [0, 0])
    exact = scores.double().exp() * 2**WEIGHT_BITS
    assert bool(((weights - exact).abs() <= exact * 2e-7 + 1).all())


def test_what_was_drawn_elsewhere_counts_for_the_random_numbers():
    params = SamplingParams(temperature=1.0, seed=7)
    drawn = answer(params)
    sampler = Sampler(params)
    sampler.num_drawn = 12
    assert [sampler.sample(LOGITS) for _ in range(8)] == drawn[12:]
