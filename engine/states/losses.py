"""Of which conversations everything that was cached is gone: their next answer says so if nothing has yet."""

from __future__ import annotations

from dataclasses import dataclass

from engine.notices import Notice
from engine.wording import format_tokens


@dataclass(frozen=True)
class _Loss:
    """told: a notice or an error has said why."""

    tokens: int
    told: bool


class Losses:
    """Until a conversation has a state again, or is forgotten."""

    def __init__(self) -> None:
        self._losses: dict[str, _Loss] = {}

    def __contains__(self, conversation: str) -> bool:
        return conversation in self._losses

    def add(self, conversation: str, tokens: int, *, told: bool) -> None:
        """tokens: how many were cached."""
        self._losses[conversation] = _Loss(tokens, told)

    def end(self, conversation: str) -> Notice | None:
        """There is a state again, or no conversation any more. What its next answer should say."""
        loss = self._losses.pop(conversation, None)
        if loss is None or loss.told:
            return None
        return Notice(
            "state-dropped",
            f"The {format_tokens(loss.tokens)} cached of this conversation had been dropped to make room; it "
            "was read again from its beginning.",
            "Raise the memory or the disk space for conversations to keep more of them at hand.",
        )
