"""One answer: reads what isn't cached of the prompt, then draws token after token until something ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

from engine.drawing import Drawings
from engine.errors import Cancelled, ComputeFaultError
from engine.generation import (
    DecodeStats,
    DeviceChanged,
    Finished,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    Prefilled,
    PrefillStats,
    TextDelta,
)
from engine.sampling import Sampler
from engine.states.lease import Lease, StatesMoved
from engine.text_stream import TextStream


@dataclass(frozen=True)
class EndRules:
    """What ends an answer apart from a stop string. The end tokens are empty where they are to be ignored."""

    end_ids: frozenset[int]
    max_new_tokens: int | None
    context: int  # tokens, prompt and answer together


class Answer:
    """One answer in the making. Whoever stops taking `events` leaves the lease valid for what was run."""

    def __init__(
        self,
        lease: Lease,
        *,
        request: GenerationRequest,
        rules: EndRules,
        stream: TextStream,
        sampler: Sampler,
        cancel: threading.Event | None,
    ) -> None:
        self._lease = lease
        self._prompt = request.prompt_ids
        self._rules = rules
        self._stream = stream
        self._sampler = sampler
        self._cancel = cancel
        self._history = list(request.prompt_ids)  # prompt and answer, for repetition penalties
        self._drawings = Drawings(sampler, self._history)
        self._tokens: list[int] = []
        self._text: list[str] = []
        self._prefill = self._prefill_stats(0.0)
        self._decode_seconds = 0.0
        self._decode_tokens = 0
        self._reads_again = False  # all that was there: its device failed

    def let_go(self) -> None:
        """Of the device that draws: the model is being unloaded. Nothing more comes."""
        self._drawings.close()

    def events(self) -> Generator[GenerationEvent, None, None]:
        """Prefilled, one TextDelta for each token, Finished; a prompt that is cancelled gives Finished alone.
        DeviceChanged at most once between them.

        A cancelled answer may have one more TextDelta, with the last token's id, for text that was held back.
        Raises ComputeFaultError and OutOfMemoryError; the state then is as it was before the step that
        failed.
        """
        try:
            yield from self._events()
        finally:
            self._drawings.close()

    def _events(self) -> Generator[GenerationEvent, None, None]:
        try:
            token = yield from self._surviving(self._read_prompt)
        except Cancelled:
            yield self._finished(FinishReason.CANCELLED)
            return
        yield Prefilled(self._prefill)
        reason = FinishReason.LENGTH if self._rules.max_new_tokens == 0 else None
        while reason is None:
            began = time.perf_counter()
            try:
                if self._tokens:
                    token = yield from self._surviving(self._run_last)
            except Cancelled:
                reason = FinishReason.CANCELLED
                if held_back := self._stream.finish():
                    yield self._delta(held_back)
                break
            text, reason = self._take(token)
            if len(self._tokens) > 1 and not self._reads_again:
                self._decode_seconds += time.perf_counter() - began
                self._decode_tokens += 1
            self._reads_again = False
            yield self._delta(text)
        yield self._finished(reason)

    def _surviving(self, step: Callable[[], int]) -> Generator[GenerationEvent, None, int]:
        """What `step` gives, asked for again once all states have left a device that failed."""
        while True:
            try:
                return step()
            except StatesMoved as moved:
                notice = moved.notice
            self._reads_again = True
            yield DeviceChanged(notice)

    def _read_prompt(self) -> int:
        """The token behind the prompt. What is cached of that is not run again."""
        began = time.perf_counter()
        try:
            ids = self._prompt[self._lease.length :]
            return self._run(lambda: self._lease.draw(ids, self._drawings, cancel=self._cancel))
        finally:
            self._prefill = self._prefill_stats(time.perf_counter() - began)

    def _run_last(self) -> int:
        """The token behind the one that was drawn last."""
        token, ahead = self._tokens[-1], not self._limit_reached(len(self._tokens) + 1)
        return self._run(
            lambda: self._lease.draw_next(token, self._drawings, ahead=ahead, cancel=self._cancel)
        )

    def _run(self, step: Callable[[], int]) -> int:
        if self._cancel is not None and self._cancel.is_set():
            raise Cancelled
        before = self._lease.length
        try:
            return step()
        except ComputeFaultError:
            self._lease.rewind(before)  # what was just cached is no better than the logits
            raise

    def _prefill_stats(self, seconds: float) -> PrefillStats:
        return PrefillStats(
            tokens=len(self._prompt),
            reused=self._lease.reused,
            seconds=seconds,
            reason=self._lease.reason,
            diverged_at=self._lease.diverged_at,
        )

    def _take(self, token: int) -> tuple[str, FinishReason | None]:
        """The next token: the text that is final with it, and what ends the answer here."""
        self._tokens.append(token)
        self._history.append(token)
        self._sampler.num_drawn = len(self._tokens)
        ended = token in self._rules.end_ids
        text = "" if ended else self._stream.push(token)
        reason = FinishReason.END if ended else self._limit_reached(len(self._tokens))
        if reason is not None:
            text += self._stream.finish()
        return text, FinishReason.STOP if self._stream.stopped else reason

    def _limit_reached(self, count: int) -> FinishReason | None:
        """With so many tokens."""
        if count == self._rules.max_new_tokens:
            return FinishReason.LENGTH
        full = len(self._prompt) + count >= self._rules.context
        return FinishReason.CONTEXT if full else None

    def _delta(self, text: str) -> TextDelta:
        self._text.append(text)
        return TextDelta(text, self._tokens[-1])

    def _finished(self, reason: FinishReason) -> Finished:
        return Finished(
            text="".join(self._text),
            token_ids=tuple(self._tokens),
            finish_reason=reason,
            prefill=self._prefill,
            decode=DecodeStats(self._decode_tokens, self._decode_seconds),
            seed=self._sampler.seed,
            notices=self._lease.take_notices(),
            device=self._lease.device,
        )
