"""Names of conversations."""

from __future__ import annotations

import unicodedata

UNTITLED = "New chat"
MAX_TITLE_LENGTH = 200  # characters; for names that a person types
_AUTOMATIC_LENGTH = 60
_BREAKS = {"Cc", "Cs", "Zl", "Zp"}  # control characters, half surrogates, line and paragraph separators
_BIDI_CONTROLS = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # would turn the list around


def one_line(text: str) -> str:
    """`text` on one line, with single spaces. Joiners stay: emoji and several scripts are made with them."""
    kept = (
        " " if unicodedata.category(char) in _BREAKS else char for char in text if char not in _BIDI_CONTROLS
    )
    return " ".join("".join(kept).split())


def title_from(message: str) -> str:
    """The first line with anything on it, cut at a word; "" when there is none."""
    line = next((line for line in map(one_line, message.splitlines()) if line), "")
    if len(line) <= _AUTOMATIC_LENGTH:
        return line
    room = _AUTOMATIC_LENGTH - 1  # the ellipsis takes one
    at_word = line[: room + 1].rpartition(" ")[0]
    # A first word that is nearly all of the title (a link, Chinese without spaces) is cut in the middle.
    return (at_word if len(at_word) >= _AUTOMATIC_LENGTH // 3 else line[:room]).rstrip() + "…"
