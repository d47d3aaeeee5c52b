"""Finds the template that a finished English sentence was made from, and says it in another language.

Templates have numbered places: "{0} can't be read: {1}". What stands in a place may be made from a template
itself ("permission denied"), so the text is read as a small grammar: of all readings the one that explains
most of the text's letters counts. What is quoted, “{0}”, is a name and stays as it is.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from string import Formatter

LONGEST = 2_000  # characters; what is longer is a value, such as a compiler's log
_MOST_READINGS = 40  # of one text by one template: where a value holds the template's own words
_MOST_STEPS = 4_000  # readings of one sentence, its parts and their parts that are looked at
_DEEPEST = 12
_SAID_BETWEEN = {" ": "", "; ": "；", ", ": "，"}
_WORD = re.compile(r"\w+")
_BRACKET = re.compile("[()]")
_COUNT = re.compile(r"\d[\d,]* ")
_BORDER = re.compile(r"(?<=[.!?”]) (?=\S)|; |, (?=\d)")  # of two sentences, or of two things that are listed
# A language without spaces sets them beside other letters alone, and not beside its own punctuation.
_SPACELESS = r"[\u3000-\u30ff\u3400-\u9fff\uff00-\uffef]"
_SPACE_BETWEEN = re.compile(rf"(?<={_SPACELESS}) (?={_SPACELESS})")
_MEETS_LATIN = re.compile(r"[\u3400-\u9fff]\0[A-Za-z0-9]|[A-Za-z0-9]\0[\u3400-\u9fff]")
_WIDE_BORDER = re.compile(r" (?=[，。：；？！、（）])|(?<=[，。：；？！、（）]) ")


@dataclass(frozen=True)
class _Template:
    parts: tuple[str, ...]  # the literal text before, between and after the places
    places: tuple[str, ...]
    wording: tuple[str, ...]  # the same of the translation
    order: tuple[str, ...]
    letters: int  # of the parts

    def fits(self, text: str) -> bool:
        """A quick look: all that is literal stands there, in its order."""
        if not (text.startswith(self.parts[0]) and text.endswith(self.parts[-1])):
            return False
        at = 0
        for part in self.parts:
            at = text.find(part, at)
            if at < 0:
                return False
            at += len(part)
        return True

    def readings(self, text: str) -> Iterator[tuple[str, ...]]:
        """What may stand in the places, every way to read it."""
        start, end = len(self.parts[0]), len(text) - len(self.parts[-1])
        if start <= end:
            yield from _readings(text[start:end], self.parts[1:-1])

    def is_name(self, index: int) -> bool:
        return self.parts[index].endswith("“") and self.parts[index + 1].startswith("”")

    def say(self, values: tuple[str, ...]) -> str:
        by_place = dict(zip(self.places, values, strict=True))
        said = self.wording[0]
        for place, literal in zip(self.order, self.wording[1:], strict=True):
            said = _joined(_joined(said, by_place[place]), literal)
        return said


@dataclass(frozen=True)
class _Said:
    text: str
    letters: int  # of the English that templates and whole entries explain; 0: nothing does
    pieces: int = 0
    """How many these are, and how many values are torn out of their brackets: the simpler reading counts."""


class SentenceBook:
    """templates: English to its translation, both with the same places."""

    def __init__(self, templates: Mapping[str, str]) -> None:
        self._whole: dict[str, str] = {}
        self._by_word: defaultdict[str, list[_Template]] = defaultdict(list)  # "": of those without a word
        for english, translation in templates.items():
            parts, places = split_places(english)
            wording, order = split_places(translation)
            if places:
                template = _Template(parts, places, wording, order, _num_letters("".join(parts)))
                self._by_word[_longest_word(parts)].append(template)
            else:
                self._whole[parts[0]] = wording[0]

    def translated(self, text: str) -> str:
        """The sentence in the other language; as it is where no template fits."""
        return text if len(text) > LONGEST else _Reader(self._whole, self._by_word).read(text).text


class _Reader:
    """Of one sentence. Its work is bounded: what is not read by then stays as it is."""

    def __init__(self, whole: Mapping[str, str], by_word: Mapping[str, list[_Template]]) -> None:
        self._whole = whole
        self._by_word = by_word
        self._known: dict[str, _Said] = {}
        self._steps_left = _MOST_STEPS

    def read(self, text: str, *, depth: int = 0) -> _Said:
        known = self._known.get(text)
        if known is not None:
            return known
        if depth == _DEEPEST or not self._step():
            return _Said(text, 0)
        self._known[text] = _Said(text, 0)  # a template that is nothing but a place leads back here
        self._known[text] = said = self._best(text, depth=depth)
        return said

    def _step(self) -> bool:
        self._steps_left -= 1
        return self._steps_left >= 0

    def _best(self, text: str, *, depth: int) -> _Said:
        spellings = (text, text[:1].lower() + text[1:])  # "reading the file" begins a sentence as "Reading"
        for spelt in spellings:
            if spelt in self._whole:
                return _Said(self._whole[spelt], _num_letters(text), 1)
        if " " not in text:
            return _Said(text, 0)
        fitting = [
            (template, spelt)
            for spelt in dict.fromkeys(spellings)
            for word in dict.fromkeys(["", *_WORD.findall(spelt)])
            for template in self._by_word.get(word, ())
            if template.fits(spelt)
        ]
        fitting.sort(key=lambda one: -one[0].letters)  # the best first: there may not be time for all
        best = _Said(text, 0)
        for template, spelt in fitting:
            best = max(best, self._by(template, spelt, depth=depth), key=_worth)
        best = max(best, self._in_parts(text, depth=depth), key=_worth)
        return max(best, self._of_a_count(text, depth=depth), key=_worth)

    def _by(self, template: _Template, text: str, *, depth: int) -> _Said:
        best = _Said(text, 0)
        for values in islice(template.readings(text), _MOST_READINGS):
            if not self._step():
                break
            said = [
                _Said(value, 0) if template.is_name(index) else self.read(value, depth=depth + 1)
                for index, value in enumerate(values)
            ]
            letters = template.letters + sum(one.letters for one in said)
            pieces = 1 + sum(one.pieces for one in said) + sum(map(_is_torn, values))
            if (letters, -pieces) > _worth(best):
                best = _Said(template.say(tuple(one.text for one in said)), letters, pieces)
        return best

    def _of_a_count(self, text: str, *, depth: int) -> _Said:
        """Things with their number before them: "12 vision or audio"."""
        count = _COUNT.match(text)
        if count is None:
            return _Said(text, 0)
        things = self.read(text[count.end() :], depth=depth + 1)
        return _Said(_joined(count[0].rstrip(), things.text), things.letters, things.pieces + 1)

    def _in_parts(self, text: str, *, depth: int) -> _Said:
        """Two sentences that stand one behind the other, or two things of a list, each read for itself."""
        best = _Said(text, 0)
        for border in _BORDER.finditer(text):
            if not self._step():
                break
            first = self.read(text[: border.start()], depth=depth + 1)
            rest = self.read(text[border.end() :], depth=depth + 1)
            letters, pieces = first.letters + rest.letters, 1 + first.pieces + rest.pieces
            if (letters, -pieces) > _worth(best):
                between = _SAID_BETWEEN[border[0]] if first.letters else border[0]
                best = _Said(first.text + between + rest.text, letters, pieces)
        return best


def split_places(template: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """ "{0} of {1}" -> (("", " of ", ""), ("0", "1")). Braces of the text itself are written twice."""
    parts, places = [""], []
    for literal, place, _, _ in Formatter().parse(template):
        parts[-1] += literal
        if place is not None:
            places.append(place)
            parts.append("")
    return tuple(parts), tuple(places)


def _readings(text: str, between: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Every way to have all of `between` in the text, in its order: what stands around them."""
    latest = []  # where each may begin at most, for those behind it to have room
    end = len(text)
    for part in reversed(between):
        end = text.rfind(part, 0, end)
        if end < 0:
            return
        latest.append(end)
    latest.reverse()

    def rest(start: int, index: int) -> Iterator[tuple[str, ...]]:
        if index == len(between):
            yield (text[start:],)
            return
        at = text.find(between[index], start)
        while 0 <= at <= latest[index]:
            for values in rest(at + len(between[index]), index + 1):
                yield (text[start:at], *values)
            at = text.find(between[index], at + 1)

    yield from rest(0, 0)


def _longest_word(parts: tuple[str, ...]) -> str:
    """A word that is in each text of the template as a word: not one that a value is a part of."""
    words = []
    for index, part in enumerate(parts):
        for word in _WORD.finditer(part):
            is_open = (word.start() == 0 and index > 0) or (
                word.end() == len(part) and index < len(parts) - 1
            )
            if not is_open:
                words.append(word[0])
    return max(words, key=len, default="")


def _joined(left: str, right: str) -> str:
    """With a space at the border just where one of both sides has Latin letters or digits there."""
    at = len(left)
    if _MEETS_LATIN.search(f"{left[-1:]}\0{right[:1]}"):
        return f"{left} {right}"
    border = left[-2:] + right[:2]
    mended = _WIDE_BORDER.sub("", _SPACE_BETWEEN.sub("", border))
    return left[: max(0, at - 2)] + mended + right[2:]


def _is_torn(value: str) -> bool:
    """Whether it holds one bracket of a pair."""
    depth = 0
    for sign in _BRACKET.findall(value):
        depth += 1 if sign == "(" else -1
        if depth < 0:
            return True
    return depth > 0


def _worth(said: _Said) -> tuple[int, int]:
    return said.letters, -said.pieces


def _num_letters(text: str) -> int:
    return sum(map(str.isalpha, text))
