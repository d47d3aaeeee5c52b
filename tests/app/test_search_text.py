"""Words in texts: every one is found wherever it stands, in any script, and shown where it is."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.search_text import MAX_TERMS, folded, is_without_case, marks_in, occur_in, snippet_of, terms_of

TEXTS = st.text(alphabet=st.sampled_from('aAbB éÉßẞİı山月隼"\n\t\0\u200d🦅🏽'), max_size=60)


@pytest.mark.parametrize(
    ("query", "terms"),
    [
        ("Kestrel falcon", ("kestrel", "falcon")),
        ("kestrel  KESTREL", ("kestrel",)),
        ('"bird of prey" nest', ("bird of prey", "nest")),
        ('"not closed', ("not closed",)),
        ('""', ()),
        (" \t", ()),
        ("红隼", ("红隼",)),
        ("a\0b", ("a b",)),
    ],
)
def test_a_query_is_words_and_quoted_phrases(query: str, terms: tuple[str, ...]) -> None:
    assert terms_of(query) == terms


def test_a_query_has_an_end() -> None:
    assert len(terms_of(" ".join(f"word{number}" for number in range(50)))) == MAX_TERMS


@given(TEXTS)
def test_places_in_a_folded_text_are_places_in_the_text(text: str) -> None:
    assert len(folded(text)) == len(text)
    assert folded(folded(text)) == folded(text)


@pytest.mark.parametrize("query", ["STRUCT", "struct node", "红", "红隼", '"small falcon"', "é"])
def test_a_word_is_found_inside_others_and_in_any_script(query: str) -> None:
    assert occur_in(terms_of(query), folded("A small falcon: 小型红隼 in DataStructNode, CAFÉ"))


def test_a_sign_without_case_comes_of_no_other_one() -> None:
    signs = (chr(code) for code in range(sys.maxunicode + 1))
    assert not [sign for sign in signs if folded(sign) not in (sign, " ") and is_without_case(folded(sign))]
    assert is_without_case("红隼")
    assert not is_without_case("红x")


def test_every_word_has_to_occur() -> None:
    assert not occur_in(terms_of("falcon eagle"), folded("a falcon"))


@given(st.text(max_size=400), st.integers(0, 399), st.integers(1, 8))
def test_a_snippet_shows_what_was_found(text: str, start: int, length: int) -> None:
    terms = terms_of('"' + text[start : start + length].replace('"', "") + '"')
    if not terms or not occur_in(terms, folded(text)):
        return
    snippet = snippet_of(text, terms)
    assert "\n" not in snippet.text
    if all(char.isprintable() for char in terms[0]) and "  " not in terms[0]:  # gaps are shown as one space
        assert snippet.marks
    for first, last in snippet.marks:
        assert folded(snippet.text)[first:last].startswith(terms[0])


def test_a_snippet_of_a_long_text_begins_near_to_the_place() -> None:
    text = "word " * 1_000 + "kestrel" + " word" * 1_000
    snippet = snippet_of(text, ("kestrel",))
    ((start, end),) = snippet.marks
    assert snippet.text[start:end] == "kestrel"
    assert start < 40
    assert snippet.text.startswith("…word")
    assert snippet.text.endswith("…")
    assert len(snippet.text) < 200


@pytest.mark.parametrize(
    ("text", "query", "shown"),
    [
        ("它需要**逆风**。没有风时", "逆风", "它需要逆风。没有风时"),
        ("It **needs** a `headwind` there", "headwind", "It needs a headwind there"),
        ("## Wind\n> from the *west*", "wind", "Wind from the *west*"),
        ("| Wind | Beats |\n| --- | ---: |\n| calm | 8 |", "calm", "| Wind | Beats | | calm | 8 |"),
        ("see\n```python\ncalm = 1\n```", "calm", "see calm = 1 "),
        ("two ** three, f(**rest), __init__", "rest", "two ** three, f(**rest), __init__"),
        ("write **bold** so", "**bold**", "write **bold** so"),
        ("open **bold and\nno end", "bold", "open **bold and no end"),
    ],
)
def test_a_snippet_has_no_signs_of_markdown_unless_they_are_looked_for(
    text: str, query: str, shown: str
) -> None:
    assert snippet_of(text, terms_of(query)).text == shown


def test_marks_that_overlap_are_one() -> None:
    assert marks_in("abcabc", ("ab", "bc")) == ((0, 6),)
    assert marks_in("山月山", ("山",)) == ((0, 1), (2, 3))
