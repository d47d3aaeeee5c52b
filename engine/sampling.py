"""How the next token is drawn from logits, step by step.

Steps and their order are those of Hugging Face transformers: repetition penalty, temperature, top-k, top-p,
min-p, draw. `Candidates` are the tokens that are still possible; every step is a function from candidates to
fewer of them, and a step whose setting is neutral is not run at all. Where transformers sorts the whole
vocabulary (10 ms for 150,000 tokens), only what the result depends on is sorted here (0.3 to 2 ms).
`tests/engine/test_sampling.py` keeps the plain definition beside it.

What a token weighs is a whole number, made by float32 products and sums in a fixed order, and random numbers
are a function of seed and place (`engine/philox.py`). Sums of whole numbers don't depend on their order: so
the same logits and settings give the same token with any version of torch and on any device.
`cuda/kernels/sample.cu` does the same steps.

torch is imported when the first token is drawn, so settings can be checked without it.
"""

from __future__ import annotations

import functools
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import ComputeFaultError, SettingError
from engine.generation import SamplingParams
from engine.philox import UNIFORM_BITS, uniform_bits
from engine.wording import phrase

if TYPE_CHECKING:
    import torch

MAX_SEED = 2**63 - 1
MIN_PENALTY, MAX_PENALTY = 0.01, 100.0  # far beyond what is of use, and no logit becomes infinite by it
FRESH_SEED_BITS = 32  # short enough to be noted down, and exact as a number in any JSON reader
WEIGHT_BITS = 42
"""The best token weighs 2**42; 2**20 of those still add up in 63 bits."""
LEAST_TEMPERATURE = 1e-30  # greedy to the last bit, and still a number in float32

_LEAST_SCORE = -30.0  # whose weight is less than 1
_LOG2_E = float.fromhex("0x1.715476p+0")
_LN_2 = float.fromhex("0x1.63p-1"), float.fromhex("-0x1.bd0106p-13")  # of which the first is short
_EXP = tuple(  # of exp(r) = 1 + r + r * r * (... * r + ...), |r| <= ln(2) / 2; from Cephes' expf
    float.fromhex(number)
    for number in (
        "0x1.a0d2cep-13",
        "0x1.6e879cp-10",
        "0x1.11121p-7",
        "0x1.555382p-5",
        "0x1.555554p-3",
        "0x1p-1",
    )
)
_EXPONENT_BIAS, _FRACTION_BITS = 127, 23  # of a float32

_BLOCK = 64
_FIRST_GUESS = 256  # tokens that nearly always hold the whole nucleus of top-p
_SMALL = 4096  # so many scores are sorted whole
_BUCKETS = 1024
_BUCKETS_PER_UNIT = 16  # of score; the last bucket takes all below -64


def validate(params: SamplingParams) -> None:
    """Raises SettingError, with the value in the message, when a setting is out of range."""
    _check(0 <= params.temperature < math.inf, phrase("temperature"), params.temperature, "0 or more")
    _check(
        isinstance(params.top_k, int) and params.top_k >= 0,
        "top-k",
        params.top_k,
        "a whole number, 0 or more",
    )
    _check(0 < params.top_p <= 1, "top-p", params.top_p, "above 0 and at most 1")
    _check(0 <= params.min_p < 1, "min-p", params.min_p, "at least 0 and below 1")
    penalty = params.repetition_penalty
    _check(
        MIN_PENALTY <= penalty <= MAX_PENALTY,
        "repetition penalty",
        penalty,
        f"{MIN_PENALTY:g} to {MAX_PENALTY:g}; 1 switches it off",
    )
    seed = params.seed
    valid_seed = seed is None or (isinstance(seed, int) and 0 <= seed <= MAX_SEED)
    _check(valid_seed, phrase("seed"), seed, f"a whole number from 0 to {MAX_SEED}")


def _check(valid: bool, name: str, value: object, allowed: str) -> None:
    if not valid:
        raise SettingError(f"The {name} can't be {value}.", f"Choose {allowed}.")


@dataclass(frozen=True)
class Candidates:
    """Tokens that can still be drawn.

    `scores` (n,) float32 are logits over temperature, shifted so that the best is 0; a token's probability is
    proportional to exp(score). `ids` (n,) ascend; None: all ids from 0 on.
    """

    scores: torch.Tensor
    ids: torch.Tensor | None = None

    @functools.cached_property
    def weights(self) -> torch.Tensor:
        """int64 (n,), what the tokens' probabilities are proportional to."""
        return weights_of(self.scores)

    def select(self, positions: torch.Tensor) -> Candidates:
        """Those at these positions, which must ascend."""
        ids = positions if self.ids is None else self.ids[positions]
        selected = Candidates(self.scores[positions], ids)
        if "weights" in vars(self):
            vars(selected)["weights"] = self.weights[positions]
        return selected


def weights_of(scores: torch.Tensor) -> torch.Tensor:
    """exp(score) * 2**42, rounded down, int64 (n,). scores: at most 0."""
    import torch

    x = scores.clamp(min=_LEAST_SCORE)
    exponent = (x * _LOG2_E).round_()
    x -= exponent * _LN_2[0]
    x -= exponent * _LN_2[1]
    power = (exponent.int() + (WEIGHT_BITS + _EXPONENT_BIAS)) << _FRACTION_BITS
    result = x * _EXP[0]
    for number in _EXP[1:]:
        result.add_(number).mul_(x)
    result.mul_(x).add_(x).add_(1.0)
    return result.mul_(power.view(torch.float32)).long()


def penalise_repetition(logits: torch.Tensor, seen: torch.Tensor, penalty: float) -> torch.Tensor:
    """New logits (V,): those of the tokens in `seen` are divided by the penalty, negative ones multiplied.

    `seen`: ids that occur in prompt or answer. One that is named twice is penalised once.
    """
    import torch

    values = logits[seen]
    return logits.index_put((seen,), torch.where(values < 0, values * penalty, values / penalty))


def greedy(logits: torch.Tensor) -> int:
    """The id of the largest logit, of equal ones the lowest. Raises what `apply_temperature` raises."""
    best = int(logits.argmax())
    _check_finite(float(logits[best]))
    return best


def apply_temperature(logits: torch.Tensor, temperature: float) -> Candidates:
    """All tokens, with scores for this temperature (above 0).

    Raises ComputeFaultError when any logit is NaN or +inf, or all are -inf. One maximum finds all three: to
    it NaN is larger than everything. Single logits of -inf are tokens that can't be drawn.
    """
    largest = float(logits.amax())
    _check_finite(largest)
    return Candidates((logits - largest) / max(temperature, LEAST_TEMPERATURE))


def top_k(candidates: Candidates, k: int) -> Candidates:
    """The k best and all that equal the last of them."""
    scores = candidates.scores
    if k >= len(scores):
        return candidates
    positions = _at_least_the_best(scores, k)
    best = scores[positions]
    return candidates.select(positions[best >= best.topk(k).values[-1]])


def top_p(candidates: Candidates, p: float) -> Candidates:
    """The fewest best tokens that have probability p together. Of equal ones the lower ids come first."""
    scores, weights = candidates.scores, candidates.weights
    total = int(weights.sum())
    mass = min(math.ceil(p * float(total)), total)
    if len(scores) <= _SMALL:
        return candidates.select(_nucleus(scores.sort(descending=True, stable=True).indices, weights, mass))
    positions = _at_least_the_best(scores, _FIRST_GUESS)
    if int(weights[positions].sum()) < mass:
        return candidates.select(_wide_nucleus(scores, weights, mass))
    order = scores[positions].sort(descending=True, stable=True).indices
    return candidates.select(_nucleus(positions[order], weights, mass))


def min_p(candidates: Candidates, p: float) -> Candidates:
    """Those whose probability is at least p times that of the best."""
    return candidates.select((candidates.weights >= least_weight(p)).nonzero().squeeze(1))


def least_weight(min_p: float) -> int:
    """Of a token whose probability is at least `min_p` times that of the best."""
    return math.ceil(math.ldexp(min_p, WEIGHT_BITS))


def draw(candidates: Candidates, uniform: float) -> int:
    """The token at which the sum of probabilities passes `uniform`, which is from [0, 1)."""
    import torch

    # Sums of blocks first: running sums of all need a buffer that costs more than the sums.
    weights = candidates.weights
    whole = len(weights) // _BLOCK * _BLOCK
    blocks = weights[:whole].view(-1, _BLOCK).sum(1)
    sums = torch.cat((blocks, weights[whole:].sum().view(1))).cumsum(0)
    target = int(math.ldexp(uniform, UNIFORM_BITS)) * int(sums[-1]) >> UNIFORM_BITS
    block = _first_above(sums, target)
    before = int(sums[block - 1]) if block else 0
    start = block * _BLOCK
    inside = weights[start : start + _BLOCK].cumsum(0)
    position = start + _first_above(inside, target - before)
    return position if candidates.ids is None else int(candidates.ids[position])


def _first_above(sums: torch.Tensor, target: int) -> int:
    """The first position whose running sum exceeds the target."""
    import torch

    return int(torch.searchsorted(sums, target, right=True))


def possible_tokens(logits: torch.Tensor, params: SamplingParams) -> Candidates:
    """All steps after the repetition penalty. `params.temperature` is above 0."""
    candidates = apply_temperature(logits, params.temperature)
    if params.top_k > 0:
        candidates = top_k(candidates, params.top_k)
    if params.top_p < 1:
        candidates = top_p(candidates, params.top_p)
    if params.min_p > 0:
        candidates = min_p(candidates, params.min_p)
    return candidates


class Sampler:
    """Draws the tokens of one answer, with random numbers of its own: one a token, whatever else goes on.

    Attributes:
        params: how it draws.
        seed: what makes the same answer again. None where none was given and none is needed, as the answer is
            greedy.
        num_drawn: the answer's tokens so far. Whoever draws some elsewhere adds them.

    Raises SettingError for settings out of range.
    """

    def __init__(self, params: SamplingParams) -> None:
        validate(params)
        self.params = params
        self._is_greedy = params.temperature == 0
        self.seed = params.seed
        if self.seed is None and not self._is_greedy:
            self.seed = secrets.randbits(FRESH_SEED_BITS)
        self.num_drawn = 0
        self._known: set[int] = set()
        self._known_from = 0  # so much of the history is in `_known`
        self._seen: torch.Tensor | None = None  # the same ids, in no order

    def sample(self, logits: torch.Tensor, history: Sequence[int] = ()) -> int:
        """The next token. `logits` (V,) float32 is not changed; `history` is prompt and answer so far.

        The history of one answer only grows, so only its new end is read. Raises ComputeFaultError when the
        logits are no numbers.
        """
        if self.params.repetition_penalty != 1 and len(history) > 0:
            logits = self._penalise(logits, history)
        if self._is_greedy:
            token = greedy(logits)
        else:
            token = draw(possible_tokens(logits, self.params), self._uniform())
        self.num_drawn += 1
        return token

    def _penalise(self, logits: torch.Tensor, history: Sequence[int]) -> torch.Tensor:
        import torch

        fresh = set(history[self._known_from :]) - self._known
        self._known_from = len(history)
        self._known |= fresh
        added = torch.tensor(list(fresh), dtype=torch.int64, device=logits.device)
        self._seen = added if self._seen is None else torch.cat((self._seen, added))
        return penalise_repetition(logits, self._seen, self.params.repetition_penalty)

    def _uniform(self) -> float:
        assert self.seed is not None
        return math.ldexp(uniform_bits(self.seed, self.num_drawn), -UNIFORM_BITS)


def _check_finite(largest: float) -> None:
    if not math.isfinite(largest):
        raise ComputeFaultError(
            "The model computed values that are not numbers.",
            "Its weights may be damaged: download it again, or choose another model.",
        )


def _at_least_the_best(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Ascending positions of the `count` best scores and all others that reach the count-th block maximum.

    Each maximum belongs to another score, so at least `count` scores are as good as that one, and none that
    is better is missing.
    """
    import torch

    whole = len(scores) // _BLOCK * _BLOCK
    maxima = torch.cat((scores[:whole].view(-1, _BLOCK).amax(1), scores[whole:]))
    if count >= len(maxima):
        return torch.arange(len(scores), device=scores.device)
    return (scores >= maxima.topk(count).values[-1]).nonzero().squeeze(1)


def _nucleus(order: torch.Tensor, weights: torch.Tensor, mass: int, *, before: int = 0) -> torch.Tensor:
    """Ascending positions of those in `order` (best first) that have less than `mass` before them."""
    ordered = weights[order]
    sums = ordered.cumsum(0) - ordered + before
    return order[sums < mass].sort().values


def _wide_nucleus(scores: torch.Tensor, weights: torch.Tensor, mass: int) -> torch.Tensor:
    """A nucleus of many tokens: scores go into buckets, and only the bucket in which it ends is sorted."""
    import torch

    buckets = (scores * -_BUCKETS_PER_UNIT).clamp(max=_BUCKETS - 1).int()
    sums = torch.zeros(_BUCKETS, dtype=torch.int64).index_add_(0, buckets, weights).cumsum(0)
    last = int(torch.searchsorted(sums, mass))
    before = int(sums[last - 1]) if last else 0
    members = (buckets == last).nonzero().squeeze(1)
    order = members[scores[members].sort(descending=True, stable=True).indices]
    inside = buckets < last
    inside[_nucleus(order, weights, mass, before=before)] = True
    return inside.nonzero().squeeze(1)
