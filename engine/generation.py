"""The records that one answer is made of: what is asked, what happens, what came out.

The command line, the tests and the window consume the same stream: `Prefilled`, many `TextDelta`s,
`Finished`; and `DeviceChanged` where that happens. Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from engine.notices import Notice


class FinishReason(StrEnum):
    END = "end"  # the model produced an end token
    STOP = "stop"  # a stop string was met (it is not part of the text)
    LENGTH = "length"  # max_new_tokens reached
    CONTEXT = "context"  # the context is full
    CANCELLED = "cancelled"  # the person stopped it


class ReuseReason(StrEnum):
    """Why so little of a prompt was cached already."""

    NEW = "new"  # nothing that is kept begins as this prompt does
    HISTORY_REWRITTEN = "history-rewritten"  # the prompt differs from what was cached, see `diverged_at`
    OTHER_MODEL = "other-model"  # what was cached is of a model that isn't loaded now
    EVICTED = "evicted"  # it had to make room, or what was kept on disk can't be read
    NOT_KEPT = "not-kept"  # it was answered before, but nothing is known any more of what was cached then
    CONTEXT_POLICY = "context-policy"  # the oldest turns were left out, so what follows them moved


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is drawn. Neutral values switch a step off. Temperature 0 is greedy."""

    temperature: float = 0.0  # >= 0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # (0, 1]
    min_p: float = 0.0  # [0, 1)
    repetition_penalty: float = 1.0  # [0.01, 100]
    seed: int | None = None  # None: a fresh one each answer, reported in the result


@dataclass(frozen=True)
class GenerationRequest:
    """One answer to compute. `conversation` names the state whose cache may be reused; "" keeps none."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_new_tokens: int | None = None  # None: until the context is full
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    conversation: str = ""


@dataclass(frozen=True)
class PrefillStats:
    """`tokens` of the prompt in all, `reused` of them from the cache; `seconds` for the rest.

    `reason` says why it isn't more; None where only what is new was read. `diverged_at` is the token at which
    the prompt and what was cached part, where that is the reason.
    """

    tokens: int
    reused: int
    seconds: float
    reason: ReuseReason | None = None
    diverged_at: int | None = None

    @property
    def tokens_per_second(self) -> float:
        return (self.tokens - self.reused) / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class DecodeStats:
    """`tokens` made by decode steps. The first token of an answer comes from the prefill and is not counted,
    nor is one for which all was read again because a device had failed.
    """

    tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Prefilled:
    """The prompt has been read; the first token follows."""

    stats: PrefillStats


@dataclass(frozen=True)
class TextDelta:
    """Text that is final: never half a character, never part of a stop string. May be "" for a token
    held back.
    """

    text: str
    token_id: int


@dataclass(frozen=True)
class Finished:
    """The whole answer. `token_ids` are all generated ids, the end token included when one ended it.
    `device`: where the last of it was computed, which may be another one than the model's; "" where nothing
    was.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prefill: PrefillStats
    decode: DecodeStats
    seed: int | None = None
    notices: tuple[Notice, ...] = ()
    device: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": str(self.finish_reason),
            "prefill": {
                "tokens": self.prefill.tokens,
                "reused": self.prefill.reused,
                "seconds": self.prefill.seconds,
            },
            "decode": {"tokens": self.decode.tokens, "seconds": self.decode.seconds},
            "seed": self.seed,
        }


@dataclass(frozen=True)
class SlotInfo:
    """What is kept of one conversation, and where."""

    conversation: str
    tokens: int
    pages: int
    place: Literal["pool", "ram", "disk", "fallback"]  # pool: where the model computes; fallback: on the CPU
    reused: int | None  # tokens of the last prompt that were cached already, of `total`; None: none was read
    total: int | None


@dataclass(frozen=True)
class DeviceChanged:
    """The card failed: what follows is computed elsewhere, `Engine.summary` says where, and the answer goes
    on as if nothing had been. May come before or after `Prefilled`.
    """

    notice: Notice


GenerationEvent = Prefilled | TextDelta | DeviceChanged | Finished
