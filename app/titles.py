"""Names of conversations."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from itertools import count

from app.language import mark, tr

UNTITLED = mark("New chat")
MAX_TITLE_LENGTH = 200  # characters; for names that a person types
_AUTOMATIC_LENGTH = 60
_MAX_READ = 1_000  # characters of a line; one may be as long as a book
_MARKS = re.compile(r"^(?:(?:#{1,6}|>|[-*+]|\d{1,3}[.)])(?:\s+|$))+|^(?:```|~~~).*$")
_BRANCH = re.compile(r" \(branch(?: \d+)?\)$|（分支(?: ?\d+)?）$")  # in every language of the window
_BREAKS = {"Cc", "Cs", "Zl", "Zp"}  # control characters, half surrogates, line and paragraph separators
_UNSEEN = {"Cf", "Mn", "Zs"}  # joiners and the like, marks with nothing to stand on, spaces
_BLANKS = set("\u115f\u1160\u2800\u3164\uffa0")  # letters by their category, and yet empty
_BIDI_CONTROLS = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # would turn the list around


def one_line(text: str) -> str:
    """`text` on one line, with single spaces; "" if nothing of it can be seen. Joiners stay: emoji and
    several scripts are made with them.
    """
    kept = (
        " " if unicodedata.category(char) in _BREAKS else char for char in text if char not in _BIDI_CONTROLS
    )
    line = " ".join("".join(kept).split())
    return line if any(_is_seen(char) for char in line) else ""


def _is_seen(char: str) -> bool:
    return char not in _BLANKS and unicodedata.category(char) not in _UNSEEN


def title_from(message: str) -> str:
    """The first line with anything on it, without the signs that make it a heading, a quotation or an item
    of a list in Markdown, cut at a word; "" when there is none.
    """
    beginnings = (_MARKS.sub("", line.strip()[:_MAX_READ]) for line in message.splitlines())
    line = next((line for line in map(one_line, beginnings) if line), "")
    if len(line) <= _AUTOMATIC_LENGTH:
        return line
    room = _AUTOMATIC_LENGTH - 1  # the ellipsis takes one
    at_word = line[: room + 1].rpartition(" ")[0]
    # A first word that is nearly all of the title (a link, Chinese without spaces) is cut in the middle.
    return (at_word if len(at_word) >= _AUTOMATIC_LENGTH // 3 else line[:room]).rstrip() + "…"


def branch_title(title: str, *, taken: Collection[str]) -> str:
    """The name of a conversation that goes its own way from another: "… (branch)", then "… (branch 2)", in
    the language of the window. It is kept, and doesn't change with the language.
    """
    stem = _BRANCH.sub("", title)
    for number in count(1):
        name = _branch(stem[: MAX_TITLE_LENGTH - len(_branch("", number))], number)
        if name not in taken:
            return name
    raise AssertionError("there is always a number left")


def _branch(stem: str, number: int) -> str:
    if number == 1:
        return tr("{title} (branch)", title=stem)
    return tr("{title} (branch {number})", title=stem, number=number)
