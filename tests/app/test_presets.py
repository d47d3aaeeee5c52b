"""Presets are known by their names, whatever the case, and are always in order."""

from __future__ import annotations

import pytest

from app.chat_settings import MAX_INSTRUCTIONS
from app.presets import (
    MAX_NAME_LENGTH,
    MAX_PRESETS,
    Preset,
    named,
    preset_of,
    presets_from,
    renamed,
    with_preset,
    without,
)

TWO = (Preset("Poet", "Write in verse."), Preset("Tutor", "Explain step by step."))


def test_a_new_preset_stands_in_its_place() -> None:
    assert [one.name for one in with_preset(TWO, "  Quick\n reply ", "Be brief. ")] == [
        "Poet",
        "Quick reply",
        "Tutor",
    ]


def test_a_name_that_is_there_gets_the_new_words() -> None:
    assert with_preset(TWO, "pOET", "Rhyme.") == (Preset("pOET", "Rhyme."), TWO[1])


def test_a_preset_is_renamed_and_keeps_its_words() -> None:
    assert renamed(TWO, "Poet", "Zen poet") == (TWO[1], Preset("Zen poet", "Write in verse."))
    assert renamed(TWO, "Poet", "poet")[0].name == "poet"
    with pytest.raises(ValueError, match="a preset “tutor” already"):
        renamed(TWO, "Poet", "tutor")
    with pytest.raises(ValueError, match="no preset “Cook” any more"):
        renamed(TWO, "Cook", "Chef")


def test_a_preset_is_found_by_name_and_by_its_words() -> None:
    assert named(TWO, "TUTOR") == TWO[1]
    assert preset_of(TWO, "Write in verse.\n") == TWO[0]
    assert preset_of(TWO, "") is None
    assert without(TWO, "poet") == (TWO[1],)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("", "a", "needs a name"),
        ("\u200b \n", "a", "needs a name"),
        ("n" * (MAX_NAME_LENGTH + 1), "a", "at most 60 characters"),
        ("a", " \n", "needs some instructions"),
        ("a", "x" * (MAX_INSTRUCTIONS + 1), "at most 100,000"),
    ],
)
def test_what_can_not_be_a_preset_is_a_sentence(name: str, text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        with_preset(TWO, name, text)


def test_there_is_a_largest_number_and_replacing_is_always_possible() -> None:
    full = tuple(Preset(f"p{number:03}", "x") for number in range(MAX_PRESETS))
    with pytest.raises(ValueError, match="Delete one first"):
        with_preset(full, "new", "x")
    assert len(with_preset(full, "P007", "other")) == MAX_PRESETS


def test_one_that_can_not_be_used_takes_no_other_with_it() -> None:
    bad = [
        1,
        {"name": "a"},
        {"name": 1, "text": "b"},
        {"name": "", "text": "b"},
        {"name": "h", "text": "\ud83d"},
    ]
    good = [{"name": one.name, "text": one.text} for one in TWO]
    assert presets_from([good[0], *bad, good[1]]) == TWO
    with pytest.raises(TypeError):
        presets_from({"name": "a", "text": "b"})
