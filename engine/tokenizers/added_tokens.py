"""Finds added tokens in a text, but only where they may be: control tokens in control text alone.

This does what the `tokenizers` library does with added tokens (leftmost, then longest match; plain ones
before normalized ones), with the one thing that the library can't do: a part of the text that a person wrote
is searched for none of them.
https://github.com/huggingface/tokenizers/blob/main/tokenizers/src/tokenizer/added_vocabulary.rs
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from engine.tokenizers.tokenizer_definition import AddedToken

Run = tuple[int, int]  # start and end of a stretch of text

_SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class TextSpan:
    """Text between added tokens.

    `is_first`: it begins where the whole text begins. `is_normalized_apart`: its normalizer sees it as a text
    of its own (after a plain added token), not as the rest of a longer one (after a normalized one).
    """

    start: int
    end: int
    is_first: bool
    is_normalized_apart: bool


class AddedTokenMatcher:
    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        tokens = tuple(tokens)
        self._plain = _Search([token for token in tokens if not token.normalized], restarts=True)
        self._normalized = _Search([token for token in tokens if token.normalized], restarts=False)

    def split(self, text: str, control: Sequence[Run]) -> list[int | TextSpan]:
        """Ids of added tokens and the spans between them. `control` are the runs of `text`, in order and
        apart from each other, that may hold control tokens; a match never reaches out of its run."""
        items: list[int | TextSpan] = []
        if text:
            items.append(TextSpan(0, len(text), is_first=True, is_normalized_apart=True))
        for search in (self._plain, self._normalized):
            items = [part for item in items for part in _split_item(search, item, text, control)]
        return items


def _split_item(
    search: _Search, item: int | TextSpan, text: str, control: Sequence[Run]
) -> Iterable[int | TextSpan]:
    return search.split(text, item, control) if isinstance(item, TextSpan) else (item,)


class _Search:
    """Looks for one set of tokens. `restarts`: what follows one of them is normalized as a text of its
    own."""

    def __init__(self, tokens: Sequence[AddedToken], *, restarts: bool) -> None:
        self._restarts = restarts
        self._by_content = {token.content: token for token in tokens}
        self._control = _pattern([token for token in tokens if not token.is_spacing])
        self._spacing = _pattern([token for token in tokens if token.is_spacing])

    def split(self, text: str, span: TextSpan, control: Sequence[Run]) -> Iterator[int | TextSpan]:
        done = span.start
        for match in self._matches(text, span, control):
            token = self._by_content[match.group()]
            start, end = match.span()
            if start < done or (token.single_word and not _stands_alone(text, span, start, end)):
                continue
            if token.lstrip:
                start = done + len(text[done:start].rstrip())
            if token.rstrip:
                end = _end_of_space(text, end, span.end)
            if done < start:
                yield self._part(span, done, start)
            yield token.id
            done = end
        if done < span.end:
            yield self._part(span, done, span.end)

    def _part(self, span: TextSpan, start: int, end: int) -> TextSpan:
        if start == span.start:
            return TextSpan(start, end, span.is_first, span.is_normalized_apart)
        return TextSpan(start, end, is_first=False, is_normalized_apart=self._restarts)

    def _matches(self, text: str, span: TextSpan, control: Sequence[Run]) -> Iterator[re.Match[str]]:
        """Matches in order, none overlapping another."""
        ends = [end for _, end in control]
        position = span.start
        while position < span.end:
            found = [
                match
                for match in (
                    self._next_control(text, position, span.end, control, ends),
                    self._spacing.search(text, position, span.end) if self._spacing else None,
                )
                if match is not None
            ]
            if not found:
                return
            match = min(found, key=lambda match: (match.start(), -match.end()))
            yield match
            position = match.end()

    def _next_control(
        self, text: str, position: int, limit: int, control: Sequence[Run], ends: Sequence[int]
    ) -> re.Match[str] | None:
        if self._control is None:
            return None
        for index in range(bisect_right(ends, position), len(control)):
            start, end = control[index]
            if start >= limit:
                break
            match = self._control.search(text, max(position, start), min(end, limit))
            if match is not None:
                return match
        return None


def _pattern(tokens: Sequence[AddedToken]) -> re.Pattern[str] | None:
    """Of two tokens that begin at the same place the longer one is found: alternatives are tried in order."""
    contents = sorted({token.content for token in tokens}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, contents))) if contents else None


def _stands_alone(text: str, span: TextSpan, start: int, end: int) -> bool:
    before = text[start - 1] if start > span.start else " "
    after = text[end] if end < span.end else " "
    return not any(character.isalnum() or character == "_" for character in (before, after))


def _end_of_space(text: str, start: int, limit: int) -> int:
    match = _SPACE.match(text, start, limit)
    assert match is not None  # it matches the empty string too
    return match.end()
