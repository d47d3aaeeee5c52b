"""A model of random weights, on the device that it is to be measured on: of true shapes, of no meaning."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from engine.backend import Backend
from engine.bench.configuration import Configuration
from engine.card_loading import card_for
from engine.code_cache import CodeCache
from engine.config import EngineConfig, WeightFormat
from engine.cpu.backend import CpuBackend
from engine.cpu.memory import available_bytes, check_weights_fit, failed_allocations_told
from engine.cpu.model import ModelWeights, build_weights
from engine.cuda.availability import open_card
from engine.cuda.backend import CudaBackend
from engine.cuda.driver import CardInfo
from engine.cuda.nvrtc_compiler import NvrtcCompiler
from engine.cuda.random_weights import RandomRows, RandomUploader
from engine.default_folders import code_folder
from engine.errors import OutOfMemoryError
from engine.models.spec import ModelSpec, Parameter
from engine.notices import Notice
from engine.progress import LoadProgress, LoadStage, ProgressCallback
from engine.resolution import ResolvedConfig, resolve_config, weight_group
from engine.runtime import prepare_runtime
from engine.weights.packing import strip_form, strip_rows, tied_head
from engine.weights.random_scales import number_bound, strip_scale
from engine.weights.sizes import MatrixCounts, WeightBytes, weight_bytes
from engine.weights.source import StoredStrip, TensorInfo
from engine.weights.strips import LARGEST_CODE, SMALLEST_CODE, Bits, Strip, pack
from engine.wording import format_size

_BITS: Mapping[WeightFormat, Bits | None] = {"native": None, "q8": 8, "q4": 4}
_SEED = 20_260_101
_AMPLE = 2**62  # bytes: of the computer's memory, a model that is made on the card needs next to none


class Maker(Protocol):
    """Makes what a parameter is held as."""

    def strip(self, rows: int, columns: int, form: StoredStrip) -> Strip: ...
    def matrix(self, shape: tuple[int, ...]) -> torch.Tensor: ...


class ShapesOnly:
    """Memory that nobody has written to takes none, and all of one shape share it."""

    def __init__(self) -> None:
        self.strip = functools.cache(self._strip)
        self.matrix = functools.cache(self._matrix)

    def _strip(self, rows: int, columns: int, form: StoredStrip) -> Strip:
        scales = torch.ones(rows, columns // form.group)
        if form.bits == 8:
            return Strip(8, form.group, torch.empty(rows, columns, dtype=torch.int8), scales)
        return Strip(4, form.group, torch.empty(rows, columns // 2, dtype=torch.uint8), scales)

    def _matrix(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16)


class RandomNumbers:
    """The same in every run. dtype: of what is no strip."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._generator = torch.Generator().manual_seed(_SEED)

    def strip(self, rows: int, columns: int, form: StoredStrip) -> Strip:
        low, high = SMALLEST_CODE[form.bits], LARGEST_CODE[form.bits] + 1
        codes = torch.randint(low, high, (rows, columns), dtype=torch.int8, generator=self._generator)
        scales = torch.full((rows, columns // form.group), strip_scale(form.bits, columns))
        return Strip(form.bits, form.group, codes if form.bits == 8 else pack(codes), scales)

    def matrix(self, shape: tuple[int, ...]) -> torch.Tensor:
        bound = number_bound(shape[-1])
        return torch.empty(shape, dtype=self._dtype).uniform_(-bound, bound, generator=self._generator)


@dataclass(frozen=True)
class RandomModel:
    """See `engine.cuda.backend.HostModel`."""

    spec: ModelSpec
    weights: ModelWeights
    counts: MatrixCounts


@dataclass(frozen=True)
class RandomLoad:
    backend: Backend
    config: ResolvedConfig
    notices: tuple[Notice, ...]


def load_random(
    configuration: Configuration,
    config: EngineConfig,
    *,
    on_progress: ProgressCallback,
    cancel: threading.Event | None,
) -> RandomLoad:
    """Raises EngineError, Cancelled. The backend is the caller's to close."""
    spec, tensors = configuration.spec, configuration.tensors()
    card = card_for(config.device)
    on_card = isinstance(card, CardInfo)
    sizes = weight_bytes(spec, configuration.parameters, tensors, group=weight_group(config))
    resolved, notices = resolve_config(
        config, spec, sizes=sizes, available=_AMPLE if on_card else available_bytes(), card=card
    )
    on_progress(LoadProgress(LoadStage.WEIGHTS))
    with failed_allocations_told(), torch.inference_mode():
        maker = ShapesOnly() if on_card else _on_the_cpu(resolved, sizes)
        model = random_model(configuration, resolved, tensors, maker)
    backend: Backend
    if on_card:
        backend = _on_the_card(model, resolved, config, on_progress, cancel)
    else:
        backend = CpuBackend(spec, model.weights, counts=model.counts)
    return RandomLoad(backend, resolved, (*configuration.notices, *notices))


def random_model(
    configuration: Configuration, config: ResolvedConfig, tensors: Mapping[str, TensorInfo], maker: Maker
) -> RandomModel:
    """Every parameter in the form that a load would give it."""
    spec, bits = configuration.spec, _BITS[config.weights]
    named = {parameter.name: parameter for parameter in configuration.parameters}
    if spec.tied_embeddings:
        named["head"] = tied_head(named)
    held: dict[str, torch.Tensor] = {}
    strips: dict[str, Sequence[Strip]] = {}
    for name, parameter in named.items():
        form = strip_form(parameter, tensors, bits=bits, group=config.weight_group)
        if form is not None:
            strips[name] = _strips(spec, parameter, form, maker)
        elif name != "embed":
            held[name] = _tensor(parameter, maker)
    weights = build_weights(
        spec if "head" in strips else replace(spec, tied_embeddings=False),
        held,
        strips,
        lookup=RandomRows(spec.vocab_size, spec.hidden_size),
        activations=config.activations,
    )
    num_strips = sum(len(each) for each in strips.values())
    counts = MatrixCounts(
        q8=num_strips if config.weights == "q8" else 0, q4=num_strips if config.weights == "q4" else 0
    )
    return RandomModel(spec, weights, counts)


def _strips(spec: ModelSpec, parameter: Parameter, form: StoredStrip, maker: Maker) -> Sequence[Strip]:
    num_matrices = parameter.shape[0] if len(parameter.shape) == 3 else 1
    rows = strip_rows(spec, parameter)
    return [maker.strip(each, parameter.shape[-1], form) for _ in range(num_matrices) for each in rows]


def _tensor(parameter: Parameter, maker: Maker) -> torch.Tensor:
    if len(parameter.shape) > 1:
        return maker.matrix(parameter.shape)
    return torch.zeros(parameter.shape) if parameter.name.endswith("bias") else torch.ones(parameter.shape)


def _on_the_cpu(config: ResolvedConfig, sizes: WeightBytes) -> RandomNumbers:
    """Raises OutOfMemoryError. The embedding, which is counted, isn't made: there is some room left."""
    prepare_runtime(config.threads)
    check_weights_fit(sizes.of(config.weights), "with random numbers in them")
    return RandomNumbers(torch.bfloat16)


def _on_the_card(
    model: RandomModel,
    config: ResolvedConfig,
    given: EngineConfig,
    on_progress: ProgressCallback,
    cancel: threading.Event | None,
) -> Backend:
    """Raises what `CudaBackend` raises; nothing is held then."""
    compiler = NvrtcCompiler(cache=CodeCache(code_folder()))
    driver = open_card()
    try:
        return CudaBackend(
            model,
            driver,
            compiler,
            activations=config.activations,
            context=config.context,
            vram_budget=given.vram_budget,
            window=model.spec.num_layers,  # all: there is nothing that a window could be filled from
            kv=config.kv,
            on_progress=on_progress,
            cancel=cancel,
            uploader=RandomUploader,
        )
    except OutOfMemoryError as error:
        driver.close()
        raise OutOfMemoryError(
            f"Random weights of this shape take {format_size(model.weights.num_bytes)} as {config.weights}, "
            f"and the card has no room for them and what a step needs: {error.message}",
            "Choose fewer bits, a shorter context or a smaller configuration, or close other programs.",
        ) from error
    except BaseException:
        driver.close()
        raise
