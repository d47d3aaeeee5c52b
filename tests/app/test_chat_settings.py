"""What is chosen for a conversation survives the disk, and what can't be used is not chosen."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat_sampling import MAX_STOPS, RANGES, SamplingChoice
from app.chat_settings import ChatSettings
from engine.generation import SamplingParams
from engine.sampling import validate

CHOICES = st.builds(
    SamplingChoice,
    temperature=st.none() | st.floats(0, 10),
    top_p=st.none() | st.floats(0, 1, exclude_min=True),
    top_k=st.none() | st.integers(0, 1_000_000),
    min_p=st.none() | st.floats(0, 1, exclude_max=True),
    repetition_penalty=st.none() | st.floats(0.01, 100),
    seed=st.none() | st.integers(0, 2**31 - 1),
    max_tokens=st.none() | st.integers(1, 10_000_000),
    stop=st.lists(st.text(min_size=1, max_size=9), max_size=MAX_STOPS, unique=True).map(tuple),
)


@given(st.builds(ChatSettings, st.text(), CHOICES))
def test_what_is_written_is_read_again(settings: ChatSettings) -> None:
    assert ChatSettings.from_json(settings.as_json()) == settings


def test_nothing_chosen_is_nothing_on_disk() -> None:
    assert ChatSettings().as_json() is None


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", "7", "[" * 99_999, '{"instructions": 3, "sampling": []}']
)
def test_what_can_not_be_read_is_not_chosen(text: str | None) -> None:
    assert ChatSettings.from_json(text) == ChatSettings()


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": True},
        {"top_p": 0},
        {"top_p": 1.01},
        {"top_k": 2.5},
        {"top_k": "4"},
        {"min_p": 1},
        {"repetition_penalty": 0},
        {"seed": -1},
        {"seed": 2**31},
        {"max_tokens": 0},
        {"stop": ["", 4, "x" * 201]},
        {"stop": "x"},
    ],
)
def test_a_number_out_of_its_range_is_not_chosen(values: dict) -> None:
    assert SamplingChoice.from_values(json.loads(json.dumps(values))) == SamplingChoice()


@pytest.mark.parametrize("name", [name for name in RANGES if name != "max_tokens"])
def test_what_a_range_holds_the_engine_takes(name: str) -> None:
    bounds = RANGES[name]
    ends = [bounds.most] if bounds.open_least else [bounds.least, bounds.most]
    for number in ends if not bounds.open_most else ends[:1]:
        value = int(number) if bounds.whole else float(number)
        validate(SamplingParams(**{name: value}))
