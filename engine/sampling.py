"""How the next token is drawn from logits, step by step.

Steps and their order are those of Hugging Face transformers: repetition penalty, temperature, top-k, top-p,
min-p, draw. `Candidates` are the tokens that are still possible; every step is a function from candidates to
fewer of them, and a step whose setting is neutral is not run at all. Where transformers sorts the whole
vocabulary (10 ms for 150,000 tokens), only what the result depends on is sorted here (0.2 to 0.4 ms).
`tests/engine/test_sampling.py` keeps the plain definition beside it.

torch is imported when the first token is drawn, so settings can be checked without it.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import ComputeFaultError, SettingError
from engine.generation import SamplingParams

if TYPE_CHECKING:
    import torch

MAX_SEED = 2**63 - 1
MIN_PENALTY, MAX_PENALTY = 0.01, 100.0  # far beyond what is of use, and no logit becomes infinite by it
FRESH_SEED_BITS = 32  # short enough to be noted down, and exact as a number in any JSON reader

_BLOCK = 64
_FIRST_GUESS = 256  # tokens that nearly always hold the whole nucleus of top-p
_SMALL = 4096  # so many scores are sorted whole
_BUCKETS = 1024
_BUCKETS_PER_UNIT = 16  # of score; the last bucket takes all below -64


def validate(params: SamplingParams) -> None:
    """Raises SettingError, with the value in the message, when a setting is out of range."""
    _check(0 <= params.temperature < math.inf, "temperature", params.temperature, "0 or more")
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
    _check(valid_seed, "seed", seed, f"a whole number from 0 to {MAX_SEED}")


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

    def select(self, positions: torch.Tensor) -> Candidates:
        """Those at these positions, which must ascend."""
        ids = positions if self.ids is None else self.ids[positions]
        return Candidates(self.scores[positions], ids)


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
    # 1e-30 is greedy to the last bit, and still a number in float32.
    return Candidates((logits - largest) / max(temperature, 1e-30))


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
    scores = candidates.scores
    weights = scores.exp()
    mass = p * float(weights.sum(dtype=_float64()))
    if len(scores) <= _SMALL:
        return candidates.select(_nucleus(scores.sort(descending=True, stable=True).indices, weights, mass))
    positions = _at_least_the_best(scores, _FIRST_GUESS)
    if float(weights[positions].sum(dtype=_float64())) < mass:
        return candidates.select(_wide_nucleus(scores, weights, mass))
    order = scores[positions].sort(descending=True, stable=True).indices
    return candidates.select(_nucleus(positions[order], weights, mass))


def min_p(candidates: Candidates, p: float) -> Candidates:
    """Those whose probability is at least p times that of the best."""
    return candidates.select((candidates.scores.exp() >= p).nonzero().squeeze(1))


def draw(candidates: Candidates, uniform: float) -> int:
    """The token at which the sum of probabilities passes `uniform`, which is from [0, 1)."""
    import torch

    # Sums of blocks first: running sums of all, in float64, need a buffer that costs more than the sums.
    weights = candidates.scores.exp()
    whole = len(weights) // _BLOCK * _BLOCK
    blocks = weights[:whole].view(-1, _BLOCK).sum(1, dtype=torch.float64)
    sums = torch.cat((blocks, weights[whole:].sum(dtype=torch.float64).view(1))).cumsum(0)
    target = uniform * float(sums[-1])
    block = _first_above(sums, target)
    before = float(sums[block - 1]) if block else 0.0
    start = block * _BLOCK
    inside = weights[start : start + _BLOCK].double().cumsum(0)
    position = start + _first_above(inside, target - before)
    return position if candidates.ids is None else int(candidates.ids[position])


def _first_above(sums: torch.Tensor, target: float) -> int:
    """The first position whose running sum exceeds the target.

    Where rounding took the target up to the end, it is the last that adds to the sum: nothing of weight 0.
    """
    import torch

    limit = torch.tensor(target, dtype=sums.dtype, device=sums.device)
    position = int(torch.searchsorted(sums, limit, right=True))
    return position if position < len(sums) else int(torch.searchsorted(sums, sums[-1]))


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
        seed: what makes the same answer again. None where none was given and none is needed, as the answer is
            greedy.

    Raises SettingError for settings out of range.
    """

    def __init__(self, params: SamplingParams) -> None:
        validate(params)
        self._params = params
        self._is_greedy = params.temperature == 0
        self.seed = params.seed
        if self.seed is None and not self._is_greedy:
            self.seed = secrets.randbits(FRESH_SEED_BITS)
        self._generator: torch.Generator | None = None
        self._known: set[int] = set()
        self._known_from = 0  # so much of the history is in `_known`
        self._seen: torch.Tensor | None = None  # the same ids, in no order

    def sample(self, logits: torch.Tensor, history: Sequence[int] = ()) -> int:
        """The next token. `logits` (V,) float32 is not changed; `history` is prompt and answer so far.

        The history of one answer only grows, so only its new end is read. Raises ComputeFaultError when the
        logits are no numbers.
        """
        if self._params.repetition_penalty != 1 and len(history) > 0:
            logits = self._penalise(logits, history)
        if self._is_greedy:
            return greedy(logits)
        return draw(possible_tokens(logits, self._params), self._uniform())

    def _penalise(self, logits: torch.Tensor, history: Sequence[int]) -> torch.Tensor:
        import torch

        fresh = set(history[self._known_from :]) - self._known
        self._known_from = len(history)
        self._known |= fresh
        added = torch.tensor(list(fresh), dtype=torch.int64, device=logits.device)
        self._seen = added if self._seen is None else torch.cat((self._seen, added))
        return penalise_repetition(logits, self._seen, self._params.repetition_penalty)

    def _uniform(self) -> float:
        import torch

        if self._generator is None:
            assert self.seed is not None
            self._generator = torch.Generator().manual_seed(self.seed)
        return float(torch.rand((), generator=self._generator, dtype=torch.float64))


def _check_finite(largest: float) -> None:
    if not math.isfinite(largest):
        raise ComputeFaultError(
            "The model computed values that are not numbers.",
            "Its weights may be damaged: download it again, or choose another model.",
        )


def _float64() -> torch.dtype:
    import torch

    return torch.float64


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


def _nucleus(order: torch.Tensor, weights: torch.Tensor, mass: float, *, before: float = 0.0) -> torch.Tensor:
    """Ascending positions of those in `order` (best first) that have less than `mass` before them."""
    ordered = weights[order].double()
    sums = ordered.cumsum(0) - ordered + before
    return order[sums < mass].sort().values


def _wide_nucleus(scores: torch.Tensor, weights: torch.Tensor, mass: float) -> torch.Tensor:
    """A nucleus of many tokens: scores go into buckets, and only the bucket in which it ends is sorted."""
    import torch

    buckets = (scores * -_BUCKETS_PER_UNIT).clamp(max=_BUCKETS - 1).int()
    sums = torch.bincount(buckets, weights.double(), minlength=_BUCKETS).cumsum(0)
    last = min(int(torch.searchsorted(sums, mass)), _BUCKETS - 1)
    before = float(sums[last - 1]) if last else 0.0
    members = (buckets == last).nonzero().squeeze(1)
    order = members[scores[members].sort(descending=True, stable=True).indices]
    inside = buckets < last
    inside[_nucleus(order, weights, mass, before=before)] = True
    return inside.nonzero().squeeze(1)
