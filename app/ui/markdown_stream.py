"""Markdown that grows: which leaves are final, and what the last, unfinished one looks like now.

A leaf is settled as soon as the next one has begun on a whole line, since no later text can change it
then. What remains, the tail, is small, so a delta costs the same at the end of a long answer as at its
start. The list items and the table that are open where the tail begins are put before it as a few lines
of context when it is parsed. An open code block is read line by line and never parsed again.

Settled leaves depend on the text alone, never on how it was cut into deltas: pushing a text whole and
character by character give the same. Two bounds keep the cost in check for any text: a leaf of more than
MAX_PARSED characters or MAX_PARSED_LINES lines is cut there (code is not), and beyond MAX_CONTEXT open
list items the innermost are forgotten.

A formula in a block that has no end yet is not decided: it may be one, or a few lines of text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from app.ui.markdown import (
    GUARD,
    MAX_PARSED,
    MAX_PARSED_LINES,
    Code,
    Container,
    Formula,
    Leaf,
    Place,
    PlacedLeaf,
    TableRow,
    parse_placed,
)

MAX_CONTEXT = 24
_TAB = 4  # columns
_CODE_INDENT = 4
_ITEM = re.compile(r" *([-+*]|\d{1,9}[.)])( *)(?=([^ ]?))")
# A line that consists of marks so far ("-", "```", "1.", "|--") may become anything: it is shown once it
# is known.
_UNDECIDED = re.compile(r"[ \t>]*(?:[-=*_#`~+|: \t]*|\d{1,9}[.)]?)[ \t]*$")
_ALIGNED = {"left": ":--", "center": ":-:", "right": "--:", "": "---"}


@dataclass(frozen=True, slots=True)
class _Context:
    """Lines that open the containers the tail stands in; the first `leaves` leaves of a parse belong to
    them.
    """

    text: str = ""
    leaves: int = 0
    numbers: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Fence:
    """An open code block: what closes it, and how many columns of each line are not code."""

    place: Place
    language: str
    mark: str  # "`" or "~"
    length: int
    indent: int  # columns taken off each line
    content_column: int  # of the list item it stands in; less than that ends the item
    after: _Context

    def closes(self, line: str) -> bool:
        body = line.strip(" \t\n")
        return (
            len(body) >= self.length
            and body == self.mark * len(body)
            and _indent(line) - self.content_column < _CODE_INDENT
        )

    def dedents(self, line: str) -> bool:
        return bool(line.strip(" \t\n")) and _indent(line) < self.content_column

    def strip(self, line: str) -> str:
        return _without_columns(line, self.indent)


class MarkdownStream:
    """Takes text in any pieces; gives settled leaves once each, in order, and the provisional rest on
    request.
    """

    def __init__(self) -> None:
        self._tail = ""
        self._looked_at = 0  # characters of the tail that were parsed and settled nothing
        self._context = _Context()
        self._fence: _Fence | None = None
        self._held_return = ""  # a "\r" that may be half a line end

    def push(self, text: str) -> tuple[Leaf, ...]:
        """The leaves that `text` settles. For a piece of n characters the cost is that of parsing n +
        MAX_PARSED.
        """
        text = self._held_return + text
        self._held_return = "\r" if text.endswith("\r") else ""
        text = text.removesuffix("\r").replace("\r\n", "\n").replace("\r", "\n")
        self._tail += text.replace("\0", "\ufffd").replace(GUARD, "\ufffd")  # a text may hold neither
        return tuple(self._advance())

    def tail(self) -> tuple[Leaf, ...]:
        """What stands after the settled leaves as far as it is known; every call replaces the one
        before.
        """
        if self._fence is not None:
            line = self._tail
            mark = line.strip(" \t")
            if not mark or mark == self._fence.mark * len(mark):
                return ()
            return (self._code(self._fence.strip(line), last=False),)
        start = self._tail.rfind("\n") + 1
        shown = self._tail[:start] if _UNDECIDED.match(self._tail, start) else self._tail
        return tuple(placed.leaf for placed in self._parse(shown, growing=True))

    def finish(self) -> tuple[Leaf, ...]:
        """The leaves that the end of the text settles."""
        settled = list(self.push("\n")) if self._held_return else []
        if self._fence is None:
            settled += [placed.leaf for placed in self._parse(self._tail)]
        else:
            ends = not self._tail.strip(" \t") or self._fence.closes(self._tail)
            settled.append(self._code("" if ends else self._fence.strip(self._tail) + "\n", last=True))
        self._tail, self._fence, self._context, self._looked_at = "", None, _Context(), 0
        return tuple(settled)

    def _advance(self) -> Iterator[Leaf]:
        while True:
            if self._fence is not None:
                yield from self._read_code()
                if self._fence is not None:
                    return
            window = _window(self._tail)
            forced = window is not None
            complete = (self._tail if window is None else window).rfind("\n") + 1
            if complete <= self._looked_at and not forced:
                return
            before = len(self._tail)
            if complete:
                yield from self._settle(complete, forced=forced)
            else:
                assert window is not None
                yield from self._cut_line(window)
            if len(self._tail) == before:
                self._looked_at = complete
                return
            self._looked_at = 0

    def _settle(self, complete: int, *, forced: bool) -> Iterator[Leaf]:
        """Settles what whole lines, the first `complete` characters of the tail, allow."""
        text = self._tail[:complete]
        lines = (self._context.text + text).split("\n")[:-1]
        placed = self._parse(text, growing=True)
        if forced and len(placed) == 1 and _is_open_formula(placed[0]):
            placed = self._parse(text)
        if placed and _is_open_fence(placed[-1], lines, forced=forced):
            yield from (item.leaf for item in placed[:-1])
            yield from self._open_fence(placed[-1], lines)
            self._tail = self._tail[complete:]
            return
        # Should it turn out to be none, its lines may belong to the leaf before it.
        num_decided = len(placed) - (bool(placed) and _is_open_formula(placed[-1]))
        for index in range(num_decided - 1, 0, -1):
            if _can_begin_a_tail(placed[index], lines):
                yield from (item.leaf for item in placed[:index])
                first = placed[index].line - self._context.text.count("\n")
                offset = sum(len(line) + 1 for line in text.split("\n")[:first])
                self._context = _context_of(lines, placed[index], inside=False)
                self._tail = self._tail[offset:]
                return
        if forced:
            yield from (item.leaf for item in placed)
            if placed:
                self._context = _context_of(lines, placed[-1], inside=True)
            elif self._context.text and not self._context.text.endswith("\n\n"):
                self._context = _Context()  # an open table, which a blank line has ended
            self._tail = self._tail[complete:]

    def _cut_line(self, window: str) -> Iterator[Leaf]:
        """A single line longer than a parse may be: cut at a space, if there is one in its second half."""
        cut = window.rfind(" ", MAX_PARSED // 2) + 1 or MAX_PARSED
        yield from (placed.leaf for placed in self._parse(self._tail[:cut]))
        self._context = _Context()
        self._tail = self._tail[cut:]

    def _parse(self, text: str, *, growing: bool = False) -> list[PlacedLeaf]:
        placed = parse_placed(self._context.text + text, self._context.numbers, growing=growing)
        return placed[self._context.leaves :]

    def _open_fence(self, placed: PlacedLeaf, lines: Sequence[str]) -> Iterator[Leaf]:
        code = placed.leaf
        assert isinstance(code, Code)
        columns = _columns(lines, placed.chain)
        opener = placed.source_line
        line = lines[opener].expandtabs(_TAB)
        content = columns[-1].content if columns else 0
        same_line = bool(placed.chain) and placed.chain[-1].line == opener
        start = content if same_line else 0
        indent = start + len(line[start:]) - len(line[start:].lstrip(" "))
        after = _context_of(lines, placed, inside=True)
        self._fence = _Fence(
            code.place, code.language, placed.fence[0], len(placed.fence), indent, content, after
        )
        yield replace(code, last=False)

    def _read_code(self) -> Iterator[Leaf]:
        """Takes whole lines of code off the tail, and leaves the code block where it ends."""
        fence = self._fence
        assert fence is not None
        code: list[str] = []
        position = 0
        closed = False
        while not closed:
            end = self._tail.find("\n", position) + 1
            line = self._tail[position : end or len(self._tail)]
            if fence.dedents(line):
                closed = True
            elif not end:
                break
            elif fence.closes(line):
                closed = True
                position = end
            else:
                code.append(fence.strip(line))
                position = end
        self._tail = self._tail[position:]
        if code or closed:
            yield self._code("".join(code), last=closed)
        if closed:
            self._fence, self._context, self._looked_at = None, fence.after, 0

    def _code(self, text: str, *, last: bool) -> Code:
        assert self._fence is not None
        place = replace(self._fence.place, marker="")
        return Code(place, self._fence.language, text, first=False, last=last)


def _window(tail: str) -> str | None:
    """The beginning of a tail that is as long as a parse may be; None while it is shorter."""
    end = 0
    for _ in range(MAX_PARSED_LINES):
        found = tail.find("\n", end, MAX_PARSED)
        if found < 0:
            return tail[:MAX_PARSED] if len(tail) >= MAX_PARSED else None
        end = found + 1
    return tail[:end]


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where a list item's marker and content stand, in columns."""

    marker: int
    content: int
    typed: str


def _columns(lines: Sequence[str], chain: Sequence[Container]) -> list[_Columns]:
    """One entry a list item, outermost first; quotes have none."""
    found: list[_Columns] = []
    parent: Container | None = None
    for item in chain:
        start = found[-1].content if parent is not None and parent.line == item.line else 0
        found.append(_item_columns(lines[item.line], start))
        parent = item
    return found


def _item_columns(line: str, start: int) -> _Columns:
    match = _ITEM.match(line.expandtabs(_TAB), start)
    assert match is not None, f"no list item at column {start} of {line!r}"
    gap = len(match[2])
    return _Columns(match.start(1), match.end(1) + (gap if match[3] and 1 <= gap <= 4 else 1), match[1])


def _context_of(lines: Sequence[str], placed: PlacedLeaf, *, inside: bool) -> _Context:
    """What is open where `placed` begins or, with `inside`, after its first line."""
    text = ""
    leaves = 0
    numbers: dict[int, int] = {}

    def add(columns: _Columns, item: Container) -> None:
        nonlocal text, leaves
        if item.number is not None:
            numbers[text.count("\n")] = item.number
        text += " " * columns.marker + columns.typed.ljust(columns.content - columns.marker) + "x\n\n"
        leaves += 1

    parent: tuple[Container, _Columns] | None = None
    for item in placed.chain[:MAX_CONTEXT]:
        if item.kind == "q":
            return _Context(text, leaves, numbers)  # a quote's own marks stand on each of its lines
        if item.line >= placed.line and not inside:
            if item.previous is not None:
                # At the marker's own column, so that the item can only be its sibling.
                column = _item_columns(lines[item.line], _start_column(item, parent)).marker
                typed = item.bullet if item.number is None else f"1{item.bullet}"
                add(_Columns(column, column + len(typed) + 1, typed), item.previous)
            return _Context(text, leaves, numbers)
        columns = _item_columns(lines[item.line], _start_column(item, parent))
        add(columns, item)
        parent = (item, columns)
    row = placed.leaf
    if isinstance(row, TableRow) and (placed.end == len(lines) if inside else not row.header):
        margin = " " * (parent[1].content if parent else 0)
        text += margin + "|x" * len(row.aligns) + "|\n"
        text += margin + "|" + "".join(_ALIGNED[align] + "|" for align in row.aligns) + "\n"
        leaves += 1
    return _Context(text, leaves, numbers)


def _start_column(item: Container, parent: tuple[Container, _Columns] | None) -> int:
    return parent[1].content if parent is not None and parent[0].line == item.line else 0


def _can_begin_a_tail(placed: PlacedLeaf, lines: Sequence[str]) -> bool:
    """A quote's lines carry their own marks; but list items that it holds can't be given as context, and a
    mark that is pushed in as far as code is one only where the quote has begun before.
    """
    quoted = False
    around = [*takewhile(lambda container: container.kind == "l", placed.chain)]
    if len(around) < len(placed.chain):
        margin = _columns(lines, around)[-1].content if around else 0
        if _indent(lines[placed.line]) - margin >= _CODE_INDENT:
            return False
    for container in placed.chain:
        if container.kind == "q":
            quoted = True
        elif quoted and (container.line < placed.line or container.previous is not None):
            return False
    return not (quoted and isinstance(placed.leaf, TableRow) and not placed.leaf.header)


def _is_open_fence(placed: PlacedLeaf, lines: Sequence[str], *, forced: bool) -> bool:
    """Whether later lines can still be code: it is fenced, no closing line came, and it reaches the end.

    Until a line of code has come the opener may turn out to be the head of a table: "```| a |", then
    "|--|--|".
    """
    code = placed.leaf
    if not isinstance(code, Code) or not placed.fence or placed.end != len(lines):
        return False
    if not code.text and not forced:
        return False
    if any(container.kind == "q" for container in placed.chain):
        return False
    # A closing line is one line more than the opener and the code.
    return placed.end - placed.source_line == 1 + code.text.count("\n")


def _is_open_formula(placed: PlacedLeaf) -> bool:
    return isinstance(placed.leaf, Formula) and not placed.leaf.closed


def _indent(line: str) -> int:
    expanded = line.expandtabs(_TAB)
    return len(expanded) - len(expanded.lstrip(" "))


def _without_columns(line: str, columns: int) -> str:
    """The line less its first columns of white space; a tab that is cut in two leaves spaces."""
    column = 0
    for index, char in enumerate(line):
        if column >= columns or char not in " \t":
            return " " * (column - columns) + line[index:] if column > columns else line[index:]
        column += _TAB - column % _TAB if char == "\t" else 1
    return ""
