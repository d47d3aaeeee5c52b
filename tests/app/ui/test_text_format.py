"""Numbers and days as people write them."""

from __future__ import annotations

import os
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ui.text_format import (
    day_group,
    format_bytes,
    format_count,
    format_duration,
    format_folder,
    format_speed,
    parse_bytes,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (1234, "1.23 kB"),
        (93_412_352, "93.4 MB"),
        (99_949_999, "99.9 MB"),
        (99_950_000, "100 MB"),
        (999_499_999, "999 MB"),
        (999_500_000, "1 GB"),
        (16_060_000_000, "16.1 GB"),
        (5_000_000_000_000_000, "5000 TB"),
    ],
)
def test_sizes_keep_three_digits_and_never_show_a_thousand_of_a_unit(count: int, text: str) -> None:
    assert format_bytes(count).replace("\u202f", " ") == text


@given(st.integers(min_value=0, max_value=10**15 - 10**13))
def test_size_is_within_one_percent_of_the_truth(count: int) -> None:
    number, unit = format_bytes(count).split("\u202f")
    factor = {"bytes": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}[unit]
    assert float(number) * factor == pytest.approx(count, rel=0.01)
    assert float(number) < 1000 or unit == "TB"


def test_counts_of_parameters_read_as_model_names_do() -> None:
    assert format_count(134_515_008).replace("\u202f", " ") == "135 M"
    assert format_count(8_030_261_248).replace("\u202f", " ") == "8.03 B"
    assert format_count(512) == "512"


@pytest.mark.parametrize(("tokens", "seconds"), [(0, 1.0), (5, 0.0), (0, 0.0)])
def test_no_speed_is_shown_where_none_was_measured(tokens: int, seconds: float) -> None:
    assert format_speed(tokens, seconds) == ""


def test_speed_loses_its_decimals_when_they_stop_mattering() -> None:
    assert format_speed(50, 2.0) == "25.0 tok/s"
    assert format_speed(2500, 2.0) == "1,250 tok/s"


@pytest.mark.parametrize(
    ("age", "group"),
    [(-3, "Today"), (0, "Today"), (1, "Yesterday"), (2, "Last 7 days"), (6, "Last 7 days"), (7, "Earlier")],
)
def test_a_day_stands_under_its_heading(age: int, group: str) -> None:
    today = date(2024, 3, 1)
    assert day_group(today - timedelta(days=age), today) == group


@pytest.mark.parametrize("text", ["0", "0.0 GB", "-1", "much"])
def test_a_size_that_must_be_one_is_asked_for_without_a_word_of_0(text: str) -> None:
    with pytest.raises(ValueError, match=r"Write (gigabytes, such as 2\.5|a size)\.$"):
        parse_bytes(text, zero="")
    assert parse_bytes("0.5", zero="") == 500_000_000


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "less than 1_s"),
        (0.6, "1_s"),
        (59.4, "59_s"),
        (59.6, "1_min"),
        (75, "1_min 15_s"),
        (3_600, "1_h"),
        (7_265, "2_h 1_min"),
    ],
)
def test_durations_are_said_in_the_units_that_matter(seconds: float, words: str) -> None:
    assert format_duration(seconds).replace("\u202f", "_") == words


@pytest.mark.skipif(os.name != "posix", reason="the sign for the home folder is known there")
def test_folders_below_the_home_folder_are_written_as_a_person_types_them() -> None:
    home = Path.home()
    assert format_folder(home / "models" / "山月") == "~/models/山月"
    assert format_folder(home) == "~"
    assert format_folder(home.parent) == str(home.parent)
    assert format_folder(Path(f"{home}-other/models")) == f"{home}-other/models"
