"""What is measured, as a person asks for it, and whether it makes sense with a model. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import SettingError
from engine.wording import format_tokens

DEFAULT_DEPTHS = (16, 8192)
DEFAULT_PROMPT = 2048
MOST_REPEATS = 1000
MOST_CONVERSATIONS = 1024


@dataclass(frozen=True)
class Plan:
    """depths: tokens that are cached already when others are written. prompt: tokens that are read at once.
    prompt_depths: that are cached already then. tokens: that are written. conversations: that take turns,
    token by token; 0: none do. reused, turn: tokens that are cached, and new ones behind them; 0: not
    measured. phases: of a token, each by itself.
    """

    depths: tuple[int, ...]
    prompt: int
    prompt_depths: tuple[int, ...]
    tokens: int
    repeats: int
    conversations: int = 0
    reused: int = 0
    turn: int = 0
    phases: bool = False

    @property
    def longest(self) -> int:
        """Tokens of the longest conversation."""
        lengths = [self.prompt, *(depth + self.tokens for depth in self.depths)]
        lengths += [depth + self.prompt for depth in self.prompt_depths]
        return max(*lengths, self.reused + self.turn)


def make_plan(
    *,
    context: int,
    depths: tuple[int, ...] | None,
    prompt: int | None,
    tokens: int,
    repeats: int,
    conversations: int = 0,
    reused: int = 0,
    turn: int = 32,
    phases: bool = False,
) -> Plan:
    """None: as usual, as far as the context reaches. Raises SettingError."""
    _check("tokens", tokens, 1)
    _check("repeats", repeats, 1, MOST_REPEATS)
    _check("interleave", conversations, 0, MOST_CONVERSATIONS)
    _check("reused", reused, 0)
    _check("turn", turn, 1)
    if prompt is not None:
        _check("prompt", prompt, 1)
    for depth in depths or ():
        _check("depths", depth, 0)
    if prompt is None:
        prompt = max(1, min(DEFAULT_PROMPT, context // 4))
    if depths is None:
        room = context - max(tokens, prompt)
        depths = tuple(depth for depth in DEFAULT_DEPTHS if depth <= room) or (0,)
    depths = tuple(dict.fromkeys(depths))
    for depth, new in ((0, prompt), (reused, turn if reused else 0), *((depth, tokens) for depth in depths)):
        _check_length(depth, new, context)
    return Plan(
        depths=depths,
        prompt=prompt,
        # At the start, and behind what is longer than it is: behind less it is as fast as at the start.
        prompt_depths=(0, *(depth for depth in depths if prompt <= depth <= context - prompt)),
        tokens=tokens,
        repeats=repeats,
        conversations=conversations,
        reused=reused,
        turn=turn if reused else 0,
        phases=phases,
    )


def parse_depths(text: str) -> tuple[int, ...]:
    """ "16,8192". Raises SettingError."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise SettingError(
            f"The depths {text[:80]!r} are no whole numbers with commas between them.",
            "For example: --depths 16,8192.",
        ) from None


def _check(name: str, value: int, least: int, most: int | None = None) -> None:
    if value < least or (most is not None and value > most):
        limits = f"at least {least}" if most is None else f"{least} to {most:,}"
        raise SettingError(f"The setting {name} is {value:,}; it must be {limits}.")


def _check_length(depth: int, new: int, context: int) -> None:
    if depth + new > context:
        raise SettingError(
            f"{format_tokens(depth)} and {new:,} behind them don't fit into the context of {context:,}.",
            f"Choose a depth of at most {max(0, context - new):,}, or fewer new tokens.",
        )
