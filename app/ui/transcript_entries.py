"""The messages of a conversation as places in a column: where each stands, how high it is, and whether it has
a view. Only those near to what is seen have one; the others have the height that they had or are thought to
have.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.conversations import Message
from app.ui.message_view import MessageView
from app.ui.text_size import scaled
from app.ui.user_bubble import FOLDED_CHARACTERS, FOLDED_LINES

NUM_BUILT = 64  # messages around what is seen that have a view,
NUM_KEPT = 96  # that keep the one they have, and
NUM_LAST = 4  # at the end that always have one: keys that mean "the last answer" find it there
# Guesses, in pixels and characters; what is guessed wrong is mended out of sight.
_LINE_HEIGHT = 25
_CHARACTER_WIDTH = 8
_AROUND = 60  # above and below the words: buttons, figures
_AFTER_QUESTION = 2  # beneath its row of buttons; pixels between a question and its answer
_AFTER_ANSWER = 32


@dataclass(slots=True, eq=False)
class Entry:
    """One message. `width` is that of the column for which `height` holds; 0: it has to be found anew."""

    message: Message
    index: int
    view: MessageView | None = None
    top: int = 0
    height: int = 0
    width: int = 0

    @property
    def bottom(self) -> int:
        return self.top + self.height

    @property
    def gap(self) -> int:
        """Pixels between it and the one below."""
        return _AFTER_ANSWER if self.message.role == "assistant" else _AFTER_QUESTION


def estimated_height(message: Message, column: int) -> int:
    """How high a message is likely to be in a column of so many pixels."""
    characters, lines = len(message.text), message.text.count("\n")
    if message.role != "assistant":
        characters, lines = min(characters, FOLDED_CHARACTERS), min(lines, FOLDED_LINES)
    per_line = max(1, column // scaled(_CHARACTER_WIDTH))
    return _AROUND + scaled(_LINE_HEIGHT) * (1 + lines + characters // per_line)


def seen_range(entries: Sequence[Entry], top: int, bottom: int) -> range:
    """Indices of what is between two heights, at least partly."""
    first = max(0, bisect_right(entries, top, key=lambda entry: entry.top) - 1)
    last = bisect_right(entries, bottom, key=lambda entry: entry.top)
    return range(first, max(last, first))


def nearest(num_entries: int, seen: range, count: int, *, upwards: bool) -> Iterator[int]:
    """Indices in the order in which they are wanted: what is seen, then what is near to it, up to `count` or
    all that is seen. `upwards`: the reader is at the end and looks at the newest first.
    """
    yield from reversed(seen) if upwards else seen
    left = count - len(seen)
    above, below = seen.start - 1, seen.stop
    while left > 0 and (above >= 0 or below < num_entries):
        if above >= 0:
            yield above
            above -= 1
            left -= 1
        if below < num_entries:
            yield below
            below += 1
            left -= 1
