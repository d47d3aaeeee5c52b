"""One answer: reads what isn't cached of the prompt, then draws token after token until something ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.backend import Backend
from engine.errors import Cancelled, ComputeFaultError
from engine.generation import (
    DecodeStats,
    Finished,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    Prefilled,
    PrefillStats,
    TextDelta,
)
from engine.notices import Notice
from engine.sampling import Sampler
from engine.states.store import State
from engine.text_stream import TextStream

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


@dataclass(frozen=True)
class EndRules:
    """What ends an answer apart from a stop string. The end tokens are empty where they are to be ignored."""

    end_ids: frozenset[int]
    max_new_tokens: int | None
    context: int  # tokens, prompt and answer together


class Answer:
    """One answer in the making. Whoever stops taking `events` leaves the state valid for what was run."""

    def __init__(
        self,
        backend: Backend,
        state: State,
        *,
        request: GenerationRequest,
        rules: EndRules,
        stream: TextStream,
        sampler: Sampler,
        cancel: threading.Event | None,
        notices: tuple[Notice, ...],
    ) -> None:
        self._backend = backend
        self._state = state
        self._prompt = request.prompt_ids
        self._rules = rules
        self._stream = stream
        self._sampler = sampler
        self._cancel = cancel
        self._notices = notices
        self._history = list(request.prompt_ids)  # prompt and answer, for repetition penalties
        self._tokens: list[int] = []
        self._text: list[str] = []
        self._prefill = PrefillStats(tokens=len(self._prompt), reused=0, seconds=0.0)
        self._decode_seconds = 0.0

    def events(self) -> Generator[GenerationEvent, None, None]:
        """Prefilled, one TextDelta for each token, Finished; a prompt that is cancelled gives Finished alone.

        A cancelled answer may have one more TextDelta, with the last token's id, for text that was held back.
        Raises ComputeFaultError and OutOfMemoryError; the state then is as it was before the step that
        failed.
        """
        try:
            logits = self._read_prompt()
        except Cancelled:
            yield self._finished(FinishReason.CANCELLED)
            return
        yield Prefilled(self._prefill)
        reason = FinishReason.LENGTH if self._rules.max_new_tokens == 0 else None
        while reason is None:
            began = time.perf_counter()
            try:
                if self._tokens:
                    logits = self._run(self._tokens[-1:])
            except Cancelled:
                reason = FinishReason.CANCELLED
                if held_back := self._stream.finish():
                    yield self._delta(held_back)
                break
            text, reason = self._draw(logits)
            if len(self._tokens) > 1:
                self._decode_seconds += time.perf_counter() - began
            yield self._delta(text)
        yield self._finished(reason)

    def _read_prompt(self) -> torch.Tensor:
        """Logits (V,) after the prompt. What the state shares with it is not run again."""
        reused = self._state.shared_prefix(self._prompt)
        self._state.truncate(reused)
        began = time.perf_counter()
        try:
            return self._run(self._prompt[reused:])
        finally:
            seconds = time.perf_counter() - began
            self._prefill = PrefillStats(tokens=len(self._prompt), reused=reused, seconds=seconds)

    def _run(self, ids: Sequence[int]) -> torch.Tensor:
        if self._cancel is not None and self._cancel.is_set():
            raise Cancelled
        before = self._state.length
        logits = self._state.run(self._backend, ids, self._cancel)
        try:
            check_finite(logits)
        except ComputeFaultError:
            self._state.truncate(before)  # what was just cached is no better than the logits
            raise
        return logits

    def _draw(self, logits: torch.Tensor) -> tuple[str, FinishReason | None]:
        """Draws the next token: the text that is final with it, and what ends the answer here."""
        token = self._sampler.sample(logits, self._history)
        self._tokens.append(token)
        self._history.append(token)
        ended = token in self._rules.end_ids
        text = "" if ended else self._stream.push(token)
        reason = FinishReason.END if ended else self._limit_reached()
        if reason is not None:
            text += self._stream.finish()
        return text, FinishReason.STOP if self._stream.stopped else reason

    def _limit_reached(self) -> FinishReason | None:
        if len(self._tokens) == self._rules.max_new_tokens:
            return FinishReason.LENGTH
        full = len(self._prompt) + len(self._tokens) >= self._rules.context
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
            decode=DecodeStats(tokens=max(0, len(self._tokens) - 1), seconds=self._decode_seconds),
            seed=self._sampler.seed,
            notices=self._notices,
        )


def check_finite(logits: torch.Tensor) -> None:
    """Raises ComputeFaultError when any logit is infinite or not a number."""
    if not logits.isfinite().all():
        raise ComputeFaultError(
            "The model computed values that are not numbers.",
            "Its weights are damaged or too large for this arithmetic: load it again, or choose another.",
        )
