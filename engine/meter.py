"""Counts what an engine does from one answer to the next. For a token it costs a look at three numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from engine.backend import Backend
from engine.generation import DeviceChanged, Finished, GenerationEvent, Prefilled, SlotInfo, TextDelta
from engine.metrics import AnswerMetrics, Metrics, TokenWork, Work


class Meter:
    """Of one loaded model."""

    def __init__(self, *, most_slots: int, most_pages: int) -> None:
        """What conversations may have of the pool."""
        self._most_slots = most_slots
        self._most_pages = most_pages
        self._places: dict[str, str] = {}  # of conversations, when they were last looked at
        self._reused_tokens = 0
        self._evictions = 0
        self._fallbacks = 0
        self._last_answer: AnswerMetrics | None = None
        self._this_answer: TokenWork | None = None

    def watched(
        self, events: Iterable[GenerationEvent], work: Callable[[], Work]
    ) -> Iterator[GenerationEvent]:
        """The events of one answer, as they are. work: what was done up to now, where the model is then."""
        began, before, now, num_texts, num_steps = Work(), Work(), Work(), 0, 0
        try:
            for event in events:
                if isinstance(event, TextDelta):
                    before, now = now, work()
                    num_steps += num_texts > 0  # the first token is the prompt's
                    num_texts += 1
                    self._this_answer = TokenWork(num_steps, now.since(began))
                elif isinstance(event, Prefilled | DeviceChanged):
                    began = before = now = work()
                    num_steps = 0
                elif isinstance(event, Finished):
                    # A text more than there are tokens comes after a step that was given up, and is no
                    # token's.
                    end = now if num_texts <= len(event.token_ids) else before
                    self._last_answer = AnswerMetrics(event.prefill, event.decode, end.since(began))
                    self._this_answer = None
                    self._reused_tokens += event.prefill.reused
                yield event
        finally:
            self._this_answer = None

    def look(self, table: Iterable[SlotInfo]) -> None:
        """Has to be called whenever places may have changed: between two calls, a conversation that leaves
        the pool and comes back is missed.
        """
        places: dict[str, str] = {slot.conversation: slot.place for slot in table if slot.conversation}
        for conversation, place in self._places.items():
            self._evictions += place == "pool" and places.get(conversation) in ("ram", "disk", None)
        for conversation, place in places.items():
            self._fallbacks += place == "fallback" and self._places.get(conversation) != "fallback"
        self._places = places

    def forget(self, conversation: str) -> None:
        """It leaves because it is no longer wanted."""
        self._places.pop(conversation, None)

    def metrics(self, backend: Backend) -> Metrics:
        return Metrics(
            device=backend.device,
            memory=backend.memory_use(),
            slots=sum(place == "pool" for place in self._places.values()),
            most_slots=self._most_slots,
            most_pages=self._most_pages,
            reused_tokens=self._reused_tokens,
            evictions=self._evictions,
            fallbacks=self._fallbacks,
            last_answer=self._last_answer,
            this_answer=self._this_answer,
        )
