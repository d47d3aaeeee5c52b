"""The patient parser gives what the standard one gives."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ModelFileError
from engine.tokenizers.large_json import parse_large_object

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)
OBJECTS = st.dictionaries(st.text(), VALUES)


@settings(deadline=None)
@given(document=OBJECTS, indent=st.sampled_from([None, 0, 2]))
def test_equals_the_standard_parser(document: dict[str, Any], indent: int | None) -> None:
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    assert parse_large_object(f" {text}\n", "x.json") == json.loads(text)


@settings(deadline=None)
@given(text=st.text(alphabet='{}[]",: 01ae\\\n', max_size=20))
def test_what_is_no_json_is_refused_as_by_the_standard_parser(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        expected = None
    if isinstance(expected, dict) and len(expected) == text.count(":"):  # no key came twice
        assert parse_large_object(text, "x.json") == expected
    elif not isinstance(expected, dict):
        with pytest.raises(ModelFileError, match=r"^x\.json "):
            parse_large_object(text, "x.json")


@settings(deadline=None)
@given(items=st.lists(VALUES))
def test_a_sink_is_given_every_element_in_order_and_nothing_stays(items: list[Any]) -> None:
    taken: list[Any] = []
    text = json.dumps({"model": {"merges": items, "other": items}})
    document = parse_large_object(text, "x.json", sinks={"merges": taken.append})
    assert taken == json.loads(json.dumps(items))
    assert document == {"model": {"merges": [], "other": taken}}


def test_a_key_that_comes_twice_in_the_outer_levels_is_refused() -> None:
    for text in ('{"a": 1, "a": 1}', '{"model": {"vocab": 1, "vocab": 1}}'):
        with pytest.raises(ModelFileError, match="twice"):
            parse_large_object(text, "x.json")
