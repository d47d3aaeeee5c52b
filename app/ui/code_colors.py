"""Colours a document of code while it grows, a few lines at a time.

Code that grows is read again from a line where reading can begin, so late lines cost what early ones do;
the whole is read once more, in slices, when it has ended. Colours are laid over the text and are no part
of the document.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import shiboken6
from PySide6.QtGui import QColor, QTextBlock, QTextCharFormat, QTextDocument, QTextLayout

from app.ui.code_highlight import MAX_COLOURED, Part, part_colors, parts
from app.ui.lexers import lexer_store
from app.ui.theme import current_theme

_REREAD = 1_500  # characters of growing code that are read again with each change: about 5 ms
_PARTS_A_STEP = 200
_Run = tuple[int, int, Part]  # start and length in the line


class CodeColors:
    """The colours of one document whose blocks are the lines of a piece of code."""

    def __init__(self, document: QTextDocument, language: str) -> None:
        self._document = document
        self._language = language
        self._runs: list[list[_Run]] = []  # by line
        self._begin = 0  # the line where reading begins while the code grows
        self._begin_character = 0
        self._formats = _formats()

    def follow(self, code: str) -> None:
        """Colours what was added; `code` is all of it. Costs the same however long the code is. Does nothing
        while the lexer isn't loaded.
        """
        if len(code) > MAX_COLOURED or not lexer_store().is_known(self._language):
            return
        if len(code) - self._begin_character > 2 * _REREAD:
            self._move_begin(code)
        for _ in self._read(code, self._begin_character, self._begin):
            pass

    def finish(self, code: str) -> Iterator[None]:
        """Steps that colour the whole from its start, if `follow` had to leave the start out."""
        if self._begin_character and len(code) <= MAX_COLOURED:
            yield from self.whole(code)

    def whole(self, code: str) -> Iterator[None]:
        """Steps that colour all of it."""
        yield from self._read(code, 0, 0)

    def apply_theme(self) -> None:
        self._formats = _formats()
        for number, runs in enumerate(self._runs):
            self._show(self._document.findBlockByNumber(number), runs)

    def _move_begin(self, code: str) -> None:
        """To the last line that starts at the margin after an empty one: there, nothing is likely to be
        open.
        """
        position = code.rfind("\n\n", self._begin_character, len(code) - _REREAD)
        while position >= 0 and code[position + 2 : position + 3].isspace():
            position = code.rfind("\n\n", self._begin_character, position)
        if position < 0:
            position = code.rfind("\n", self._begin_character, len(code) - _REREAD) - 1
        if position >= self._begin_character:
            end = code.index("\n", position + 1) + 1
            self._begin += code.count("\n", self._begin_character, end)
            self._begin_character = end

    def _read(self, code: str, begin: int, first_line: int) -> Iterator[None]:
        if not shiboken6.isValid(self._document):
            return  # the message was taken away before its turn came
        text = code[begin:]
        starts = _line_starts(text)
        runs: list[list[_Run]] = [[] for _ in starts]
        done = 0
        for count, (start, length, part) in enumerate(parts(text, self._language), 1):
            line = bisect_right(starts, start) - 1
            _add_run(runs, starts, line, start, length, part)
            if count % _PARTS_A_STEP == 0:
                done = self._show_lines(runs, done, line, first_line)
                yield
                if not shiboken6.isValid(self._document):
                    return  # the message was taken away meanwhile
        self._show_lines(runs, done, len(runs), first_line)

    def _show_lines(self, runs: list[list[_Run]], first: int, last: int, offset: int) -> int:
        while len(self._runs) < offset + last:
            self._runs.append([])
        for line in range(first, last):
            if self._runs[offset + line] != runs[line]:
                self._runs[offset + line] = runs[line]
                self._show(self._document.findBlockByNumber(offset + line), runs[line])
        return max(first, last)

    def _show(self, block: QTextBlock, runs: list[_Run]) -> None:
        if not block.isValid():
            return
        ranges = []
        text = block.text()
        if len(text) != block.length() - 1:  # Qt counts a character beyond the BMP as two
            runs = [
                (_units(text[:start]), _units(text[start : start + length]), part)
                for start, length, part in runs
            ]
        for start, length, part in runs:
            span = QTextLayout.FormatRange()
            span.start, span.length, span.format = start, length, self._formats[part]
            ranges.append(span)
        block.layout().setFormats(ranges)
        self._document.markContentsDirty(block.position(), block.length())


def _units(text: str) -> int:
    """Length in UTF-16 units."""
    return len(text) + sum(char > "\uffff" for char in text)


def _formats() -> dict[Part, QTextCharFormat]:
    formats = {}
    for part, color in part_colors(current_theme()).items():
        formats[part] = QTextCharFormat()
        formats[part].setForeground(QColor(color))
    return formats


def _line_starts(text: str) -> list[int]:
    starts = [0]
    position = text.find("\n") + 1
    while position:
        starts.append(position)
        position = text.find("\n", position) + 1
    return starts


def _add_run(
    runs: list[list[_Run]], starts: list[int], line: int, start: int, length: int, part: Part
) -> None:
    """Cuts a part that goes over several lines at their ends."""
    end = start + length
    while start < end:
        next_line = starts[line + 1] if line + 1 < len(starts) else end + 1
        length = min(end, next_line - 1) - start  # without the line feed
        if length > 0:
            runs[line].append((start - starts[line], length, part))
        start = next_line
        line += 1
