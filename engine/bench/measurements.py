"""Measures a loaded model: medians over repeats, behind a time that isn't counted."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

from engine.backend import Backend
from engine.bench.conversation import Conversation
from engine.bench.plan import Plan
from engine.bench.traffic import Traffic
from engine.kv_geometry import KvGeometry, pages_for
from engine.metrics import Work
from engine.wording import format_tokens

_FIRST_TOKENS = 16  # of the prompt whose first token is waited for
_LONGEST_FILLING = 60.0  # seconds, for reading random tokens so that a cache is full of them

Say = Callable[[str], None]


@dataclass(frozen=True)
class Times:
    """Seconds of each repeat."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def best(self) -> float:
        return min(self.seconds)


@dataclass(frozen=True)
class DecodeFigure:
    """times: of a token. work: that was asked of the card for all `tokens` of them."""

    depth: int
    times: Times
    tokens: int
    work: Work
    filled_by: str


class Measurements:
    """Of one backend. Everything takes place in one pool, whose pages go back to it."""

    def __init__(
        self,
        backend: Backend,
        geometry: KvGeometry,
        plan: Plan,
        *,
        say: Say,
        cancel: threading.Event | None = None,
    ) -> None:
        """say: is told what is measured next."""
        self._backend = backend
        self._plan = plan
        self._say = say
        self._cancel = cancel
        self._pool = backend.new_pool(geometry, self._most_pages(plan))
        self._tokens_per_second = 0.0  # of reading

    @staticmethod
    def _most_pages(plan: Plan) -> int:
        several = plan.conversations * pages_for(plan.depths[0] + plan.tokens + 1)
        return max(pages_for(plan.longest), several)

    def conversation(self) -> Conversation:
        return Conversation(self._backend, self._pool, cancel=self._cancel)

    def first_token(self) -> dict[str, Any]:
        """Of a short prompt, for the first time since the load and for the second."""
        self._say("first token")
        count = min(_FIRST_TOKENS, self._plan.prompt)
        with closing(self.conversation()) as conversation:
            ids = conversation.random_ids(count)

            def once() -> float:
                conversation.rewind(0)
                return _seconds(lambda: conversation.read(ids))

            return {
                "tokens": count,
                "cold_milliseconds": 1000 * once(),
                "warm_milliseconds": 1000 * once(),
            }

    def prefill(self) -> list[dict[str, Any]]:
        found = []
        with closing(self.conversation()) as conversation:
            ids = conversation.random_ids(self._plan.prompt)
            for depth in self._plan.prompt_depths:
                self._say(f"a prompt of {self._plan.prompt:,} at depth {depth:,}")
                filled_by = self.fill(conversation, depth)
                times = self._repeated(conversation, depth, lambda: conversation.read(ids))
                rate = self._plan.prompt / times.median
                self._tokens_per_second = self._tokens_per_second or rate
                found.append(
                    {
                        "tokens": self._plan.prompt,
                        "depth": depth,
                        "tokens_per_second": rate,
                        "tokens_per_second_best": self._plan.prompt / times.best,
                        "cache_filled_by": filled_by,
                    }
                )
        return found

    def decode(self) -> list[DecodeFigure]:
        with closing(self.conversation()) as conversation:
            return [self._decode_at(depth, conversation) for depth in self._plan.depths]

    def _decode_at(self, depth: int, conversation: Conversation) -> DecodeFigure:
        tokens = self._plan.tokens
        self._say(f"{format_tokens(tokens)} at depth {depth:,}")
        filled_by = self.fill(conversation, depth)
        conversation.reserve(depth + tokens)
        [token] = conversation.random_ids(1)
        before = Work()

        def write() -> None:
            nonlocal before
            before = self._backend.work
            conversation.write(token, tokens)

        times = self._repeated(conversation, depth, write)
        work = self._backend.work.since(before)
        return DecodeFigure(
            depth, Times(tuple(each / tokens for each in times.seconds)), tokens, work, filled_by
        )

    def interleaved(self) -> dict[str, Any]:
        """Several conversations that take turns, token by token, beside the same ones one after the other.
        Both as answers are written: while the card computes for some, the token of another one is read, and
        its next step is begun.
        """
        plan, depth = self._plan, self._plan.depths[0]
        self._say(f"{plan.conversations:,} conversations by turns")
        with ExitStack() as stack:
            several = [stack.enter_context(closing(self.conversation())) for _ in range(plan.conversations)]
            tokens = []
            for each in several:
                self.fill(each, depth)
                each.reserve(depth + plan.tokens)
                tokens += each.random_ids(1)

            def by_turns() -> None:
                current = list(tokens)
                for written in range(1, plan.tokens + 1):
                    for index, each in enumerate(several):
                        current[index] = each.step(current[index], ahead=written < plan.tokens)

            def one_by_one() -> None:
                for token, each in zip(tokens, several, strict=True):
                    each.write(token, plan.tokens)

            def seconds(way: Callable[[], None]) -> float:
                for each in several:
                    each.rewind(depth)
                return _seconds(way) / (plan.tokens * len(several))

            ways = (by_turns, one_by_one)
            times = [[seconds(way) for way in ways] for _ in range(1 + plan.repeats)][1:]
        turns, alone = (statistics.median(of_way) for of_way in zip(*times, strict=True))
        return {
            "conversations": plan.conversations,
            "depth": depth,
            "milliseconds_per_token": 1000 * turns,
            "milliseconds_per_token_alone": 1000 * alone,
            "cost": turns / alone - 1,
        }

    def reused(self) -> dict[str, Any]:
        """The first token of a turn of some new tokens behind many that are cached."""
        plan = self._plan
        self._say(f"a turn of {format_tokens(plan.turn)} behind {plan.reused:,}")
        with closing(self.conversation()) as conversation:
            filled_by = self.fill(conversation, plan.reused)
            ids = conversation.random_ids(plan.turn)
            times = self._repeated(conversation, plan.reused, lambda: conversation.read(ids))
        return {
            "tokens": plan.reused,
            "turn": plan.turn,
            "first_token_milliseconds": 1000 * times.median,
            "first_token_milliseconds_best": 1000 * times.best,
            "cache_filled_by": filled_by,
        }

    def fill(self, conversation: Conversation, depth: int) -> str:
        """Makes it so long, and says how: by reading tokens, or by random pages if that would take long."""
        if depth < conversation.length:
            conversation.rewind(depth)
        missing = depth - conversation.length
        if self._tokens_per_second and missing / self._tokens_per_second > _LONGEST_FILLING:
            conversation.fill_by_pages(depth)
            return "random pages"
        conversation.fill(depth)
        return "prefill"

    def _repeated(self, conversation: Conversation, depth: int, work: Callable[[], object]) -> Times:
        def once() -> float:
            conversation.rewind(depth)
            return _seconds(work)

        once()
        times = Times(tuple(once() for _ in range(self._plan.repeats)))
        conversation.rewind(depth)
        return times


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def decode_json(figure: DecodeFigure, traffic: Traffic, bandwidth: float | None) -> dict[str, Any]:
    """bandwidth: bytes a second of the memory, None where it isn't known."""
    seconds = figure.times.median
    num_bytes = traffic.at(figure.depth)
    return {
        "depth": figure.depth,
        "tokens_per_second": 1 / seconds,
        "milliseconds_per_token": 1000 * seconds,
        "milliseconds_per_token_best": 1000 * figure.times.best,
        "bytes_per_token": num_bytes,
        "roofline_fraction": None if bandwidth is None else num_bytes / bandwidth / seconds,
        "launches_per_token": figure.work.launches / figure.tokens,
        "cache_filled_by": figure.filled_by,
    }
