"""Numbers as sentences give them: the command line's, the window's and those of every notice."""

from __future__ import annotations


def format_tokens(count: int) -> str:
    """131_072 -> "131,072 tokens"."""
    return f"{count:,} token" if count == 1 else f"{count:,} tokens"


def phrase(text: str) -> str:
    """Marks a part of sentences, which is translated with them: the "prompt" of "The {0} is empty."

    In the engine that is needed for single words alone: what has two of them is found without.
    """
    return text


def format_size(num_bytes: int) -> str:
    """2_500_000_000 -> "2.5 GB"; 20_000_000 -> "20.0 MB"."""
    for unit, size in (("GB", 10**9), ("MB", 10**6)):
        if num_bytes >= size:
            return f"{num_bytes / size:,.1f} {unit}"
    return f"{num_bytes / 10**3:.1f} kB"
