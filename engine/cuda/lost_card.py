"""That the card was lost in this process. Its driver then refuses the process for good: taking the context
anew fails with the words of the first fault, and so does resetting it.
"""

from __future__ import annotations

_words: str | None = None


def remember_loss(words: str) -> None:
    """words: the driver's. Later faults only follow from the first."""
    global _words
    _words = _words or words


def earlier_loss() -> str | None:
    """The driver's words, or None where no card was lost."""
    return _words
