"""Finds the template that a finished English sentence was made from, and says it in another language.

Templates have numbered places: "{0} can't be read: {1}". What stands in a place may be made from a template
itself ("permission denied"), so the text is read as a small grammar: of all readings the one that explains
most of the text's letters counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from string import Formatter

_MOST_READINGS = 40  # of one text by one template: where a value holds the template's own words
_LONGEST_PART = 600  # letters; what is longer in a place is a value, such as a driver's message
_DEEPEST = 4
_HAN = "[\u3400-\u9fff]"
_HAN_MEETS_OTHERS = re.compile(f"{_HAN}\0[A-Za-z0-9]|[A-Za-z0-9]\0{_HAN}")
_SPACED_HAN = re.compile(f"(?<={_HAN})(?: \0|\0 )(?={_HAN})")
_SENTENCE_END = re.compile(r"(?<=[.!?”]) (?=\S)")


@dataclass(frozen=True)
class _Template:
    parts: tuple[str, ...]  # the literal text before, between and after the places
    places: tuple[str, ...]
    wording: str
    letters: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "letters", sum(map(str.isalpha, "".join(self.parts))))

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
            yield from _read(text[start:end], self.parts[1:-1])

    def say(self, values: Sequence[_Said]) -> str:
        by_place = dict(zip(self.places, values, strict=True))
        text, own = "", False  # own: a value beside was itself said in the language
        for literal, place, _, _ in Formatter().parse(self.wording):
            text = _beside(text, literal, own=own)
            if place is not None:
                own = bool(by_place[place].letters)
                text = _beside(text, by_place[place].text, own=own)
        return text


@dataclass(frozen=True)
class _Said:
    text: str
    letters: int  # of the English that a template or a whole entry explains; 0: nothing does


class SentenceBook:
    """templates: English to its translation, both with the same places."""

    def __init__(self, templates: Mapping[str, str]) -> None:
        self._whole: dict[str, str] = {}
        self._templates: list[_Template] = []
        for english, wording in templates.items():
            parts, places = split_places(english)
            if places:
                self._templates.append(_Template(parts, places, wording))
            else:
                self._whole[parts[0]] = "".join(split_places(wording)[0])

    def translated(self, text: str) -> str:
        """The sentence in the other language; as it is where no template fits."""
        memo: dict[str, _Said] = {}
        return self._read(text, memo, depth=0).text

    def _read(self, text: str, memo: dict[str, _Said], *, depth: int) -> _Said:
        if text not in memo:
            memo[text] = _Said(text, 0)
            memo[text] = self._best(text, memo, depth=depth)
        return memo[text]

    def _best(self, text: str, memo: dict[str, _Said], *, depth: int) -> _Said:
        lower = text[:1].lower() + text[1:]  # "reading the file" begins a sentence as "Reading"
        for spelt in (text, lower):
            if spelt in self._whole:
                return _Said(self._whole[spelt], sum(map(str.isalpha, text)))
        if depth >= _DEEPEST or len(text) > _LONGEST_PART * (2 if not depth else 1) or " " not in text:
            return _Said(text, 0)
        best = self._in_sentences(text, memo, depth=depth)
        for template in self._templates:
            for spelt in (text, lower) if template.parts[0] and lower != text else (text,):
                if template.fits(spelt):
                    said = self._by(template, spelt, memo, depth=depth)
                    best = max(best, said, key=lambda one: one.letters)
        return best

    def _by(self, template: _Template, text: str, memo: dict[str, _Said], *, depth: int) -> _Said:
        best = _Said(text, 0)
        for count, values in enumerate(template.readings(text)):
            if count == _MOST_READINGS:
                break
            said = [self._read(value, memo, depth=depth + 1) for value in values]
            letters = template.letters + sum(one.letters for one in said)
            if letters > best.letters:
                best = _Said(template.say(said), letters)
        return best

    def _in_sentences(self, text: str, memo: dict[str, _Said], *, depth: int) -> _Said:
        """Two sentences that stand one behind the other, each read for itself."""
        best = _Said(text, 0)
        for space in _SENTENCE_END.finditer(text):
            first = self._read(text[: space.start()], memo, depth=depth + 1)
            rest = self._read(text[space.end() :], memo, depth=depth + 1)
            if first.letters + rest.letters > best.letters:
                between = "" if first.letters else " "
                best = _Said(first.text + between + rest.text, first.letters + rest.letters)
        return best


def _beside(first: str, second: str, *, own: bool) -> str:
    """Chinese has a space beside words of other scripts, and none between its own. Where a name is what
    meets it, the space of the template stays: own is False.
    """
    joint = f"{first[-2:]}\0{second[:2]}"
    if _HAN_MEETS_OTHERS.search(joint):
        return f"{first} {second}"
    if own and _SPACED_HAN.search(joint):
        return first.removesuffix(" ") + second.removeprefix(" ")
    return first + second


def split_places(template: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """ "{0} of {1}" -> (("", " of ", ""), ("0", "1")). Braces of the text itself are written twice."""
    parts, places = [""], []
    for literal, place, _, _ in Formatter().parse(template):
        parts[-1] += literal
        if place is not None:
            places.append(place)
            parts.append("")
    return tuple(parts), tuple(places)


def _read(text: str, between: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if not between:
        yield (text,)
        return
    at = text.find(between[0])
    while at >= 0:
        for rest in _read(text[at + len(between[0]) :], between[1:]):
            yield (text[:at], *rest)
        at = text.find(between[0], at + 1)
