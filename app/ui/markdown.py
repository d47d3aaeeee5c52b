"""Markdown as plain records: what a text says, with no word yet on how it looks.

CommonMark with tables, strikethrough and task lists. A document becomes a flat list of leaves (a
paragraph, a heading, a code block, one row of a table, a rule), each with the place it stands at.
Nothing here makes or reads HTML, so text that looks like a tag stays text; Qt's own reader, which hides
such text, is never used.

Two things differ from a web page on purpose. A single line break is shown, because models write verse
and addresses so. Link reference definitions stay the text they are: resolving them would change blocks
that a reader has already seen. Formulas are leaves or spans of their own (see markdown_math); what they
look like is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from markdown_it import MarkdownIt
from markdown_it.token import Token

from app.ui.markdown_math import read_formulas
from app.ui.markdown_tables import show_all_cells

BULLET = "•"
TASK_OPEN = "☐"
TASK_DONE = "☑"

# markdown-it drops, in silence, what is nested deeper than it follows, and it recurses. So the limit is
# one that MAX_PARSED can't reach: a line opens at most eight containers (see _within_depth), and the
# lines above it must have had the room to open the rest.
MAX_PARSED = 4096  # characters, and
MAX_PARSED_LINES = 400  # lines, that a caller with endless text parses at a time
_BLOCK_NESTING = 1000
_INLINE_NESTING = 10  # keeps runs of brackets from costing quadratic time; deeper ones stay as written
GUARD = "\ufdd0"  # a noncharacter: ends a run of markers without being seen
_MARKER = r"[ \t]*(?:>|[+*-](?=[ \t])|\d{1,9}[.)](?=[ \t]))"
_TOO_DEEP = re.compile(rf"^(?!(?:[ \t]*[-*])+[ \t]*$)((?:{_MARKER}){{8}})(?={_MARKER})", re.MULTILINE)

_CLICKABLE = ("http://", "https://")
_MAIL = re.compile(r"^mailto:", re.IGNORECASE)
_BARE_URL = re.compile(r"https?://[^\s<>\"'`|\\^{}]+")
_TASK = re.compile(r"\[([ xX])\](?=\s)\s?")


@dataclass(frozen=True, slots=True)
class Span:
    """A run of text in one style. `href` is empty unless the address may be opened (http, https).

    A formula has its LaTeX in `tex`, and in `text` what was written, marks included; `display` is one that
    was meant for a line of its own.
    """

    text: str
    bold: bool = False
    italic: bool = False
    strike: bool = False
    code: bool = False
    href: str = ""
    tex: str = ""
    display: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where a leaf stands. `path` names its containers from the outside in: "l" a list item, "q" a
    quote.

    `marker` is the bullet or number of the innermost item, on the item's first leaf only.
    """

    path: str = ""
    marker: str = ""


@dataclass(frozen=True, slots=True)
class Paragraph:
    place: Place
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Heading:
    place: Place
    level: int  # 1 to 6
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    place: Place


@dataclass(frozen=True, slots=True)
class Code:
    """A code block or, while it grows, a piece of one: `first` opens it, `last` closes it."""

    place: Place
    language: str  # all that stands behind the opening marks; its first word is the language's name
    text: str  # whole lines, each with its line feed, except perhaps the very last
    first: bool = True
    last: bool = True


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula on lines of its own. `text` is what was written, marks included; one that is not `closed` is
    still being written.
    """

    place: Place
    tex: str
    text: str
    closed: bool = True

    @property
    def spans(self) -> tuple[Span, ...]:
        return (Span(self.text, tex=self.tex if self.closed else "", display=True),)


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row; `header` begins a table. `aligns` holds "left", "center", "right" or "" for each cell."""

    place: Place
    header: bool
    aligns: tuple[str, ...]
    cells: tuple[tuple[Span, ...], ...]


Leaf = Paragraph | Heading | Rule | Code | Formula | TableRow


@dataclass(slots=True)
class Container:
    """A list item or quote that is open at some leaf. `line` is where it starts in the parsed text."""

    kind: str  # "l" or "q"
    line: int
    bullet: str = ""  # "-", "+", "*", ".", ")"
    number: int | None = None  # None: not an ordered list
    previous: Container | None = None  # the item before it in the same list
    has_leaf: bool = False

    @property
    def marker(self) -> str:
        return BULLET if self.number is None else f"{self.number}{self.bullet}"


@dataclass(frozen=True, slots=True)
class PlacedLeaf:
    """A leaf and the lines it came from. `line` is before `source_line` where a bare marker stands above
    the leaf.
    """

    leaf: Leaf
    line: int  # the first line, with that of an item's marker when this is its first leaf
    source_line: int  # its own first line
    end: int  # the line after its last
    chain: tuple[Container, ...]  # outermost first
    fence: str = ""  # the opening run of ` or ~ of a fenced block


@dataclass
class _Walk:
    """What the walk over the tokens has open."""

    chain: list[Container] = field(default_factory=list)
    lists: list[tuple[str, int | None, Container | None]] = field(default_factory=list)
    leaves: list[PlacedLeaf] = field(default_factory=list)
    numbers: Mapping[int, int] = field(default_factory=dict)


def _parser(nesting: int, *, growing: bool = False) -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": nesting})
    parser.enable(["table", "strikethrough"])
    show_all_cells(parser)
    read_formulas(parser, growing=growing)
    parser.disable(["reference", "html_block", "html_inline"])
    # A link is never hidden for its address: what can't be opened is shown beside the text.
    parser.validateLink = lambda _: True  # type: ignore[method-assign]
    return parser


_BLOCKS = _parser(_BLOCK_NESTING)
_BLOCKS.disable("inline")
_GROWING_BLOCKS = _parser(_BLOCK_NESTING, growing=True)
_GROWING_BLOCKS.disable("inline")
_INLINE = _parser(_INLINE_NESTING)


def parse(text: str) -> list[Leaf]:
    """The leaves of a text of at most about MAX_PARSED characters; markdown_stream takes texts of any
    length.
    """
    return [placed.leaf for placed in parse_placed(text)]


def parse_placed(
    text: str, numbers: Mapping[int, int] | None = None, *, growing: bool = False
) -> list[PlacedLeaf]:
    """As `parse`, with the lines and containers each leaf came from.

    `numbers` gives the number of the list item that starts at a line, where the text before it is not at
    hand. With `growing` more may follow: a formula that has no end yet is a leaf that is not closed.
    """
    tokens = (_GROWING_BLOCKS if growing else _BLOCKS).parse(_TOO_DEEP.sub(rf"\1{GUARD}", text))
    walk = _Walk(numbers=numbers or {})
    for index, token in enumerate(tokens):
        _visit(walk, tokens, index, token)
    return walk.leaves


def _visit(walk: _Walk, tokens: list[Token], index: int, token: Token) -> None:
    kind = token.type
    if kind in ("bullet_list_open", "ordered_list_open"):
        start = token.attrGet("start")
        ordered = kind == "ordered_list_open"
        walk.lists.append((token.markup, (1 if start is None else int(start)) - 1 if ordered else None, None))
    elif kind in ("bullet_list_close", "ordered_list_close"):
        walk.lists.pop()
    elif kind == "list_item_open":
        bullet, number, previous = walk.lists[-1]
        number = None if number is None else walk.numbers.get(_line(token), number + 1)
        item = Container("l", _line(token), token.markup, number, previous)
        walk.lists[-1] = (bullet, number, item)
        walk.chain.append(item)
    elif kind == "list_item_close":
        if not walk.chain[-1].has_leaf:
            _add(walk, Paragraph(_place(walk), ()), walk.chain[-1].line, walk.chain[-1].line + 1)
        walk.chain.pop()
    elif kind == "blockquote_open":
        walk.chain.append(Container("q", _line(token)))
    elif kind == "blockquote_close":
        walk.chain.pop()
    elif kind == "paragraph_open":
        spans, place = _task(_spans(tokens[index + 1]), _place(walk))
        _add(walk, Paragraph(place, spans), *_lines(token))
    elif kind == "heading_open":
        spans = _spans(tokens[index + 1])
        _add(walk, Heading(_place(walk), int(token.tag[1]), spans), *_lines(token))
    elif kind == "hr":
        _add(walk, Rule(_place(walk)), *_lines(token))
    elif kind in ("fence", "code_block"):
        language = " ".join(token.info.replace(GUARD, "").split())
        content = token.content.replace(GUARD, "")
        if content and not content.endswith("\n"):
            content += "\n"
        code = Code(_place(walk), language, content)
        _add(walk, code, *_lines(token), fence=token.markup)
    elif kind == "math_block":
        tex, written = token.content.replace(GUARD, ""), token.info.replace(GUARD, "").rstrip("\n")
        _add(walk, Formula(_place(walk), tex, written, token.meta["closed"]), *_lines(token))
    elif kind == "tr_open":
        _add_row(walk, tokens, index)


def _add_row(walk: _Walk, tokens: list[Token], index: int) -> None:
    cells: list[tuple[Span, ...]] = []
    aligns: list[str] = []
    header = False
    for token in tokens[index + 1 :]:
        if token.type == "tr_close":
            break
        if token.type in ("th_open", "td_open"):
            header = token.type == "th_open"
            aligns.append(str(token.attrGet("style") or "").removeprefix("text-align:"))
        elif token.type == "inline":
            cells.append(_spans(token))
    line, end = _lines(tokens[index])
    if header:
        end += 1  # the line of dashes belongs to it
    _add(walk, TableRow(_place(walk), header, tuple(aligns), tuple(cells)), line, end)


def _add(walk: _Walk, leaf: Leaf, line: int, end: int, *, fence: str = "") -> None:
    first = line
    for container in walk.chain:
        if not container.has_leaf:
            container.has_leaf = True
            first = min(first, container.line)
    walk.leaves.append(PlacedLeaf(leaf, first, line, end, tuple(walk.chain), fence))


def _place(walk: _Walk) -> Place:
    path = "".join(container.kind for container in walk.chain)
    inner = walk.chain[-1] if walk.chain else None
    marker = inner.marker if inner is not None and inner.kind == "l" and not inner.has_leaf else ""
    return Place(path, marker)


def _task(spans: tuple[Span, ...], place: Place) -> tuple[tuple[Span, ...], Place]:
    """A first paragraph that begins with "[ ]" or "[x]" gets a box as its marker."""
    match = _TASK.match(spans[0].text) if place.marker == BULLET and spans and not spans[0].code else None
    if match is None:
        return spans, place
    rest = replace(spans[0], text=spans[0].text[match.end() :])
    marker = TASK_OPEN if match[1] == " " else TASK_DONE
    return ((rest, *spans[1:]) if rest.text else spans[1:]), replace(place, marker=marker)


def _lines(token: Token) -> tuple[int, int]:
    assert token.map is not None, "markdown-it gives every block its lines"
    return token.map[0], token.map[1]


def _line(token: Token) -> int:
    return _lines(token)[0]


# bold, italic, strike, code, href, and tex and display where it is a formula: the fields of a Span after its
# text. Tuples, since a paragraph that grows is read again with every delta.
_Style = tuple[bool, bool, bool, bool, str] | tuple[bool, bool, bool, bool, str, str, bool]
_PLAIN_FIELDS = 5


def _spans(inline: Token) -> tuple[Span, ...]:
    """Runs of one style; neighbours of the same style are one run."""
    runs: list[tuple[list[str], _Style]] = []
    children = _INLINE.parseInline(inline.content.replace(GUARD, ""))[0].children
    for text, style in _raw_runs(children or ()):
        if not text:
            continue
        if runs and runs[-1][1] == style and len(style) == _PLAIN_FIELDS:
            runs[-1][0].append(text)
        else:
            runs.append(([text], style))
    return tuple(Span("".join(texts), *style) for texts, style in runs)


def _raw_runs(children: Sequence[Token]) -> Iterator[tuple[str, _Style]]:
    depth = {"strong": 0, "em": 0, "s": 0}
    address = ""
    label: list[str] = []
    for token in children:
        kind = token.type
        bold, italic, strike = depth["strong"] > 0, depth["em"] > 0, depth["s"] > 0
        href = address if _clickable(address) else ""
        if kind in ("text", "code_inline", "softbreak", "hardbreak"):
            text = token.content if kind in ("text", "code_inline") else "\n"
            if address:
                label.append(text)
            if kind == "text" and not address and "://" in text:
                yield from _with_bare_urls(text, bold=bold, italic=italic, strike=strike)
            else:
                yield text, (bold, italic, strike, kind == "code_inline", href)
        elif kind == "math_inline":
            written = token.meta["written"]
            if address:
                label.append(written)
            display = token.markup in ("$$", "\\[")
            yield written, (bold, italic, strike, False, href, token.content, display)
        elif kind == "image":
            source = str(token.attrGet("src") or "")
            description, target = _image(token.content, source, href=href)
            yield description, (bold, italic, strike, False, target)
            if description != source and not target:
                yield f" ({source})", (bold, italic, strike, False, "")
        elif kind == "link_open":
            address = str(token.attrGet("href") or "")
            label.clear()
        elif kind == "link_close":
            told = _MAIL.sub("", address)
            if told and not _clickable(address) and "".join(label) != told:
                yield f" ({told})", (bold, italic, strike, False, "")
            address = ""
        elif token.nesting:
            depth[kind.rpartition("_")[0]] += token.nesting


def _image(description: str, source: str, *, href: str) -> tuple[str, str]:
    """An image is never fetched: its description stands in its place, and leads to its address if that
    is a link.
    """
    return description or source, href or (source if _clickable(source) else "")


def _clickable(address: str) -> bool:
    return address.lower().startswith(_CLICKABLE)


def _with_bare_urls(text: str, *, bold: bool, italic: bool, strike: bool) -> Iterator[tuple[str, _Style]]:
    """Cuts a text where a web address stands in it; the address becomes a link."""
    done = 0
    for match in _BARE_URL.finditer(text):
        url = _without_trailing_punctuation(match[0])
        if url.endswith("//"):
            continue
        yield text[done : match.start()], (bold, italic, strike, False, "")
        yield url, (bold, italic, strike, False, url)
        done = match.start() + len(url)
    yield text[done:], (bold, italic, strike, False, "")


def _without_trailing_punctuation(url: str) -> str:
    """Leaves out what belongs to the sentence: "(see https://a.b/c)." ends in "c"."""
    while url:
        if (
            url[-1] in ".,;:!?*_~…。，、；：！？」』”’"
            or (url[-1] == ")" and url.count(")") > url.count("("))
            or (url[-1] == "]" and url.count("]") > url.count("["))
        ):
            url = url[:-1]
        else:
            break
    return url
