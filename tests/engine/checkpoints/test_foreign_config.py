"""Values of foreign configs: the right type and range, or an error with the name of the key."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.checkpoints.foreign_config import ConfigReader
from engine.checkpoints.foreign_files import parse_json_object, read_json_object, read_text, shown, some_names
from engine.errors import ModelFileError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def reader(value: Any) -> ConfigReader:
    return ConfigReader({"outer": {"key": value}}, "config.json").section("outer")


def value_or_error(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except ModelFileError as error:
        return error


@given(JSON)
def test_a_value_is_right_or_its_key_is_named(value: Any) -> None:
    config = reader(value)
    for read, kind in (
        (lambda: config.integer("key"), int),
        (lambda: config.number("key", above=0.0, at_most=1e6), float),
        (lambda: config.boolean("key"), bool),
        (lambda: config.text("key"), str),
        (lambda: config.texts("key"), list),
        (lambda: config.integers("key"), list),
        (lambda: config.section("key"), ConfigReader),
    ):
        result = value_or_error(read)
        if isinstance(result, ModelFileError):
            assert result.message.startswith("config.json: outer.key ")
            assert result.message.isprintable()
        else:
            assert isinstance(result, kind)


def test_null_counts_as_absent() -> None:
    config = ConfigReader({"a": None}, "config.json")
    assert config.integer("a", 3) == 3
    assert config.texts("a") == []
    assert "a" not in config
    assert config.given("a")
    assert not config.given("b")


@pytest.mark.parametrize("value", [8, 8.0])
def test_whole_numbers_may_be_written_with_a_point(value: float) -> None:
    assert reader(value).integer("key") == 8


@pytest.mark.parametrize("value", [0, -1, 2**24 + 1, 10**400, 8.5, math.inf, math.nan, True, "8"])
def test_sizes_that_can_not_be_are_refused(value: Any) -> None:
    with pytest.raises(ModelFileError, match=r"outer\.key"):
        reader(value).integer("key")


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, -math.inf, math.nan, 10**400, True, "1e-6"])
def test_numbers_that_can_not_be_are_refused(value: Any) -> None:
    with pytest.raises(ModelFileError, match=r"outer\.key"):
        reader(value).number("key", above=0.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"a": 1,}',
        "[1]",
        "null",
        '{"a": 1}{',
        "{'a': 1}",
        '{"a": ' + "9" * 5000 + "}",
        "[" * 10**6,
        "\ufeff[]",
    ],
)
def test_what_is_no_object_is_refused_with_the_name_of_the_file(text: str) -> None:
    with pytest.raises(ModelFileError, match=r"^some\.json"):
        parse_json_object(text, "some.json")


@pytest.mark.parametrize(
    "text", ['{"a": {"b": 1, "b": 1}}', '[{"b": 1, "b": 2}]', '{"b": 1, "c": 2, "b": null}']
)
def test_a_key_that_comes_twice_is_named(text: str) -> None:
    with pytest.raises(ModelFileError, match="'b' twice"):
        parse_json_object(text, "some.json")


def test_a_byte_order_mark_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_json_object(tmp_path / "config.json") == {"a": 1}


def test_text_in_another_encoding_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes('{"a": "ä"}'.encode("utf-16"))
    with pytest.raises(ModelFileError, match="UTF-8"):
        read_json_object(tmp_path / "config.json")


@pytest.mark.parametrize(("size", "fits"), [(9, True), (10, True), (11, False)])
def test_size_is_bounded(size: int, fits: bool, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("x" * size, encoding="utf-8")
    if fits:
        assert read_text(path, limit=10) == "x" * size
    else:
        with pytest.raises(ModelFileError, match="far too large"):
            read_text(path, limit=10)


@given(st.text(alphabet=st.characters(), max_size=300))
def test_foreign_text_stays_one_printable_line(text: str) -> None:
    result = shown(text)
    assert result.isprintable()
    result.encode("utf-8")


def test_surrogates_and_control_characters_are_escaped() -> None:
    assert shown("a\ud800b\x1b[31m\n") == "a\\ud800b\\x1b[31m\\n"
    assert shown("山月 🦅") == "山月 🦅"
    assert shown("x" * 500) == "x" * 159 + "…"


def test_long_lists_of_names_are_counted() -> None:
    assert some_names(["a", "b", "c"]) == "a, b, c"
    assert some_names(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
