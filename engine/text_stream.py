"""Token ids to text, one at a time: what is given out is final.

Two things are held back. A character whose bytes have not all come yet waits for the rest; bytes that can't
become a character any more are U+FFFD at once. Text that may be the beginning of a stop string waits until
that is decided. Whatever the ids are, the pieces together are `Tokenizer.decode` of all ids, up to the first
stop string. Each token costs the work for its own bytes and for what is held back, never for the whole
answer.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from engine.errors import SettingError
from engine.tokenizers.tokenizer import Tokenizer


class TextStream:
    """The text of one answer. `stopped` becomes true when a stop string is met; it and all that follows are
    dropped.

    Of several stop strings the one that begins first in the text counts, even where another one ends before
    it.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self.stopped = False
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._spaces_to_drop = tokenizer.stripped_spaces
        self._stops = StopMatcher(stop)

    def push(self, token_id: int) -> str:
        """Text that is final now; "" while something is held back, and after a stop."""
        if self.stopped or token_id in self._tokenizer.special_ids:
            return ""
        text = self._without_first_spaces(self._utf8.decode(self._tokenizer.token_bytes(token_id)))
        passed, self.stopped = self._stops.push(text)
        return passed

    def finish(self) -> str:
        """What was held back: no more ids come. Calling it again gives ""."""
        if self.stopped:
            return ""
        text = self._without_first_spaces(self._utf8.decode(b"", final=True))
        passed, self.stopped = self._stops.finish(text)
        return passed

    def _without_first_spaces(self, text: str) -> str:
        if not text or not self._spaces_to_drop:
            return text
        dropped = min(len(text) - len(text.lstrip(" ")), self._spaces_to_drop)
        self._spaces_to_drop = 0 if dropped < len(text) else self._spaces_to_drop - dropped
        return text[dropped:]


class StopMatcher:
    """Lets text through up to the stop string that begins first. Both methods say whether it was met."""

    def __init__(self, stop: Sequence[str]) -> None:
        if "" in stop:
            raise SettingError("A stop string is empty.", "Leave it out, or give it at least one character.")
        self._stops = tuple(dict.fromkeys(stop))
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Holds back what may be the beginning of a stop string, and with it all that follows."""
        if not self._stops:
            return text, False
        held = self._held + text
        met = self._first_met(held)
        begun = self._first_begun(held)
        if 0 <= met <= begun:
            self._held = ""
            return held[:met], True
        self._held = held[begun:]
        return held[:begun], False

    def finish(self, text: str = "") -> tuple[str, bool]:
        """`text` is the last. What was only begun is not a stop string after all, but a later one may be
        whole."""
        held, self._held = self._held + text, ""
        met = self._first_met(held)
        return (held, False) if met < 0 else (held[:met], True)

    def _first_met(self, text: str) -> int:
        """Where the first whole stop string begins, or -1."""
        return min((start for stop in self._stops if (start := text.find(stop)) >= 0), default=-1)

    def _first_begun(self, text: str) -> int:
        """Where the longest end of `text` that is a beginning of a stop string begins; its length if there is
        none."""
        first = max(0, len(text) - self._longest + 1)
        for start in range(first, len(text)):
            end = text[start:]
            if any(stop.startswith(end) for stop in self._stops):
                return start
        return len(text)
