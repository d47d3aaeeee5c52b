"""From an open model folder to all that an `Engine` holds: tokenizer, template, weights, states.

Importing this module costs nothing; torch comes in with `load_model`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.backend import Backend
from engine.calibration_text import calibration_text
from engine.card_loading import card_for, fallback_notice, load_on_card
from engine.checkpoints.model_folder import ModelFolder
from engine.checkpoints.model_identity import model_identity
from engine.config import EngineConfig, WeightFormat
from engine.conversation_states import open_states
from engine.cpu import code_ir, kv_ir, strip_ir, swiglu_ir
from engine.cpu.compiler import begin_compiling
from engine.cpu.memory import RESERVE_BYTES, available_bytes, check_weights_fit
from engine.cuda.availability import NoCard
from engine.cuda.driver import CardInfo
from engine.default_folders import strips_folder
from engine.drawing import check_finite
from engine.errors import Cancelled, ComputeFaultError, DeviceFaultError, OutOfMemoryError
from engine.model_summary import ModelSummary
from engine.notices import Notice
from engine.numerics import ids_digest, numerics
from engine.progress import LoadProgress, LoadStage, ProgressCallback
from engine.resolution import ResolvedConfig, resolve_config, weight_group
from engine.runtime import begin_runtime, prepare_runtime
from engine.states.kv_writer import pending_bytes, wait_for_a_file
from engine.states.store import StateStore
from engine.templates.chat_template import ChatTemplate
from engine.tokenizers.tokenizer import Tokenizer, load_tokenizer
from engine.weights.packing import has_native_strips
from engine.weights.quantise import QUANTISER_VERSION
from engine.weights.sizes import MatrixCounts, weight_bytes
from engine.weights.strip_cache import StripCache
from engine.weights.strip_file import StripKey
from engine.weights.strip_shelf import StripShelf

if TYPE_CHECKING:
    from engine.cpu.backend import CpuBackend

_FORMS = {"native": "as they are stored", "q8": "as 8-bit strips", "q4": "as 4-bit strips"}
_CHECK_TOKENS = 4  # of the self-check
_WIDENED = 2  # of native weights, where there is room for 32-bit floats in place of 16-bit ones
_SECONDS_BETWEEN_LOOKS = 0.05  # a cancel takes effect within this


@dataclass(frozen=True)
class LoadedModel:
    """What a load leaves. end_ids: tokens that end an answer. shelf: where strips are still being kept,
    perhaps.
    """

    summary: ModelSummary
    config: ResolvedConfig
    tokenizer: Tokenizer
    template: ChatTemplate
    backend: Backend
    states: StateStore
    end_ids: frozenset[int]
    shelf: StripShelf | None


def load_model(
    folder: ModelFolder,
    config: EngineConfig,
    *,
    on_progress: ProgressCallback,
    cancel: threading.Event | None,
) -> LoadedModel:
    """What `Engine.load` says."""
    try:
        return _load(folder, config, on_progress, cancel)
    finally:
        folder.tensors.close()


def _load(
    folder: ModelFolder,
    config: EngineConfig,
    on_progress: ProgressCallback,
    cancel: threading.Event | None,
) -> LoadedModel:
    on_progress(LoadProgress(LoadStage.OPEN))
    begin_runtime()
    card = card_for(config.device)
    resolved, notices = _resolve(folder, config, card, cancel)
    tokenizer = load_tokenizer(folder.tokenizer)
    template = ChatTemplate(folder.chat_template, tokenizer, adds_missing_bos=folder.kind == "gguf")
    _stop_if(cancel)
    packed = resolved.weights != "native"
    begin_compiling(_kernel_texts(resolved, strips=packed or _has_strips(folder)))
    model = model_identity(folder)
    with ExitStack() as reading:

        def begin_shelf(calibration_ids: Sequence[int]) -> StripShelf:
            found = _shelf(folder, model, resolved, calibration_ids)
            reading.callback(found.close)
            found.begin(lambda: _stop_if(cancel))
            return found

        ids = _calibration_ids(folder, resolved.weights, tokenizer)
        shelf = begin_shelf(ids) if packed else None  # what is kept is read beside all that follows
        cpu = _load_backend(
            folder, resolved, calibration_ids=ids, shelf=shelf, on_progress=on_progress, cancel=cancel
        )
    backend: Backend = cpu
    if resolved.device == "cuda":
        on_card, card_notices = load_on_card(
            cpu,
            activations=resolved.activations,
            context=resolved.context,
            vram_budget=config.vram_budget,
            window=config.window,
            kv=resolved.kv,
            on_progress=on_progress,
            cancel=cancel,
        )
        notices += card_notices
        backend = on_card or cpu
    on_progress(LoadProgress(LoadStage.CHECK))
    backend, check_notices = _checked(backend, cpu, resolved, cancel)
    if backend is cpu:
        resolved = replace(resolved, device="cpu")
    try:
        keep_states = config.keep_states and model_identity(folder) == model  # else they changed meanwhile
        states = open_states(
            backend,
            model=model if keep_states else "",
            numerics=numerics(resolved, ids),
            kv=resolved.kv,
            context=resolved.context,
            slots=resolved.slots,
            ram_budget=config.state_ram_budget,
            disk_budget=config.state_disk_budget,
            root=config.states_folder,
            fallback=cpu,
        )
    except BaseException:
        backend.close()
        raise
    device_notices = () if backend is cpu else backend.notices
    told = (
        *folder.notices,
        *tokenizer.notices,
        *notices,
        *cpu.notices,
        *device_notices,
        *check_notices,
    )
    return LoadedModel(
        summary=_summary(folder, resolved, backend, told, cpu.counts),
        config=resolved,
        tokenizer=tokenizer,
        template=template,
        backend=backend,
        states=states,
        end_ids=folder.eos_token_ids | tokenizer.eos_ids,
        shelf=shelf,
    )


def _has_strips(folder: ModelFolder) -> bool:
    """Whether matrices are strips in the files already."""
    return has_native_strips(folder.parameters, folder.tensors.tensors())


def _resolve(
    folder: ModelFolder,
    config: EngineConfig,
    card: CardInfo | NoCard | None,
    cancel: threading.Event | None,
) -> tuple[ResolvedConfig, tuple[Notice, ...]]:
    """What the load is going to do. Raises OutOfMemoryError where strips don't fit."""
    sizes = weight_bytes(folder.spec, folder.parameters, folder.tensors.tensors(), group=weight_group(config))
    _let_states_be_written(_WIDENED * sizes.native, cancel)
    has_strips = _has_strips(folder)
    resolved, notices = resolve_config(
        config,
        folder.spec,
        sizes=sizes,
        available=available_bytes(),
        card=card,
        stored_packed=has_strips,
    )
    if resolved.weights != "native" or has_strips:
        check_weights_fit(sizes.of(resolved.weights), _FORMS[resolved.weights])
    return resolved, tuple(notices)


def _let_states_be_written(needed: int, cancel: threading.Event | None) -> None:
    """Waits for `needed` bytes, or as many as there will be: what an unloaded model computed takes memory
    until it is on disk.
    """
    while pending_bytes() and available_bytes() - RESERVE_BYTES < needed:
        _stop_if(cancel)
        wait_for_a_file(_SECONDS_BETWEEN_LOOKS)


def _load_backend(
    folder: ModelFolder,
    config: ResolvedConfig,
    *,
    calibration_ids: Sequence[int],
    shelf: StripShelf | None,
    on_progress: ProgressCallback,
    cancel: threading.Event | None,
) -> CpuBackend:
    """Brings torch in, and the weights."""
    on_progress(LoadProgress(LoadStage.RUNTIME))
    prepare_runtime(config.threads)
    _stop_if(cancel)
    from engine.cpu.backend import CpuBackend

    return CpuBackend.load(
        folder.spec,
        folder.parameters,
        folder.tensors,
        weights=config.weights,
        group=config.weight_group,
        activations=config.activations,
        calibration_ids=calibration_ids,
        shelf=shelf,
        on_progress=on_progress,
        cancel=cancel,
    )


def _summary(
    folder: ModelFolder,
    config: ResolvedConfig,
    backend: Backend,
    notices: Sequence[Notice],
    matrices: MatrixCounts | None,
) -> ModelSummary:
    return ModelSummary(
        path=folder.path,
        name=folder.name,
        family=folder.spec.family,
        architecture=folder.spec.architecture,
        kind=folder.kind,
        parameters=sum(parameter.num_elements for parameter in folder.parameters),
        weight_bytes=backend.weight_bytes,
        context_length=config.context,
        layers=folder.spec.num_layers,
        device=backend.device,
        device_description=backend.description,
        sampling_defaults=folder.sampling_defaults,
        notices=tuple(notices),
        weights=config.weights,
        matrices=matrices,
    )


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
        calibration=ids_digest(calibration_ids),
    )
    return StripShelf(StripCache(strips_folder()), key, lambda: model_identity(folder))


def _kernel_texts(config: ResolvedConfig, *, strips: bool) -> list[str]:
    """The kernels that the CPU backend is going to ask for. What chooses codes comes last: it is asked for
    only where there are none.
    """
    texts = [swiglu_ir.kernel_text(), kv_ir.kernel_text(config.kv)]
    if strips:
        texts.insert(0, strip_ir.kernel_text())
    return [*texts, code_ir.kernel_text()] if config.weights == "q4" else texts


def _checked(
    backend: Backend, cpu: CpuBackend, config: ResolvedConfig, cancel: threading.Event | None
) -> tuple[Backend, tuple[Notice, ...]]:
    """The backend that computes: the CPU's where the card doesn't come through the self-check, and why."""
    try:
        return backend, _self_check(backend, config, cancel)
    except (DeviceFaultError, OutOfMemoryError, ComputeFaultError) as error:
        backend.close()
        if backend is cpu:
            raise
        notice = fallback_notice(error)
    except BaseException:
        backend.close()
        raise
    return cpu, (notice, *_self_check(cpu, config, cancel))


def _self_check(
    backend: Backend, config: ResolvedConfig, cancel: threading.Event | None
) -> tuple[Notice, ...]:
    """Runs a few fixed tokens, no more than the context holds, over such a cache as answers use. Raises
    ComputeFaultError when logits aren't numbers.

    One after the other: together they would cost as much as the whole page that a prompt of any length fills.
    What is computed of real prompts is checked anyway.

    A model that answers the same to everything may be sound (some are made for tests so), so that is only
    told.
    """
    import torch

    vocab_size = backend.spec.vocab_size
    count = min(_CHECK_TOKENS, config.context)
    ids = [(2 * i + 1) * vocab_size // (2 * count) for i in range(count)]
    with closing(backend.new_cache(config.kv)) as cache:
        logits = torch.stack([backend.forward([token], cache, cancel=cancel) for token in ids])
    check_finite(logits)
    if min(vocab_size, count) > 1 and len(set(logits.argmax(-1).tolist())) == 1:
        return (
            Notice(
                "self-check-repeats",
                f"The model predicts the same token after each of {count} different ones; "
                "its weights may be damaged.",
                "If its answers make no sense, get the files again.",
            ),
        )
    return ()


def _stop_if(cancel: threading.Event | None) -> None:
    if cancel is not None and cancel.is_set():
        raise Cancelled
