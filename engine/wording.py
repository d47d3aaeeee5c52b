"""Numbers as sentences give them: the command line's, the window's and those of every notice."""

from __future__ import annotations


def format_tokens(count: int) -> str:
    """131_072 -> "131,072 tokens"."""
    return f"{count:,} token" + ("" if count == 1 else "s")
