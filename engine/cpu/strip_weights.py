"""Reads a model layer by layer and keeps its matrices as strips.

Each layer is read as it is stored, the calibration text goes through it (4 bits only: 8 lose next to nothing
anyway), its matrices become strips, and what was read is freed. So the most that is ever held is the strips
and one layer, or the head.

Embedding, norms, biases and routers stay as stored. The head is a strip, also where it is the embedding: rows
are looked up in the one and multiplied with the other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from engine.checkpoints.foreign_files import shown
from engine.cpu.calibration import Calibration
from engine.cpu.memory import RESERVE_BYTES, available_bytes, mebibytes
from engine.cpu.model import ModelWeights, build_layer, build_weights
from engine.cpu.strip_kernels import strip_kernels
from engine.cpu.weights import ParameterFiller, stored_type
from engine.errors import Cancelled, ModelFileError, OutOfMemoryError
from engine.models.spec import ModelSpec, Parameter, Piece
from engine.notices import Notice
from engine.progress import LoadProgress, LoadStage, ProgressCallback
from engine.weights.quantise import LARGEST_WEIGHT, quantise
from engine.weights.sizes import MatrixCounts, is_strip, weight_bytes
from engine.weights.source import StripSource, TensorSource
from engine.weights.strip_shelf import NoShelf, Shelf, StripShelf, strip_names
from engine.weights.strips import Bits, Group, Strip, codes_of, concatenate, fits, take_rows

GROUP: Group = 32
_CALIBRATION_WORK = 1.5e12  # tokens times numbers: half a minute of two slow cores
_FEWEST_TOKENS = 256


@dataclass(frozen=True)
class LoadedStrips:
    weights: ModelWeights
    counts: MatrixCounts
    notices: tuple[Notice, ...]


def load_strips(
    spec: ModelSpec,
    parameters: Sequence[Parameter],
    source: TensorSource,
    *,
    bits: Bits,
    calibration_ids: Sequence[int],
    shelf: StripShelf | None = None,
    on_progress: ProgressCallback,
    cancel: threading.Event | None,
) -> LoadedStrips:
    """calibration_ids: some text of the model's language, only looked at for 4 bits; may be empty. shelf:
    where strips are kept from one load to the next; None keeps none.

    Raises OutOfMemoryError before reading anything, Cancelled, and ModelFileError for weights that are no
    numbers, with the tensor's name.
    """
    sizes = weight_bytes(spec, parameters, source.tensors())
    needed, available = (sizes.q4 if bits == 4 else sizes.q8), max(0, available_bytes() - RESERVE_BYTES)
    if needed > available:
        raise OutOfMemoryError(
            f"The weights need {mebibytes(needed)} of memory as {bits}-bit strips, "
            f"but {mebibytes(available)} are free.",
            "Close other programs or choose a smaller model.",
        )
    # Not inference mode: it holds for one thread, and the quantiser's others may not write to its tensors.
    with torch.no_grad():

        def load(shelf: Shelf) -> LoadedStrips:
            loader = _StripLoader(spec, parameters, source, bits, shelf, on_progress, cancel)
            return loader.load(calibration_ids)

        if shelf is None:
            return load(NoShelf())
        loaded = shelf.run(_names(spec, parameters), load)
    return replace(loaded, notices=(*loaded.notices, *shelf.notices))


def _names(spec: ModelSpec, parameters: Sequence[Parameter]) -> list[str]:
    """Of every matrix that becomes a strip."""
    shapes = {parameter.name: parameter.shape for parameter in parameters if is_strip(parameter.name)}
    if spec.tied_embeddings:
        shapes["head"] = next(parameter.shape for parameter in parameters if parameter.name == "embed")
    return [
        each
        for name, shape in shapes.items()
        if fits(shape[-1], GROUP)
        for each in strip_names(name, _num_matrices(shape))
    ]


def _num_matrices(shape: Sequence[int]) -> int:
    return shape[0] if len(shape) == 3 else 1


def calibration_length(parameters: Sequence[Parameter], available: int) -> int:
    """How many of `available` tokens a model is calibrated with: fewer for larger ones."""
    total = sum(parameter.num_elements for parameter in parameters)
    return min(available, max(_FEWEST_TOKENS, int(_CALIBRATION_WORK / max(1, total))))


class _StripLoader:
    """One load. Tensors wait in `_tensors` until they are strips; those that stay, stay."""

    def __init__(
        self,
        spec: ModelSpec,
        parameters: Sequence[Parameter],
        source: TensorSource,
        bits: Bits,
        shelf: Shelf,
        on_progress: ProgressCallback,
        cancel: threading.Event | None,
    ) -> None:
        self._spec = spec
        self._parameters = parameters
        self._source = source
        self._infos = source.tensors()
        self._bits: Bits = bits
        self._shelf = shelf
        self._on_progress = on_progress
        self._cancel = cancel
        self._tensors: dict[str, torch.Tensor] = {}
        self._strips: dict[str, Sequence[Strip]] = {}
        self._counts = {"native": 0, "q8": 0, "q4": 0}
        self._done = 0
        self._total = sum(self._num_bytes(parameter) for parameter in parameters)
        if spec.tied_embeddings:
            self._total += self._num_bytes(self._named("embed"))  # once for the rows, once for the head

    def load(self, calibration_ids: Sequence[int]) -> LoadedStrips:
        spec = self._spec
        self._advance(0)
        self._read([self._named("embed")])
        self._finish(["embed"])
        calibration = self._calibration(calibration_ids)
        for index, layer in enumerate(spec.layers):
            prefix = f"layers.{index}."
            own = [parameter for parameter in self._parameters if parameter.name.startswith(prefix)]
            self._read(own)
            importance: Mapping[str, Sequence[torch.Tensor | None]] = {}
            if calibration is not None:
                importance = calibration.run(build_layer(index, layer, self._tensors, strips=self._strips))
            for parameter in own:
                if is_strip(parameter.name):
                    self._quantise(parameter, importance.get(parameter.name.removeprefix(prefix)))
            self._finish([parameter.name for parameter in own])
        self._load_head(calibration)
        weights = build_weights(spec, self._tensors, self._strips)
        return LoadedStrips(weights, MatrixCounts(**self._counts), tuple(self._notices()))

    def _notices(self) -> Iterator[Notice]:
        kept = self._counts["native"]
        if kept:
            yield Notice(
                "matrices-not-packed",
                f"{kept} of {sum(self._counts.values())} matrices stay as they are stored, because their "
                f"rows don't divide into groups of {GROUP}.",
            )
        if strip_kernels() is None:
            yield Notice(
                "strip-kernels-missing",
                "The fast products for packed weights can't be compiled here, so answers come slower.",
                "Install the package llvmlite, 0.45 or newer, or choose native weights.",
            )

    def _load_head(self, calibration: Calibration | None) -> None:
        self._read([self._named("final_norm")])
        self._finish(["final_norm"])
        importance = None
        if calibration is not None:
            importance = calibration.hidden_importance(self._tensors["final_norm"], self._spec.norm_eps)
        stored = self._named("embed" if self._spec.tied_embeddings else "head")
        head = Parameter("head", stored.shape, stored.pieces)
        if self._spec.tied_embeddings:
            self._read_as_strip(head)
            self._tensors["head"] = self._tensors["embed"]
        else:
            self._read([head])
        self._quantise(head, [importance])
        if self._spec.tied_embeddings:
            self._tensors.pop("head", None)
        self._finish([stored.name])

    def _calibration(self, ids: Sequence[int]) -> Calibration | None:
        if self._bits != 4 or self._shelf.filled or not ids:
            return None
        length = calibration_length(self._parameters, len(ids))
        hidden = self._tensors["embed"].index_select(0, torch.tensor(ids[:length])).float()
        return Calibration(hidden, norm_eps=self._spec.norm_eps, cancel=self._cancel)

    def _read(self, parameters: Sequence[Parameter]) -> None:
        """Into strips where the file has them, else as stored."""
        for parameter in parameters:
            self._stop_if_cancelled()
            if is_strip(parameter.name) and self._read_as_strip(parameter):
                continue
            filler = ParameterFiller(parameter, stored_type(parameter, self._infos))
            for piece in parameter.pieces:
                filler.add(piece, self._source.read(piece.source))
            self._tensors[parameter.name] = filler.finished()

    def _read_as_strip(self, parameter: Parameter) -> bool:
        """Whether its strips are kept from an earlier load, or all pieces are stored as strips with at most
        the bits that are asked for.
        """
        kept = self._shelf.read(parameter.name, _num_matrices(parameter.shape))
        if kept is not None:
            self._keep(parameter.name, kept)
            return True
        source = self._source
        if not isinstance(source, StripSource) or any(piece.transpose for piece in parameter.pieces):
            return False
        found: list[Strip] = []
        for piece in parameter.pieces:
            strip = source.read_strip(piece.source)
            if strip is None or strip.bits > self._bits:
                return False
            found.append(strip)
        if len({strip.bits for strip in found}) > 1:
            found = [_with_8_bits(strip) for strip in found]
        self._keep(parameter.name, _split_experts(parameter, found))
        return True

    def _quantise(self, parameter: Parameter, importance: Sequence[torch.Tensor | None] | None) -> None:
        """One matrix (N, K), or each of a stack (E, N, K). Those whose rows can't be cut into groups stay."""
        if parameter.name in self._strips:
            return
        weight = self._tensors[parameter.name]
        stack = weight if weight.ndim == 3 else weight[None]
        if not fits(weight.shape[-1], GROUP):
            self._counts["native"] += len(stack)
            return
        weights = importance if importance is not None else [None] * len(stack)
        strips = []
        for matrix, each in zip(stack, weights, strict=True):
            self._stop_if_cancelled()
            try:
                strips.append(quantise(matrix, bits=self._bits, group=GROUP, importance=each))
            except ModelFileError as error:
                name = self._bad_tensor(parameter)
                raise ModelFileError(f"{name}: {error.message}", "Download the model again.") from error
        self._keep(parameter.name, strips)
        del self._tensors[parameter.name]

    def _keep(self, name: str, strips: Sequence[Strip]) -> None:
        self._strips[name] = strips
        self._shelf.add(name, strips)
        for strip in strips:
            self._counts["q8" if strip.bits == 8 else "q4"] += 1

    def _bad_tensor(self, parameter: Parameter) -> str:
        """The name in the file of the piece that can't be quantised, read again to find it."""
        for piece in parameter.pieces:
            if not bool((self._source.read(piece.source).abs() <= LARGEST_WEIGHT).all()):
                return shown(self._infos[piece.source].stored_name)
        return shown(parameter.name)

    def _finish(self, names: Sequence[str]) -> None:
        for name in names:
            self._advance(self._num_bytes(self._named(name)))

    def _advance(self, num_bytes: int) -> None:
        self._done += num_bytes
        self._on_progress(LoadProgress(LoadStage.WEIGHTS, self._done, self._total))

    def _stop_if_cancelled(self) -> None:
        if self._cancel is not None and self._cancel.is_set():
            raise Cancelled

    def _named(self, name: str) -> Parameter:
        return next(parameter for parameter in self._parameters if parameter.name == name)

    def _num_bytes(self, parameter: Parameter) -> int:
        return sum(self._infos[piece.source].num_bytes for piece in parameter.pieces)


def _with_8_bits(strip: Strip) -> Strip:
    return Strip(8, strip.group, codes_of(strip), strip.scales, strip.offsets)


def _split_experts(parameter: Parameter, strips: Sequence[Strip]) -> list[Strip]:
    """One strip for each matrix of the parameter, from those of its pieces (see `Parameter`)."""
    if len(parameter.shape) == 2:
        return [strips[0] if len(strips) == 1 else concatenate(strips)]
    num_experts = parameter.shape[0]
    stacked = len(parameter.pieces[0].shape) == 3
    if not stacked:
        per_expert = len(strips) // num_experts
        return [
            concatenate(strips[first : first + per_expert]) for first in range(0, len(strips), per_expert)
        ]
    return [
        concatenate(
            [
                _expert_rows(piece, strip, expert)
                for piece, strip in zip(parameter.pieces, strips, strict=True)
            ]
        )
        for expert in range(num_experts)
    ]


def _expert_rows(piece: Piece, strip: Strip, expert: int) -> Strip:
    rows = piece.shape[1]
    return take_rows(strip, expert * rows, (expert + 1) * rows)
