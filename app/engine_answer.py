"""One answer on the engine's thread, from its prompt to its end, told as events. No Qt."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from app.engine_commands import (
    AnswerDelta,
    AnswerFailed,
    AnswerFinished,
    AnswerGrew,
    AnswerPrefilled,
    EngineEvent,
    Generate,
    NoticeRaised,
    PromptShortened,
)
from app.prompt import fitted_prompt
from engine.errors import Cancelled
from engine.generation import (
    DecodeStats,
    DeviceChanged,
    Finished,
    FinishReason,
    GenerationRequest,
    Prefilled,
    PrefillStats,
    ReuseReason,
    TextDelta,
)
from engine.notices import Notice
from engine.thinking import ThinkingSplitter, leaves_thinking_open

if TYPE_CHECKING:
    from app.engine_loop import ChatEngine


class EngineAnswer:
    """Made for one command; `write` computes it, and exactly one of the other methods ends it otherwise."""

    def __init__(self, generate: Generate, report: Callable[[EngineEvent], None]) -> None:
        self._id = generate.id
        self._command = generate.command
        self._cancel = generate.cancel
        self._report = report
        self._splitter: ThinkingSplitter | None = None  # once the prompt is there
        self._text = ""  # as the model wrote it, thinking included
        self._token_ids: list[int] = []
        self._prefill = PrefillStats(tokens=0, reused=0, seconds=0.0)
        self._decode_began = 0.0
        self._cut_anew = False
        self._num_untold = 0  # tokens whose text is held back still

    def write(self, engine: ChatEngine, on_moved: Callable[[], None], on_token: Callable[[], None]) -> None:
        """on_moved: called when the engine computes elsewhere, in the middle of the answer. on_token: after
        each token.
        """
        if self._cancel.is_set():
            raise Cancelled
        fitted = fitted_prompt(engine, self._command.messages, self._command.policy)
        prompt, self._cut_anew = fitted.prompt, fitted.cut_anew
        if fitted.left_out:
            self._report(PromptShortened(self._id, fitted.left_out))
        for notice in prompt.notices:
            self._report(NoticeRaised(notice))
        self._splitter = splitter = ThinkingSplitter(open=leaves_thinking_open(prompt.text))
        request = GenerationRequest(
            prompt_ids=prompt.ids,
            sampling=self._command.sampling,
            max_new_tokens=self._command.max_new_tokens,
            stop=(*prompt.stop, *self._command.stop),
            conversation=self._command.conversation_id,
        )
        for event in engine.generate(request, self._cancel):
            match event:
                case Prefilled(stats):
                    stats = self._prefill = self._explained(stats)
                    self._decode_began = time.perf_counter()
                    self._report(AnswerPrefilled(self._id, stats))
                case TextDelta(text, token_id):
                    self._text += text
                    self._token_ids.append(token_id)
                    self._num_untold += 1
                    self._grow(*splitter.push(text))
                    on_token()
                case DeviceChanged():
                    on_moved()
                case Finished():
                    self._finish(replace(event, prefill=self._explained(event.prefill)))
                    return
        raise AssertionError("the engine ended an answer without Finished")

    def _explained(self, stats: PrefillStats) -> PrefillStats:
        """Only here it is known that the beginning of the prompt differs because other messages are left
        out of it, and which conversation is a new one.
        """
        if self._cut_anew and stats.reason is ReuseReason.HISTORY_REWRITTEN:
            return replace(stats, reason=ReuseReason.CONTEXT_POLICY)
        goes_on = any(message.role == "assistant" for message in self._command.messages)
        if goes_on and stats.reason is ReuseReason.NEW:
            return replace(stats, reason=ReuseReason.NOT_KEPT)
        return stats

    def finish_cancelled(self) -> None:
        """For an answer that was stopped where the engine had nothing to return: before or during the
        prefill.
        """
        decoded = max(len(self._token_ids) - 1, 0)
        seconds = time.perf_counter() - self._decode_began if decoded else 0.0
        self._finish(
            Finished(
                text=self._text,
                token_ids=tuple(self._token_ids),
                finish_reason=FinishReason.CANCELLED,
                prefill=self._prefill,
                decode=DecodeStats(decoded, seconds),
            )
        )

    def fail(self, notice: Notice) -> None:
        self._grow_rest()
        self._report(AnswerFailed(self._id, notice))

    def _finish(self, finished: Finished) -> None:
        self._grow_rest()
        self._report(AnswerFinished(self._id, finished))

    def _grow_rest(self) -> None:
        """What the splitter held back because it could have become a tag."""
        if self._splitter is not None:
            self._grow(*self._splitter.finish())

    def _grow(self, thinking: str, text: str) -> None:
        if thinking or text:
            self._report(AnswerGrew(self._id, AnswerDelta(thinking, text, self._num_untold)))
            self._num_untold = 0
