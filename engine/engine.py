"""One loaded model: load, turn messages into a prompt, generate, score, close.

Importing this module costs nothing; torch comes in with `Engine.load`. Use an engine from one thread at a
time; only the `cancel` events may be set from elsewhere.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from weakref import WeakSet

from engine.answering import Answer, EndRules
from engine.backend import Backend
from engine.checkpoints.foreign_files import shown
from engine.checkpoints.model_folder import ModelFolder
from engine.config import EngineConfig
from engine.conversation_states import default_ram_budget
from engine.drawing import check_finite
from engine.errors import (
    Cancelled,
    ContextFullError,
    DeviceFaultError,
    EngineError,
    ModelUnloadedError,
    SettingError,
)
from engine.generation import DeviceChanged, Finished, GenerationEvent, GenerationRequest, SlotInfo
from engine.kv_geometry import KvGeometry, pages_for
from engine.loading import LoadedModel, load_model
from engine.meter import Meter
from engine.metrics import Metrics
from engine.notices import Notice
from engine.progress import ProgressCallback, no_progress
from engine.runtime import release_memory
from engine.sampling import Sampler
from engine.selftest import Check, SelfTest
from engine.states.known_ids import as_known
from engine.templates.chat_template import ChatMessage, ChatPrompt
from engine.text_stream import TextStream
from engine.wording import format_tokens, phrase

_SCORE_BLOCK = 256  # tokens whose logits exist at once


@dataclass(frozen=True)
class SequenceScore:
    """`logprobs[i]` is the natural-log probability of token i + 1 given tokens 0 .. i; `nll` is minus their
    sum.
    """

    logprobs: tuple[float, ...]

    @property
    def nll(self) -> float:
        return -math.fsum(self.logprobs)

    @property
    def n(self) -> int:
        return len(self.logprobs)

    def as_json(self) -> dict[str, Any]:
        return {"logprobs": list(self.logprobs), "nll": self.nll, "n": self.n}


class Engine:
    """A loaded model and the states of its conversations. Made by `load`; of no use after `close`."""

    def __init__(self, model: LoadedModel) -> None:
        self.summary = model.summary  # another one once the card has failed
        self._config = model.config
        self._tokenizer = model.tokenizer
        self._template = model.template
        self._backend: Backend | None = model.backend
        self._states = model.states
        self._told = set(model.summary.notices)  # of what the backend says of how it runs
        self._end_ids = model.end_ids
        self._control_ids = frozenset(model.tokenizer.added_tokens.values())
        self._shelf = model.shelf
        slots = model.config.slots
        self._answers: WeakSet[Answer] = WeakSet()  # those that somebody may still take from
        self._meter = Meter(most_slots=slots, most_pages=slots * pages_for(model.config.context))

    @classmethod
    def load(
        cls,
        folder: ModelFolder,
        config: EngineConfig = EngineConfig(),  # noqa: B008  (frozen)
        *,
        on_progress: ProgressCallback = no_progress,
        cancel: threading.Event | None = None,
    ) -> Engine:
        """Read the weights of an open model and check that it computes. Closes the folder's files in any
        case.

        Raises EngineError, or Cancelled once `cancel` is set; whatever was read until then is freed.
        """
        return cls(load_model(folder, config, on_progress=on_progress, cancel=cancel))

    def chat_prompt(self, messages: Sequence[ChatMessage]) -> ChatPrompt:
        """The messages as the model's template renders them, up to where the answer begins; in ids that are
        cached already, where other ids say the same.
        """
        prompt = self._template.prompt(messages)
        ids = as_known(
            prompt.ids,
            self._states.known_ids(),
            token_bytes=self._tokenizer.token_bytes,
            control_ids=self._control_ids,
            most=self._config.context - 1,  # an answer needs some room, too
        )
        return replace(prompt, ids=tuple(ids))

    def encode(self, text: str) -> list[int]:
        """Raw text as ids, with the token that begins a text if the model wants one. Text never becomes a
        control token.
        """
        return self._tokenizer.encode(text, parse_special=False, add_bos=self._tokenizer.adds_bos)

    def generate(
        self, request: GenerationRequest, cancel: threading.Event | None = None
    ) -> Iterator[GenerationEvent]:
        """The events of one answer, computed while they are taken; the first two lines of `Answer.events` say
        which.

        Prompt and answer together never exceed the context. Raises SettingError and ContextFullError at once,
        and what `Answer.events` raises later. To give an answer up, set `cancel` or close the iterator.
        """
        self._check_request(request)
        stream = TextStream(self._tokenizer, request.stop)
        sampler = Sampler(request.sampling)
        return self._answer(request, stream, sampler, cancel)

    def score(self, ids: Sequence[int]) -> SequenceScore:
        """How probable the model finds a text that is already there. No conversation is touched. Once its
        device has failed, all of it is read again on the other one.
        """
        self._check_ids(ids, phrase("sequence"))
        if len(ids) > self._config.context:
            raise ContextFullError(
                f"The sequence has {format_tokens(len(ids))}, but the context holds "
                f"{self._config.context:,}.",
                "Shorten it or raise the context.",
            )
        try:
            return SequenceScore(
                self._states.surviving(lambda backend: tuple(_log_probabilities(backend, ids)))
            )
        finally:
            self._follow_states()

    def late_notices(self, *, wait: bool = False) -> tuple[Notice, ...]:
        """What went wrong behind a load that had succeeded, each once: with keeping the packed weights for
        the next one, or what is computed of conversations, or with how steps run. Answers come with them,
        too.

        wait: until there can't be any more, which may take as long as the disk does.
        """
        if wait:
            self._states.wait()
        notices = (*self._states.take_notices(), *self._untold())
        if self._shelf is None:
            return notices
        if wait:
            self._shelf.wait()
        return (*notices, *self._shelf.take_notices())

    def _untold(self) -> tuple[Notice, ...]:
        """What the backend says of itself that nobody has heard yet."""
        if self._backend is None:
            return ()
        found = tuple(notice for notice in self._backend.notices if notice not in self._told)
        self._told.update(found)
        return found

    def selftest(self, ids: Sequence[int], *, dump: bool = False) -> Iterator[Check]:
        """Whether shortcuts compute what a cold run of this text computes; see `engine/selftest.py`. No
        conversation is touched. Raises SettingError for a text of fewer than two tokens, DeviceFaultError.
        """
        if len(ids) < 2:
            raise SettingError("The text is too short.", "Give one of some hundred words.")
        self._check_ids(ids, phrase("text"))
        backend = self._loaded()
        geometry = KvGeometry.of(backend.spec, self._config.kv)
        with TemporaryDirectory(prefix="kestrel-selftest-") as folder:
            used = ids[: self._config.context]
            try:
                yield from SelfTest(backend, geometry, used, folder=Path(folder), dump=dump).run()
            except DeviceFaultError as fault:
                raise DeviceFaultError(
                    "The self-test ends, because runs on two devices can't be compared bit for bit: "
                    f"{fault.message}",
                    fault.hint,
                ) from fault

    def fork(self, conversation: str, prompt_ids: Sequence[int]) -> int:
        """Give a new conversation, whose first prompt will begin as `prompt_ids`, a share of its own in what
        is cached of it already: nothing that happens to the others takes it away. Copies one page at most
        where the pool has a place for it.

        Returns how many tokens it has. Raises OutOfMemoryError; nothing has changed then.
        """
        try:
            return self._states.begin(conversation, prompt_ids)
        finally:
            self._follow_states()
            self._meter.look(self._states.table())

    def forget(self, conversation: str) -> None:
        """Free what is cached of a conversation, on disk too."""
        self._states.forget(conversation)
        self._meter.forget(conversation)

    def limit_states(self, *, ram_budget: int | None, disk_budget: int | None) -> None:
        """Other budgets for what is kept of conversations, from now on, see `EngineConfig`."""
        ram = default_ram_budget if ram_budget is None else ram_budget
        self._states.limit(ram_budget=ram, disk_budget=disk_budget)

    def free_slots(self) -> None:
        """Free the memory of conversations in which nothing is computed now. What lies on disk of them stays,
        and what doesn't yet is written.
        """
        self._states.free_idle()
        self._follow_states()
        self._meter.look(self._states.table())

    def slot_table(self) -> tuple[SlotInfo, ...]:
        """What is kept of each conversation, and where."""
        return self._states.table()

    def metrics(self) -> Metrics:
        """What the model takes and did, in numbers. To be asked between answers, not for every token."""
        backend = self._loaded()
        self._meter.look(self._states.table())
        return self._meter.metrics(backend)

    def close(self) -> None:
        """Free weights and caches. Closing twice does nothing. Whoever asks for more of an answer gets a
        ModelUnloadedError. What is still written to disk, packed weights
        and conversations' states for the next start, is written to the end; the process does not end before
        that.
        """
        if self._backend is not None:
            for answer in list(self._answers):
                answer.let_go()
            self._states.close()
            self._backend.close()
            self._backend = None
            release_memory()

    def _answer(
        self,
        request: GenerationRequest,
        stream: TextStream,
        sampler: Sampler,
        cancel: threading.Event | None,
    ) -> Iterator[GenerationEvent]:
        self._loaded()
        moves: tuple[Notice, ...] = ()
        try:
            lease = self._states.take(request.conversation, request.prompt_ids)
        finally:
            moves = self._follow_states()
        sound = True
        try:
            self._meter.look(self._states.table())
            answer = Answer(
                lease,
                request=request,
                rules=EndRules(
                    end_ids=frozenset() if request.ignore_eos else self._end_ids,
                    max_new_tokens=request.max_new_tokens,
                    context=self._config.context,
                ),
                stream=stream,
                sampler=sampler,
                cancel=cancel,
            )
            self._answers.add(answer)
            for notice in moves:
                yield DeviceChanged(notice)
            with closing(answer.events()) as events:
                for event in self._meter.watched(self._following(events), lambda: self._loaded().work):
                    if isinstance(event, Finished):
                        event = replace(event, notices=(*event.notices, *self.late_notices()))
                    yield event
        except (EngineError, Cancelled):
            raise
        except Exception:
            sound = False  # nobody knows how far the step came
            raise
        finally:
            if self._backend is not None:
                self._meter.look(self._states.table())  # where the answer was computed in the end
            self._states.give_back(lease, sound=sound)
            if self._backend is not None:
                self._meter.look(self._states.table())

    def _following(self, events: Iterator[GenerationEvent]) -> Iterator[GenerationEvent]:
        for event in events:
            if isinstance(event, DeviceChanged):
                self._move(event.notice)
            yield event

    def _follow_states(self) -> tuple[Notice, ...]:
        """Onto another device, if they went there; why."""
        notices = self._states.take_moves()
        for notice in notices:
            self._move(notice)
        return notices

    def _move(self, notice: Notice) -> None:
        """To the device where the states are now; the one before gives back what it can."""
        failed, backend = self._loaded(), self._states.backend
        self._backend = backend
        self.summary = replace(
            self.summary,
            device=backend.device,
            device_description=backend.description,
            weight_bytes=backend.weight_bytes,
            notices=(*self.summary.notices, notice),
        )
        failed.close()

    def _check_request(self, request: GenerationRequest) -> None:
        self._check_ids(request.prompt_ids, phrase("prompt"))
        if request.max_new_tokens is not None and request.max_new_tokens < 0:
            raise SettingError(f"The number of new tokens is {request.max_new_tokens}; it can't be negative.")
        length, context = len(request.prompt_ids), self._config.context
        if length > context:
            raise ContextFullError(
                f"The prompt has {format_tokens(length)}, but the context holds {context:,}.",
                "Shorten the prompt or raise the context.",
            )
        if length == context and request.max_new_tokens != 0:
            raise ContextFullError(
                f"The prompt has {format_tokens(length)} and fills the context of {context:,}; an answer has "
                "no room.",
                "Shorten the prompt or raise the context.",
            )

    def _check_ids(self, ids: Sequence[int], what: str) -> None:
        if not ids:
            raise SettingError(f"The {what} is empty.", "Give at least one token.")
        vocab_size = self._loaded().spec.vocab_size
        for token_id in (min(ids), max(ids)):
            if not 0 <= token_id < vocab_size:
                raise SettingError(
                    f"The {what} holds the token id {shown(token_id, 40)}; "
                    f"this model has 0 to {vocab_size - 1}."
                )

    def _loaded(self) -> Backend:
        if self._backend is None:
            raise ModelUnloadedError
        return self._backend


def _log_probabilities(backend: Backend, ids: Sequence[int]) -> Iterator[float]:
    """Of each token after the first. Only a block's logits exist at a time."""
    import torch

    with closing(backend.new_cache()) as cache:
        for first in range(0, len(ids) - 1, _SCORE_BLOCK):
            block = ids[first : min(first + _SCORE_BLOCK, len(ids) - 1)]
            following = torch.tensor(ids[first + 1 : first + 1 + len(block)])
            with torch.inference_mode():
                logits = backend.forward(block, cache, all_logits=True)
                check_finite(logits)
                chosen = logits.gather(1, following[:, None])[:, 0] - logits.logsumexp(-1)
            yield from chosen.tolist()
