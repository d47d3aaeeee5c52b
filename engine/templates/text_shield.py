"""Keeps message text from becoming control tokens, whatever a chat template does with it.

A prompt is text in which strings such as "<|im_end|>" are control tokens. When a person types one it must
stay text, and so must one that comes about where texts meet ("<|im_" at the end of a message before "end|>"
in the next). So message text is marked before it is rendered, by two characters that occur in no message: one
stands behind every character that could begin a control token ("<" for "<|im_end|>"), the other before every
one that could end it (">"). A control token with a character from a message then has a marked character at
its begin or end, however the template trims, splits or joins. (A message that is nothing but the middle of
one, "im_end", has its first character marked.) In the end the marks are removed, and the marked characters of
such tokens are encoded as plain text, which is enough to keep the token from forming. Most marked characters
are part of no control token and change nothing.

A mark is no white space and stands beside a character that is none, so templates that trim see no difference.
Only a template that looks for the string of a control token in what a person wrote does not find it: the
person's "<think>" is no thinking.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.errors import ChatTemplateError

_MARK_RANGES = ((0xFDD0, 0xFDEF), (0xE000, 0xF8FF), (0xF0000, 0xFFFFD), (0x100000, 0x10FFFD))


@dataclass(frozen=True)
class RevealedText:
    """Rendered text without marks. `message_chars`: indices, ascending, of the characters that have to be
    encoded as plain text so that no control token forms.
    """

    text: str
    message_chars: tuple[int, ...]


class ControlTokens:
    """A set of token strings, prepared for finding them and for marking text that could become part of one.

    Tokens nearly always begin and end with punctuation; one that begins or ends with a letter or digit would
    have every such letter marked. Its occurrences are marked instead, and text at the outer sides that
    continues it.
    """

    def __init__(self, tokens: Collection[str]) -> None:
        self.tokens = frozenset(tokens)
        self.openers = frozenset(token[0] for token in self.tokens if not _is_wordlike(token[0]))
        self.closers = frozenset(token[-1] for token in self.tokens if not _is_wordlike(token[-1]))
        self._opener = _character_class(self.openers)
        self._closer = _character_class(self.closers)
        wordlike = [token for token in self.tokens if _is_wordlike(token[0]) or _is_wordlike(token[-1])]
        self._wordlike = frozenset(wordlike)
        self._heads = frozenset(token[:i] for token in wordlike for i in range(1, len(token)))
        self._tails = frozenset(token[i:] for token in wordlike for i in range(1, len(token)))
        self._longest = max(map(len, self.tokens), default=0)
        self._joined = "\0".join(sorted(self.tokens))
        lengths: dict[str, set[int]] = {}
        for token in self.tokens:
            lengths.setdefault(token[0], set()).add(len(token))
        self._lengths = {first: sorted(sizes) for first, sizes in lengths.items()}
        self._first = _character_class(lengths)

    def occurrences(self, text: str) -> Iterator[tuple[int, int]]:
        """Start and end of every token in the text, overlapping ones too."""
        for match in self._first.finditer(text):
            start = match.start()
            for size in self._lengths[match.group()]:
                end = start + size
                if end <= len(text) and text[start:end] in self.tokens:
                    yield start, end

    def marks(self, text: str) -> tuple[set[int], set[int]]:
        """Indices of characters that get a mark behind them, and of those that get one before them."""
        behind = {match.start() for match in self._opener.finditer(text)}
        before = {match.start() for match in self._closer.finditer(text)}
        trimmed = text.strip()
        if not trimmed:
            return behind, before
        first = text.index(trimmed[0])
        last = first + len(trimmed) - 1
        if len(trimmed) <= self._longest and trimmed in self._joined:
            behind.add(first)  # all of the text could be the middle of a token
        if self._wordlike:
            behind.update(start for start, end in self.occurrences(text) if text[start:end] in self._wordlike)
            sizes = range(1, min(len(trimmed), self._longest) + 1)
            if any(trimmed[:size] in self._tails for size in sizes):
                behind.add(first)
            if any(trimmed[-size:] in self._heads for size in sizes):
                before.add(last)
        return behind, before


def _character_class(chars: Iterable[str]) -> re.Pattern[str]:
    escaped = "".join(re.escape(char) for char in sorted(chars))
    return re.compile(f"[{escaped}]" if escaped else "(?!)")  # (?!) is found nowhere


def _is_wordlike(char: str) -> bool:
    return char.isalnum() or char.isspace()


class TextShield:
    """Shields the texts of one prompt.

    Args:
        tokens: the tokenizer's added tokens.
        texts: everything that will be shielded, so that the marks can be characters that are in none of it.
        template: the source of the template, for the same reason.

    Attributes:
        probe: one more character that is in none of the texts.
    """

    def __init__(self, tokens: ShieldTokens, *, texts: Iterable[str], template: str) -> None:
        self._tokens = tokens
        self._mark_behind, self._mark_before, self.probe = _unused_characters(3, [*texts, template])
        self._neighbours_behind: set[str] = set()
        self._neighbours_before: set[str] = set()
        marks = (self._mark_behind, self._mark_before)
        # A template may write JSON in ASCII, where a mark becomes its escape.
        forms = {_ascii_escape(mark): mark for mark in marks} | {mark: mark for mark in marks}
        self._forms = forms
        self._pattern = re.compile("|".join(map(re.escape, forms)))

    def user(self, text: str) -> str:
        """Text of a person, a file or a tool: no added token in it is one."""
        return self._mark(text, *self._tokens.all.marks(text))

    def assistant(self, text: str) -> str:
        """Text that a model wrote: tokens such as "</think>" are left alone, control tokens are not."""
        behind, before = self._tokens.special.marks(text)
        for start, end in self._tokens.harmless.occurrences(text):
            behind.difference_update(range(start, end))
            before.difference_update(range(start, end))
        for start, end in self._tokens.special.occurrences(text):
            behind.add(start)
            before.add(end - 1)
        return self._mark(text, behind, before)

    def _mark(self, text: str, behind: set[int], before: set[int]) -> str:
        parts: list[str] = []
        done = 0
        for index in sorted(behind | before):
            parts.append(text[done:index])
            char = text[index]
            if index in before:
                parts.append(self._mark_before)
                self._neighbours_before.add(char)
            parts.append(char)
            if index in behind:
                parts.append(self._mark_behind)
                self._neighbours_behind.add(char)
            done = index + 1
        parts.append(text[done:])
        return "".join(parts)

    def remove_marks(self, text: str) -> str:
        return self._pattern.sub("", text)

    def reveal(self, rendered: str) -> RevealedText:
        """Removes the marks and says which characters have to be encoded as text."""
        parts: list[str] = []
        marked: set[int] = set()
        length = done = 0
        for match in self._pattern.finditer(rendered):
            part = rendered[done : match.start()]
            parts.append(part)
            length += len(part)
            done = match.end()
            # A template that cuts texts may have parted a mark from its character.
            if self._forms[match.group()] == self._mark_behind:
                if part[-1:] in self._neighbours_behind:
                    marked.add(length - 1)
            elif rendered[done : done + 1] in self._neighbours_before:
                marked.add(length)
        parts.append(rendered[done:])
        return self._sort_out("".join(parts), sorted(marked))

    def _sort_out(self, text: str, marked: Sequence[int]) -> RevealedText:
        in_tokens: set[int] = set()
        if marked:
            for start, end in self._tokens.all.occurrences(text):
                in_tokens.update(marked[bisect_left(marked, start) : bisect_left(marked, end)])
        return RevealedText(text, tuple(sorted(in_tokens)))


class ShieldTokens:
    """The added tokens of a tokenizer, sorted by what the shield does with them.

    Some vocabularies keep words or runs of white space as added tokens. Unless they are special they control
    nothing, and the model knows such text by them, so they are left alone.
    """

    def __init__(self, added_tokens: Mapping[str, int], special_ids: Collection[int]) -> None:
        special = {token for token, token_id in added_tokens.items() if token and token_id in special_ids}
        harmless = {token for token in added_tokens if token not in special and _looks_like_control(token)}
        self.special = ControlTokens(special)
        self.harmless = ControlTokens(harmless)
        self.all = ControlTokens(special | harmless)


def _looks_like_control(token: str) -> bool:
    is_word = token[:1].isalnum() and token[-1:].isalnum()
    return bool(token.strip(" \t\r\n▁")) and not is_word


def _ascii_escape(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def _unused_characters(count: int, texts: Sequence[str]) -> list[str]:
    """Characters without a meaning that are in none of the texts, neither as they are nor as an escape."""
    used = set().union(*texts)
    found: list[str] = []
    for first, last in _MARK_RANGES:
        for code in range(first, last + 1):
            char = chr(code)
            if char not in used and not any(_ascii_escape(char) in text for text in texts):
                found.append(char)
                if len(found) == count:
                    return found
    raise ChatTemplateError(
        "The messages use every character that Unicode keeps free, so no mark is left for their text.",
        "Remove the private-use characters from the messages.",
    )
