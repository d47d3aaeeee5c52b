"""Which parts of a piece of code get which colour. Pygments reads the code; colours are chosen for each
theme.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from functools import lru_cache

from pygments.token import Token

from app.language import tr
from app.ui.lexers import lexer_name, lexer_store
from app.ui.theme import Theme

MAX_COLOURED = 50_000  # characters; beyond it the code stays plain, as reading it would take too long

_PLAIN = ("text", "txt", "plain", "plaintext")


class Part(Enum):
    """What a run of code is, as far as colours tell it apart."""

    KEYWORD = auto()
    STRING = auto()
    NUMBER = auto()
    COMMENT = auto()
    NAME = auto()  # of a function or class where it is defined, a tag, a heading
    BUILTIN = auto()
    ADDED = auto()
    REMOVED = auto()


# Each has a contrast of at least 4.5 on code_background, which tests check.
_LIGHT = {
    Part.KEYWORD: "#8a2a7b",
    Part.STRING: "#2f6b2f",
    Part.NUMBER: "#9a4a00",
    Part.COMMENT: "#666b72",
    Part.NAME: "#1f5a9e",
    Part.BUILTIN: "#00686e",
    Part.ADDED: "#2a6b3c",
    Part.REMOVED: "#ae2a20",
}
_DARK = {
    Part.KEYWORD: "#d7a0e0",
    Part.STRING: "#a5c98a",
    Part.NUMBER: "#e8b07a",
    Part.COMMENT: "#8b929b",
    Part.NAME: "#8ec1f2",
    Part.BUILTIN: "#7fcdcb",
    Part.ADDED: "#7fc793",
    Part.REMOVED: "#f38d82",
}
_PARTS = (  # the first that contains a token's type wins
    (Token.Keyword.Constant, Part.NUMBER),
    (Token.Keyword.Type, Part.BUILTIN),
    (Token.Keyword, Part.KEYWORD),
    (Token.Operator.Word, Part.KEYWORD),
    (Token.Literal.String, Part.STRING),
    (Token.Literal.Number, Part.NUMBER),
    (Token.Comment, Part.COMMENT),
    (Token.Name.Function, Part.NAME),
    (Token.Name.Class, Part.NAME),
    (Token.Name.Tag, Part.NAME),
    (Token.Name.Decorator, Part.BUILTIN),
    (Token.Name.Builtin, Part.BUILTIN),
    (Token.Name.Exception, Part.BUILTIN),
    (Token.Name.Attribute, Part.BUILTIN),
    (Token.Generic.Heading, Part.NAME),
    (Token.Generic.Subheading, Part.NAME),
    (Token.Generic.Inserted, Part.ADDED),
    (Token.Generic.Deleted, Part.REMOVED),
)


def part_colors(theme: Theme) -> dict[Part, str]:
    """Colours as "#rrggbb"."""
    return _DARK if theme.name == "dark" else _LIGHT


def language_title(language: str) -> str:
    """What stands above a code block: "py" -> "Python", "py title=a.py" -> "Python title=a.py"; what is not
    known stays as it was written.
    """
    name, _, rest = language.partition(" ")
    known = lexer_name(language)
    if known is not None:
        name = known
    elif name.lower() in _PLAIN:
        name = tr("Text")
    return f"{name} {rest}".strip()


def parts(code: str, language: str) -> Iterator[tuple[int, int, Part]]:
    """(start, length, part) for what gets a colour, in order. Reads on as it is asked, so it can be read
    in slices.

    An unknown language gives nothing, nor does one whose lexer isn't loaded.
    """
    lexer = lexer_store().lexer(language)
    if lexer is None:
        return
    begin, end = 0, 0
    open_part: Part | None = None
    for start, kind, text in lexer.get_tokens_unprocessed(code):
        part = _part(kind)
        if part is open_part and start == end:
            end += len(text)  # a string comes as its quotes and its words
            continue
        if open_part is not None:
            yield begin, end - begin, open_part
        begin, end, open_part = start, start + len(text), part
    if open_part is not None:
        yield begin, end - begin, open_part


@lru_cache(maxsize=512)
def _part(kind: object) -> Part | None:
    return next((part for token, part in _PARTS if kind in token), None)
