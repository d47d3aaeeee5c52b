"""One loaded model: load, turn messages into a prompt, generate, score, close.

Importing this module costs nothing; torch comes in with `Engine.load`. Use an engine from one thread at a
time; only the `cancel` events may be set from elsewhere.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from engine.answering import Answer, EndRules, check_finite
from engine.backend import Backend
from engine.calibration_text import calibration_text
from engine.checkpoints.foreign_files import shown
from engine.checkpoints.model_folder import ModelFolder
from engine.checkpoints.model_identity import model_identity
from engine.config import EngineConfig, WeightFormat
from engine.conversation_states import open_states
from engine.cpu import kv_ir, strip_ir, swiglu_ir
from engine.cpu.compiler import begin_compiling
from engine.cpu.memory import available_bytes, check_weights_fit
from engine.errors import Cancelled, ContextFullError, EngineError, SettingError
from engine.generation import Finished, GenerationEvent, GenerationRequest, SamplingParams, SlotInfo
from engine.kv_geometry import KvFormat, KvGeometry
from engine.notices import Notice
from engine.progress import LoadProgress, LoadStage, ProgressCallback, no_progress
from engine.resolution import ResolvedConfig, resolve_config, weight_group
from engine.runtime import begin_runtime, prepare_runtime, release_memory
from engine.sampling import Sampler
from engine.selftest import Check, SelfTest
from engine.states.known_ids import as_known
from engine.states.store import StateStore
from engine.templates.chat_template import ChatMessage, ChatPrompt, ChatTemplate
from engine.text_stream import TextStream
from engine.tokenizers.tokenizer import Tokenizer, load_tokenizer
from engine.weights.packing import has_native_strips
from engine.weights.quantise import QUANTISER_VERSION
from engine.weights.sizes import MatrixCounts, weight_bytes
from engine.weights.strip_cache import StripCache, default_root
from engine.weights.strip_file import StripKey
from engine.weights.strip_shelf import StripShelf

_SCORE_BLOCK = 256  # tokens whose logits exist at once
_FORMS = {"native": "as they are stored", "q8": "as 8-bit strips", "q4": "as 4-bit strips"}
_CHECK_TOKENS = 8  # of the self-check


@dataclass(frozen=True)
class ModelSummary:
    """What a loaded model is, for people and programs."""

    path: Path
    name: str
    family: str
    architecture: str
    kind: Literal["safetensors", "gguf"]
    parameters: int  # numbers in all weights
    weight_bytes: int  # of memory that the weights take
    context_length: int  # tokens, prompt and answer together
    layers: int
    device: str
    device_description: str
    sampling_defaults: SamplingParams
    notices: tuple[Notice, ...] = field(default=())
    weights: WeightFormat = "native"
    matrices: MatrixCounts | None = None  # in which form they are held; None: all as stored


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

    def __init__(
        self,
        summary: ModelSummary,
        config: ResolvedConfig,
        *,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        backend: Backend,
        states: StateStore,
        end_ids: frozenset[int],
        shelf: StripShelf | None = None,
    ) -> None:
        """shelf: where strips are still being kept, perhaps."""
        self.summary = summary
        self._shelf = shelf
        self._config = config
        self._tokenizer = tokenizer
        self._template = template
        self._backend: Backend | None = backend
        self._end_ids = end_ids
        self._control_ids = frozenset(tokenizer.added_tokens.values())
        self._states = states

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
        try:
            return cls._load(folder, config, on_progress, cancel)
        finally:
            folder.tensors.close()

    @classmethod
    def _load(
        cls,
        folder: ModelFolder,
        config: EngineConfig,
        on_progress: ProgressCallback,
        cancel: threading.Event | None,
    ) -> Engine:
        on_progress(LoadProgress(LoadStage.OPEN))
        begin_runtime()
        infos = folder.tensors.tensors()
        sizes = weight_bytes(folder.spec, folder.parameters, infos, group=weight_group(config))
        resolved, notices = resolve_config(
            config,
            folder.spec,
            sizes=sizes,
            available=available_bytes(),
            stored_packed=has_native_strips(folder.parameters, infos),
        )
        packed = resolved.weights != "native"
        strips = packed or has_native_strips(folder.parameters, infos)
        begin_compiling(_kernel_texts(resolved.kv, strips=strips))
        tokenizer = load_tokenizer(folder.tokenizer)
        template = ChatTemplate(folder.chat_template, tokenizer, adds_missing_bos=folder.kind == "gguf")
        _stop_if(cancel)
        if strips:
            check_weights_fit(sizes.of(resolved.weights), _FORMS[resolved.weights])
        ids = _calibration_ids(folder, resolved.weights, tokenizer)
        model = model_identity(folder)
        shelf = _shelf(folder, model, resolved, ids) if packed else None
        with ExitStack() as reading:
            if shelf is not None:
                reading.callback(shelf.close)
                shelf.begin(lambda: _stop_if(cancel))
            on_progress(LoadProgress(LoadStage.RUNTIME))
            prepare_runtime(resolved.threads)
            _stop_if(cancel)
            from engine.cpu.backend import CpuBackend

            backend = CpuBackend.load(
                folder.spec,
                folder.parameters,
                folder.tensors,
                weights=resolved.weights,
                group=resolved.weight_group,
                calibration_ids=ids,
                shelf=shelf,
                on_progress=on_progress,
                cancel=cancel,
            )
        on_progress(LoadProgress(LoadStage.CHECK))
        check_notices = _self_check(backend, resolved.kv, cancel)
        identity = model_identity(folder)
        states = open_states(
            backend,
            model=identity if identity == model else "",  # "" if its files were changed while they were read
            numerics=_numerics(resolved, ids),
            kv=resolved.kv,
            context=resolved.context,
            slots=resolved.slots,
        )
        summary = ModelSummary(
            path=folder.path,
            name=folder.name,
            family=folder.spec.family,
            architecture=folder.spec.architecture,
            kind=folder.kind,
            parameters=sum(parameter.num_elements for parameter in folder.parameters),
            weight_bytes=backend.weight_bytes,
            context_length=resolved.context,
            layers=folder.spec.num_layers,
            device=backend.device,
            device_description=backend.description,
            sampling_defaults=folder.sampling_defaults,
            notices=(*folder.notices, *tokenizer.notices, *notices, *backend.notices, *check_notices),
            weights=resolved.weights,
            matrices=backend.counts,
        )
        end_ids = folder.eos_token_ids | tokenizer.eos_ids
        return cls(
            summary,
            resolved,
            tokenizer=tokenizer,
            template=template,
            backend=backend,
            states=states,
            end_ids=end_ids,
            shelf=shelf,
        )

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
        """How probable the model finds a text that is already there. No conversation is touched."""
        self._check_ids(ids, "sequence")
        if len(ids) > self._config.context:
            raise ContextFullError(
                f"The sequence has {len(ids)} tokens, but the context holds {self._config.context}.",
                "Shorten it or raise the context.",
            )
        return SequenceScore(tuple(_log_probabilities(self._loaded(), ids)))

    def late_notices(self, *, wait: bool = False) -> tuple[Notice, ...]:
        """What went wrong behind a load that had succeeded, each once: with keeping the packed weights for
        the next one, or what is computed of conversations. Answers come with them, too.

        wait: until there can't be any more, which may take as long as the disk does.
        """
        if wait:
            self._states.wait()
        notices = self._states.take_notices()
        if self._shelf is None:
            return notices
        if wait:
            self._shelf.wait()
        return (*notices, *self._shelf.take_notices())

    def selftest(self, ids: Sequence[int], *, dump: bool = False) -> Iterator[Check]:
        """Whether shortcuts compute what a cold run of this text computes; see `engine/selftest.py`. No
        conversation is touched. Raises SettingError for a text of fewer than two tokens.
        """
        if len(ids) < 2:
            raise SettingError("The text is too short.", "Give one of some hundred words.")
        self._check_ids(ids, "text")
        backend = self._loaded()
        geometry = KvGeometry.of(backend.spec, self._config.kv)
        with TemporaryDirectory(prefix="kestrel-selftest-") as folder:
            used = ids[: self._config.context]
            yield from SelfTest(backend, geometry, used, folder=Path(folder), dump=dump).run()

    def forget(self, conversation: str) -> None:
        """Free what is cached of a conversation, on disk too."""
        self._states.forget(conversation)

    def slot_table(self) -> tuple[SlotInfo, ...]:
        """What is kept of each conversation, and where."""
        return self._states.table()

    def close(self) -> None:
        """Free weights and caches. Closing twice does nothing. What is still written to disk, packed weights
        and conversations' states for the next start, is written to the end; the process does not end before
        that.
        """
        if self._backend is not None:
            self._states.close()
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
        lease = self._states.take(request.conversation, request.prompt_ids)
        sound = True
        try:
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
            with closing(answer.events()) as events:
                for event in events:
                    if isinstance(event, Finished):
                        event = replace(event, notices=(*event.notices, *self.late_notices()))
                    yield event
        except (EngineError, Cancelled):
            raise
        except Exception:
            sound = False  # nobody knows how far the step came
            raise
        finally:
            self._states.give_back(lease, sound=sound)

    def _check_request(self, request: GenerationRequest) -> None:
        self._check_ids(request.prompt_ids, "prompt")
        if request.max_new_tokens is not None and request.max_new_tokens < 0:
            raise SettingError(f"The number of new tokens is {request.max_new_tokens}; it can't be negative.")
        length, context = len(request.prompt_ids), self._config.context
        if length > context:
            raise ContextFullError(
                f"The prompt has {length} tokens, but the context holds {context}.",
                "Shorten the prompt or raise the context.",
            )
        if length == context and request.max_new_tokens != 0:
            raise ContextFullError(
                f"The prompt has {length} tokens and fills the context of {context}; an answer has no room.",
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
        assert self._backend is not None, "the engine is closed"
        return self._backend


def _calibration_ids(folder: ModelFolder, weights: WeightFormat, tokenizer: Tokenizer) -> list[int]:
    """The text by which 4-bit codes are chosen; none for other formats."""
    if weights != "q4":
        return []
    encoded = tokenizer.encode(calibration_text(), parse_special=False)
    return [token_id for token_id in encoded if token_id < folder.spec.vocab_size]


def _shelf(
    folder: ModelFolder, model: str, config: ResolvedConfig, calibration_ids: Sequence[int]
) -> StripShelf:
    """The model's place among the strips that are kept in the person's cache folder. model: its identity."""
    key = StripKey(
        model=model,
        bits=4 if config.weights == "q4" else 8,
        group=config.weight_group,
        quantiser_version=QUANTISER_VERSION,
        calibration=_digest(calibration_ids),
    )
    return StripShelf(StripCache(default_root()), key, lambda: model_identity(folder))


def _numerics(config: ResolvedConfig, calibration_ids: Sequence[int]) -> str:
    """What keys and values are computed with, in words that change when the numbers do."""
    if config.weights == "native":
        return f"native weights, {config.activations} activations"
    return (
        f"{config.weights} weights in groups of {config.weight_group}, quantiser {QUANTISER_VERSION}, "
        f"calibration {_digest(calibration_ids) or 'none'}, {config.activations} activations"
    )


def _digest(ids: Sequence[int]) -> str:
    text = " ".join(map(str, ids)).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest() if ids else ""


def _kernel_texts(kv_format: KvFormat, *, strips: bool) -> list[str]:
    """The kernels that the CPU backend is going to ask for."""
    texts = [swiglu_ir.kernel_text(), kv_ir.kernel_text(kv_format)]
    return [strip_ir.kernel_text(), *texts] if strips else texts


def _self_check(backend: Backend, kv_format: KvFormat, cancel: threading.Event | None) -> tuple[Notice, ...]:
    """Runs a few fixed tokens, several at once and one alone, over such a cache as answers use. Raises
    ComputeFaultError when logits aren't numbers.

    A model that answers the same to everything may be sound (some are made for tests so), so that is only
    told.
    """
    import torch

    vocab_size = backend.spec.vocab_size
    ids = [(2 * i + 1) * vocab_size // (2 * _CHECK_TOKENS) for i in range(_CHECK_TOKENS)]
    cache = backend.new_cache(kv_format)
    first = backend.forward(ids[:-1], cache, all_logits=True, cancel=cancel)
    last = backend.forward(ids[-1:], cache, all_logits=True, cancel=cancel)
    logits = torch.cat((first, last))
    check_finite(logits)
    if vocab_size > 1 and len(set(logits.argmax(-1).tolist())) == 1:
        return (
            Notice(
                "self-check-repeats",
                f"The model predicts the same token after each of {_CHECK_TOKENS} different ones; "
                "its weights may be damaged.",
                "If its answers make no sense, get the files again.",
            ),
        )
    return ()


def _log_probabilities(backend: Backend, ids: Sequence[int]) -> Iterator[float]:
    """Of each token after the first. Only a block's logits exist at a time."""
    import torch

    cache = backend.new_cache()
    for first in range(0, len(ids) - 1, _SCORE_BLOCK):
        block = ids[first : min(first + _SCORE_BLOCK, len(ids) - 1)]
        following = torch.tensor(ids[first + 1 : first + 1 + len(block)])
        with torch.inference_mode():
            logits = backend.forward(block, cache, all_logits=True)
            check_finite(logits)
            chosen = logits.gather(1, following[:, None])[:, 0] - logits.logsumexp(-1)
        yield from chosen.tolist()


def _stop_if(cancel: threading.Event | None) -> None:
    if cancel is not None and cancel.is_set():
        raise Cancelled
