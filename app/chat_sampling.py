"""How a chat draws tokens: by what its model recommends, but for what a person has chosen."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from engine.generation import SamplingParams

CHAT_SAMPLING = SamplingParams(temperature=0.3, top_p=0.9, min_p=0.05, repetition_penalty=1.05)
"""For models without recommendations, GGUF files above all. Always taking the likeliest token makes small
models repeat one line for ever; min-p keeps the tail out, and the slight penalty leaves code alone.
"""

MAX_STOPS = 16  # strings that end an answer, and
MAX_STOP_LENGTH = 200  # characters of each: an answer's end is compared with them at every token


@dataclass(frozen=True)
class Range:
    """Which numbers a setting takes. `open_*`: the bound itself is not among them."""

    least: float
    most: float
    whole: bool = False
    open_least: bool = False
    open_most: bool = False

    def holds(self, number: float) -> bool:
        above = number > self.least if self.open_least else number >= self.least
        below = number < self.most if self.open_most else number <= self.most
        return above and below and (not self.whole or number == int(number))


RANGES: Mapping[str, Range] = {
    "temperature": Range(0, 10),
    "top_p": Range(0, 1, open_least=True),
    "top_k": Range(0, 1_000_000, whole=True),
    "min_p": Range(0, 1, open_most=True),
    "repetition_penalty": Range(0.01, 100),
    "seed": Range(0, 2**31 - 1, whole=True),
    "max_tokens": Range(1, 10_000_000, whole=True),
}


@dataclass(frozen=True)
class SamplingChoice:
    """What a person has chosen. None: as the model recommends; of the seed: another for each answer; of
    `max_tokens`: until the model or the context ends the answer.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()

    def as_values(self) -> dict[str, Any]:
        """For JSON; what isn't chosen is left out."""
        values = {name: getattr(self, name) for name in RANGES}
        chosen = {name: value for name, value in values.items() if value is not None}
        return {**chosen, "stop": list(self.stop)} if self.stop else chosen

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> SamplingChoice:
        """What can't be used counts as not chosen: another version may have had other bounds."""
        numbers = {name: _number(values.get(name), RANGES[name]) for name in RANGES}
        stop = values.get("stop")
        return cls(**numbers, stop=usable_stops(stop) if isinstance(stop, list) else ())


def usable_stops(strings: list[Any]) -> tuple[str, ...]:
    """Each once, in their order; those that are no strings, empty or too long are left out."""
    good = (text for text in strings if isinstance(text, str) and 0 < len(text) <= MAX_STOP_LENGTH)
    return tuple(dict.fromkeys(good))[:MAX_STOPS]


def _number(value: Any, bounds: Range) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not bounds.holds(value):
        return None
    return int(value) if bounds.whole else float(value)


def chat_sampling(recommended: SamplingParams) -> SamplingParams:
    """The model's own recommendation, or `CHAT_SAMPLING` where it has none."""
    return CHAT_SAMPLING if recommended == SamplingParams() else recommended


def chosen_sampling(recommended: SamplingParams, choice: SamplingChoice) -> SamplingParams:
    """With what was chosen in the place of what is recommended."""
    names = {field.name for field in fields(SamplingParams)} & RANGES.keys()
    chosen = {name: getattr(choice, name) for name in names if getattr(choice, name) is not None}
    return replace(chat_sampling(recommended), **chosen)


def other_sampling(recommended: SamplingParams, choice: SamplingChoice = SamplingChoice()) -> SamplingParams:
    """For another version of an answer: a new seed, and never the likeliest token alone, which would write
    the same answer again.
    """
    sampling = chosen_sampling(recommended, choice)
    if sampling.temperature == 0:
        sampling = replace(sampling, temperature=CHAT_SAMPLING.temperature, top_p=CHAT_SAMPLING.top_p)
    return replace(sampling, seed=secrets.randbits(31))
