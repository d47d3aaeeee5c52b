"""Tells a model's thinking from its answer while both stream in.

A thinking model writes "<think> ... </think> answer". The opening tag may be missing because the template
wrote it into the prompt, and the closing one because the answer was stopped. Only the first thing in an
answer can be thinking; whatever else stands inside it, tool calls included, is thinking too.

A closing tag that the thinking quotes does not end it. Quoted means: between backticks on one line, or
inside a code fence. A model that forgets to close a fence would so lose its whole answer to the thinking;
therefore a closing tag inside a fence counts after all when it stands alone on its line, a blank line
follows, and the fence holds no opening tag that it could belong to. That is how real closing tags look.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

TagPair = tuple[str, str]

DEFAULT_TAGS: tuple[TagPair, ...] = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
)

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})(.*)")
_BLANK_LINE = "\n\n"


class ThinkingDelta(NamedTuple):
    """What became certain: first of the thinking, then of the answer."""

    thinking: str
    text: str


def leaves_thinking_open(prompt: str, tags: Sequence[TagPair] = DEFAULT_TAGS) -> bool:
    """Whether the rendered prompt ends with an opening tag: the answer then begins inside the thinking."""
    return prompt.rstrip().endswith(tuple(opening for opening, _ in tags))


class _Part(Enum):
    START = "start"  # only white space so far
    THINKING = "thinking"
    ANSWER = "answer"


class ThinkingSplitter:
    """Splits one answer. Thinking and text of all deltas, joined, are the input without the tags.

    Args:
        open: the prompt has opened the thinking already (`leaves_thinking_open`).
        tags: pairs of opening and closing tags.
    """

    def __init__(self, *, open: bool = False, tags: Sequence[TagPair] = DEFAULT_TAGS) -> None:
        self._tags = tuple(tags)
        self._openings = tuple(opening for opening, _ in self._tags)
        self._closings = tuple(closing for _, closing in self._tags)
        self._part = _Part.THINKING if open else _Part.START
        self._may_repeat_opening = open  # some models write the tag that the prompt has written too
        self._held = ""  # input of which nothing was given out yet
        self._code = _CodeTracker()

    def push(self, text: str) -> ThinkingDelta:
        """Takes the next piece of the answer, of any length."""
        self._held += text
        return self._advance(ended=False)

    def finish(self) -> ThinkingDelta:
        """No more input follows: what was held back is decided."""
        return self._advance(ended=True)

    def _advance(self, *, ended: bool) -> ThinkingDelta:
        thinking = ""
        if self._part is _Part.START or self._may_repeat_opening:
            thinking = self._start(ended=ended)
        if self._part is _Part.THINKING and not self._may_repeat_opening:
            thinking += self._think(ended=ended)
        text = ""
        if self._part is _Part.ANSWER:
            text, self._held = self._held, ""
        return ThinkingDelta(thinking, text)

    def _start(self, *, ended: bool) -> str:
        """Looks for an opening tag behind white space. Returns that white space when there is one."""
        body = self._held.lstrip()
        space = self._held[: len(self._held) - len(body)]
        if opening := _prefix_of(body, self._openings, 0):
            self._held = body[len(opening) :]
            self._closings = tuple(closing for first, closing in self._tags if first == opening)
            self._part = _Part.THINKING
            self._may_repeat_opening = False
            self._code.feed(space)
            return space
        if ended or not any(tag.startswith(body) for tag in self._openings):
            if self._part is _Part.START:
                self._part = _Part.ANSWER
            self._may_repeat_opening = False
        return ""

    def _think(self, *, ended: bool) -> str:
        """Gives out thinking up to the closing tag, or up to where one may be about to begin."""
        held, done = self._held, 0
        while done < len(held):
            start = self._next_candidate(done)
            self._code.feed(held[done:start])
            done = start
            end = start + 1
            if closing := _prefix_of(held, self._closings, start):
                end = start + len(closing)
                quoted = self._code.quotes(held[end:], ended=ended)
                if quoted is None:
                    break
                if not quoted:
                    self._part = _Part.ANSWER
                    self._held = held[end:]
                    return held[:start]
            elif opening := _prefix_of(held, self._openings, start):
                end = start + len(opening)
                self._code.note_opening()
            elif not ended and self._may_become_tag(held[start:]):
                break
            self._code.feed(held[start:end])
            done = end
        self._held = held[done:]
        return held[:done]

    def _may_become_tag(self, text: str) -> bool:
        return any(tag.startswith(text) for tag in (*self._closings, *self._openings))

    def _next_candidate(self, start: int) -> int:
        """Where the next character stands that begins a tag; the end of what is held if none does."""
        found = (self._held.find(tag[0], start) for tag in (*self._closings, *self._openings))
        return min((index for index in found if index >= 0), default=len(self._held))


class _CodeTracker:
    """Follows Markdown code through thinking: fences over lines, backticks within one."""

    def __init__(self) -> None:
        self._line = ""  # the current line so far
        self._fence = ""  # the characters that opened the fence we are in
        self._fence_has_opening = False

    def quotes(self, follows: str, *, ended: bool) -> bool | None:
        """Whether a closing tag here, with `follows` behind it, is quoted. None: more text decides."""
        if self._fence:
            if self._line.strip() or self._fence_has_opening:
                return True
            if not ended and len(follows) < len(_BLANK_LINE) and _BLANK_LINE.startswith(follows):
                return None
            return not follows.startswith(_BLANK_LINE)
        opened = _open_backticks(self._line)
        if not opened:
            return False
        line, newline, _ = follows.partition("\n")
        runs = list(re.finditer(r"`+", line))
        if not (newline or ended) and runs and runs[-1].end() == len(line):
            runs.pop()  # it may grow
        if any(len(run.group()) == opened for run in runs):
            return True
        return False if newline or ended else None

    def note_opening(self) -> None:
        if self._fence:
            self._fence_has_opening = True

    def feed(self, text: str) -> None:
        for piece in text.splitlines(keepends=True):
            self._line += piece
            if piece.endswith("\n"):
                self._end_line()

    def _end_line(self) -> None:
        match = _FENCE.fullmatch(self._line.rstrip("\r\n"))
        self._line = ""
        if match is None:
            return
        marker, info = match.groups()
        if not self._fence:
            if marker[0] == "~" or "`" not in info:
                self._fence = marker
                self._fence_has_opening = False
        elif marker[0] == self._fence[0] and len(marker) >= len(self._fence) and not info.strip():
            self._fence = ""


def _prefix_of(text: str, tags: Sequence[str], start: int) -> str | None:
    return next((tag for tag in tags if text.startswith(tag, start)), None)


def _open_backticks(line: str) -> int:
    """Length of the run of backticks that is open at the end of the line, or 0. Runs close equal ones."""
    opened = 0
    for run in re.findall(r"`+", line):
        if not opened:
            opened = len(run)
        elif opened == len(run):
            opened = 0
    return opened
