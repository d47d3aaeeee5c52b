"""What a search finds in a text: words and phrases anywhere in it, whatever their case, in any script.

Every word has to occur; "several words" in quotation marks occur as they stand. A word is found inside longer
ones, so Chinese needs no separation into words, and names in code are found by their parts.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

MAX_TERMS = 8
MAX_TERM_LENGTH = 200  # characters
_QUOTED_OR_WORD = re.compile(r'"([^"]*)"?|(\S+)')
_BEFORE = 30  # characters of a text that are shown before what was found,
_SHOWN = 160  # and altogether
_AROUND = 300  # characters of the text around that, in which the signs of Markdown have their partners
_SPACES = re.compile(r"\s")
_GAPS = re.compile(r"\s+")
_LINE_MARKS = re.compile(
    r"^[ \t]*(?:#{1,6}[ \t]+|(?:>[ \t]?)+|(?:```|~~~).*$|\|?(?:[ \t]*:?-{3,}:?[ \t]*\|?)+$)", re.MULTILINE
)
_BOLD = re.compile(r"\*\*(?=\S)([^*\n]+)(?<=\S)\*\*")
_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


@dataclass(frozen=True)
class Snippet:
    """A part of a text on one line, and what was found in it: (start, end) pairs in order, apart."""

    text: str
    marks: tuple[tuple[int, int], ...] = ()


def terms_of(query: str) -> tuple[str, ...]:
    """What is looked for, folded; () for nothing."""
    found = (quoted or word for quoted, word in _QUOTED_OR_WORD.findall(unicodedata.normalize("NFC", query)))
    terms = dict.fromkeys(folded(term.strip())[:MAX_TERM_LENGTH] for term in found)
    return tuple(term for term in terms if term)[:MAX_TERMS]


def folded(text: str) -> str:
    """`text` in lower case, character by character, so that places in it are places in the text. A zero
    character, at which SQLite's words end, counts as a space.
    """
    lower = text.lower()
    if len(lower) != len(text):  # "İ" becomes two characters
        lower = "".join(one if len(one := char.lower()) == 1 else char for char in text)
    return lower.replace("\0", " ")


def is_without_case(term: str) -> bool:
    """A text has it just where its folded form has: its signs have one case, and none is a space."""
    return term.lower() == term.upper() and " " not in term


def occur_in(terms: Sequence[str], folded_text: str) -> bool:
    return all(term in folded_text for term in terms)


def snippet_of(text: str, terms: Sequence[str]) -> Snippet:
    """What stands around the first place where the longest term occurs, with all terms marked in it."""
    low = folded(text)
    longest = max((term for term in terms if term in low), key=len, default="")
    place = low.find(longest)
    around = slice(max(0, place - _AROUND), place + len(longest) + _SHOWN + _AROUND)
    part = without_signs(text[around], terms)
    before, after = around.start > 0, around.stop < len(text)
    return _cut_out(part, terms, longest, before=before, after=after)


def without_signs(text: str, terms: Sequence[str]) -> str:
    """Without what Markdown makes headings, quotations, tables, bold letters and code by; as it stands where
    something that is looked for has such signs itself.
    """
    plain = _CODE.sub(r"\1", _BOLD.sub(r"\1", _LINE_MARKS.sub("", text)))
    low, low_plain = folded(text), folded(plain)
    return plain if all(term in low_plain for term in terms if term in low) else text


def _cut_out(text: str, terms: Sequence[str], longest: str, *, before: bool, after: bool) -> Snippet:
    """before, after: whether the text goes on there."""
    low = folded(text)
    place = low.find(longest)
    start = max(0, place - _BEFORE)
    if start and (space := _SPACES.search(low, start, place)):
        start = space.end()  # at a word, if one begins
    part = text[start : start + max(_SHOWN, place - start + len(longest))]
    line = _GAPS.sub(" ", "".join(" " if unicodedata.category(char) == "Cc" else char for char in part))
    lead = "…" if start or before else ""
    trail = "…" if start + len(part) < len(text) or after else ""
    low = folded(line)
    marks = [(at, at + len(term)) for term in terms for at in _places(term, low)]
    shift = len(lead)
    return Snippet(
        f"{lead}{line}{trail}", tuple((first + shift, last + shift) for first, last in merged(marks))
    )


def marks_in(text: str, terms: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Every place of every term: (start, end) pairs in order, apart."""
    low = folded(text)
    return merged([(at, at + len(term)) for term in terms for at in _places(term, low)])


def merged(marks: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Pairs in order, those that touch or overlap as one."""
    result: list[tuple[int, int]] = []
    for start, end in sorted(marks):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return tuple(result)


def _places(term: str, low: str) -> list[int]:
    places: list[int] = []
    at = low.find(term)
    while at >= 0:
        places.append(at)
        at = low.find(term, at + len(term))
    return places
