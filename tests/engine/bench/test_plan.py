"""What is measured: usual things as far as a context reaches, and one sentence for what makes no sense."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.bench.plan import DEFAULT_DEPTHS, DEFAULT_PROMPT, Plan, make_plan, parse_depths
from engine.errors import SettingError


def plan(context: int, **given: Any) -> Plan:
    usual: dict[str, Any] = {"depths": None, "prompt": None, "tokens": 64, "repeats": 5}
    return make_plan(context=context, **{**usual, **given})


def test_the_usual_plan_of_a_long_context() -> None:
    found = plan(40_960)
    assert (found.depths, found.prompt) == (DEFAULT_DEPTHS, DEFAULT_PROMPT)
    assert found.prompt_depths == (0, 8192), "a prompt behind few tokens says nothing new"


def test_a_prompt_is_read_only_where_there_is_room_behind_a_depth() -> None:
    assert plan(1000, depths=(16, 400, 900), prompt=200).prompt_depths == (0, 400)


@given(context=st.integers(65, 100_000))
def test_the_usual_plan_fits_into_any_context(context: int) -> None:
    found = plan(context)
    assert found.depths
    assert found.longest <= context


def test_depths_that_come_twice_are_measured_once() -> None:
    assert plan(1000, depths=(16, 0, 16), prompt=8).depths == (16, 0)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"tokens": 0}, "tokens is 0; it must be at least 1"),
        ({"repeats": 0}, "repeats is 0"),
        ({"repeats": 10**9}, r"repeats is 1,000,000,000; it must be 1 to 1,000"),
        ({"prompt": -1}, "prompt is -1"),
        ({"depths": (16, -5)}, "depths is -5; it must be at least 0"),
        ({"conversations": -1}, "interleave is -1"),
        ({"reused": -8}, "reused is -8"),
        ({"turn": 0}, "turn is 0"),
        ({"depths": (980,)}, r"^980 tokens and 64 behind them don't fit into the context of 1,000\."),
        ({"depths": (10**18,)}, "don't fit into the context"),
        ({"prompt": 1001}, r"0 tokens and 1,001 behind them"),
        ({"reused": 990, "turn": 32}, r"^990 tokens and 32 behind them"),
        ({"tokens": 1001}, "1,001 behind them"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        plan(1000, **wrong)


def test_a_refusal_says_what_would_fit() -> None:
    with pytest.raises(SettingError) as refused:
        plan(1000, depths=(2000,), tokens=100)
    assert "at most 900" in refused.value.hint


@pytest.mark.parametrize("text", ["", "16,", "a", "1;2", "1.5", "16,,8"])
def test_depths_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(SettingError, match="whole numbers"):
        parse_depths(text)


def test_depths_are_read() -> None:
    assert parse_depths("16,8192, 0") == (16, 8192, 0)
