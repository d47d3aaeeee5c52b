"""What an engine takes and does, in numbers, as plain records. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engine.generation import DecodeStats, PrefillStats


@dataclass(frozen=True)
class Work:
    """What was asked of a card since its model was loaded; on the CPU there is none of it.

    launches: of kernels, and of many that were recorded as one. uploads: copies from the computer's memory to
    the card's. downloads: the other way; and each wait for what a kernel wrote there.
    """

    launches: int = 0
    uploads: int = 0
    downloads: int = 0

    def since(self, earlier: Work) -> Work:
        return Work(
            self.launches - earlier.launches,
            self.uploads - earlier.uploads,
            self.downloads - earlier.downloads,
        )


@dataclass(frozen=True)
class TokenWork:
    """Of decode steps: how many, and what they asked of the card. Of none at all, 0 for each."""

    tokens: int
    work: Work

    @property
    def launches_per_token(self) -> float:
        return self._per_token(self.work.launches)

    @property
    def h2d_per_token(self) -> float:
        """Copies to the card for a decoded token: at most one, on the average of an answer."""
        return self._per_token(self.work.uploads)

    @property
    def d2h_per_token(self) -> float:
        """Copies from the card for a decoded token."""
        return self._per_token(self.work.downloads)

    def _per_token(self, count: int) -> float:
        return count / self.tokens if self.tokens else 0.0


@dataclass(frozen=True)
class CardSpace:
    """A card's memory in bytes. free: whoever has the rest; it may be a second old."""

    name: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class LayerUse:
    """Of a model on a card. at_once: layers that may be there at a time, all of them where they fit. present:
    that are, or under way. brought, evicted: how often one came, and had to go, since the load.
    """

    total: int
    at_once: int
    present: int
    brought: int
    evicted: int

    @property
    def is_window(self) -> bool:
        return self.at_once < self.total

    def as_json(self) -> dict[str, int]:
        return {
            "total": self.total,
            "at_once": self.at_once,
            "present": self.present,
            "brought": self.brought,
            "evicted": self.evicted,
        }


@dataclass(frozen=True)
class MemoryUse:
    """What a model takes where it computes, in bytes, by what for: its weights, pages of conversations (and
    what is held ready for more), what is between the layers of a step. card: None on the CPU, which doesn't
    count the last. layers: None on the CPU. host_bytes: of the computer's memory for the weights of a model
    that is on a card.
    """

    weight_bytes: int
    cache_bytes: int
    cache_pages: int
    workspace_bytes: int = 0
    card: CardSpace | None = None
    layers: LayerUse | None = None
    host_bytes: int = 0

    @property
    def other_bytes(self) -> int:
        """Of the card, what other programs have, and the driver; 0 on the CPU."""
        if self.card is None:
            return 0
        ours = self.weight_bytes + self.cache_bytes + self.workspace_bytes
        return max(0, self.card.total_bytes - self.card.free_bytes - ours)

    def as_json(self) -> dict[str, Any]:
        kinds = {
            "weights": self.weight_bytes,
            "cache": self.cache_bytes,
            "workspace": self.workspace_bytes,
        }
        if self.card is None:
            return {"card": None, "bytes": kinds}
        kinds |= {"other_programs": self.other_bytes, "free": self.card.free_bytes}
        found = {"card": self.card.name, "total_bytes": self.card.total_bytes, "bytes": kinds}
        return found if self.layers is None else {**found, "layers": self.layers.as_json()}


@dataclass(frozen=True)
class AnswerMetrics:
    """Of one answer. work: of its decode steps alone."""

    prefill: PrefillStats
    decode: DecodeStats
    work: Work = field(default_factory=Work)

    @property
    def token_work(self) -> TokenWork:
        return TokenWork(self.decode.tokens, self.work)

    def as_json(self) -> dict[str, Any]:
        work = self.token_work
        return {
            "prefill_tokens_per_second": self.prefill.tokens_per_second,
            "decode_tokens_per_second": self.decode.tokens_per_second,
            "reused_tokens": self.prefill.reused,
            "launches_per_token": work.launches_per_token,
            "h2d_per_token": work.h2d_per_token,
            "d2h_per_token": work.d2h_per_token,
        }


@dataclass(frozen=True)
class Metrics:
    """slots, pages: that conversations have in the pool, and may have. reused_tokens: that were cached
    already, of all prompts so far. evictions: how often a conversation had to leave the pool. fallbacks: how
    often the CPU computed one, or it got memory of its own, because the pool had no room. last_answer: None
    before the first one. this_answer: of the one that is being written, so far; None between two.
    """

    device: str
    memory: MemoryUse
    slots: int
    most_slots: int
    most_pages: int
    reused_tokens: int = 0
    evictions: int = 0
    fallbacks: int = 0
    last_answer: AnswerMetrics | None = None
    this_answer: TokenWork | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "memory": self.memory.as_json(),
            "slots": {"used": self.slots, "most": self.most_slots},
            "pages": {"used": self.memory.cache_pages, "most": self.most_pages},
            "reused_tokens": self.reused_tokens,
            "evictions": self.evictions,
            "fallbacks": self.fallbacks,
            "last_answer": None if self.last_answer is None else self.last_answer.as_json(),
        }
