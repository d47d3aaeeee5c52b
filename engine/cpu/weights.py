"""Reads a model's parameters from its files into memory, fusing the pieces, and says how far it is.

Everything is checked before the first byte: whether the weights fit as float32, else as stored. Only then are
they read, one piece at a time, so that the peak is the weights plus one piece.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from engine.checkpoints.foreign_files import shown
from engine.cpu.load_meter import LoadMeter
from engine.cpu.memory import RESERVE_BYTES, available_bytes, mebibytes
from engine.errors import ModelFileError, OutOfMemoryError
from engine.models.spec import Parameter, Piece
from engine.notices import Notice
from engine.progress import ProgressCallback
from engine.weights.packing import stored_dtype
from engine.weights.sizes import native_bytes
from engine.weights.source import TensorInfo, TensorSource

_TYPES: Mapping[str, torch.dtype] = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


@dataclass(frozen=True)
class LoadedParameters:
    """`tensors` by parameter name; everything with fewer than two axes is float32 in any case."""

    tensors: dict[str, torch.Tensor]
    notices: tuple[Notice, ...]


def load_parameters(
    parameters: Sequence[Parameter],
    source: TensorSource,
    *,
    on_progress: ProgressCallback,
    cancel: threading.Event | None,
) -> LoadedParameters:
    """Raises OutOfMemoryError before reading anything, Cancelled within milliseconds, ModelFileError."""
    infos = source.tensors()
    types, notices = _choose_types(parameters, infos)
    total = sum(infos[piece.source].num_bytes for parameter in parameters for piece in parameter.pieces)
    meter = LoadMeter(total, on_progress, cancel)
    tensors: dict[str, torch.Tensor] = {}
    for parameter in parameters:
        filler = ParameterFiller(parameter, types[parameter.name])
        for piece in parameter.pieces:
            meter.check()
            tensor = source.read(piece.source, meter.advance)
            check_numbers(tensor, infos[piece.source].stored_name)
            filler.add(piece, tensor)
        tensors[parameter.name] = filler.finished()
    meter.finish()
    return LoadedParameters(tensors, notices)


def _choose_types(
    parameters: Sequence[Parameter], infos: Mapping[str, TensorInfo]
) -> tuple[dict[str, torch.dtype], tuple[Notice, ...]]:
    """Float32 for everything if that fits; else matrices as they are stored, if that fits."""
    wide = {parameter.name: torch.float32 for parameter in parameters}
    stored = {parameter.name: stored_type(parameter, infos) for parameter in parameters}
    available = max(0, available_bytes() - RESERVE_BYTES)
    wide_bytes, stored_bytes = (native_bytes(parameters, infos, wide=each) for each in (True, False))
    if wide_bytes <= available:
        return wide, ()
    if stored_bytes > available:
        raise OutOfMemoryError(
            f"The weights need {mebibytes(stored_bytes)} of memory, but {mebibytes(available)} are free.",
            "Close other programs or choose a smaller model.",
        )
    notice = Notice(
        "weights-not-widened",
        f"The weights stay in 16 bits, because float32 would need {mebibytes(wide_bytes)} of memory "
        f"and {mebibytes(available)} are free; answers are the same, but slower.",
        "Close other programs and load the model again to have it run faster.",
    )
    return stored, (notice,)


def stored_type(parameter: Parameter, infos: Mapping[str, TensorInfo]) -> torch.dtype:
    """In which a parameter is held that stays as it is."""
    return _TYPES[stored_dtype(parameter, infos)]


def check_numbers(tensor: torch.Tensor, stored_name: str) -> None:
    """Raises ModelFileError, with the tensor's name, for weights that are no numbers: one alone may show only
    in some answer, hours later.
    """
    if tensor.numel() and not all(bool(bound.isfinite()) for bound in torch.aminmax(tensor)):
        raise ModelFileError(
            f"{shown(stored_name)}: Some of its numbers are not finite.", "Download the model again."
        )


class ParameterFiller:
    """One parameter while its pieces come in, in order."""

    def __init__(self, parameter: Parameter, dtype: torch.dtype) -> None:
        self._parameter = parameter
        self._dtype = dtype
        self._target: torch.Tensor | None = None
        self._places = self._slots()

    def add(self, piece: Piece, tensor: torch.Tensor) -> None:
        assert tuple(tensor.shape) == piece.shape, f"{piece.source} changed its shape since it was checked"
        if piece.transpose:
            tensor = tensor.transpose(-1, -2)
        if len(self._parameter.pieces) == 1:
            # A sole piece needs no second copy when it is already as wanted.
            self._target = tensor.to(self._dtype).contiguous().view(self._parameter.shape)
            return
        next(self._places).copy_(tensor)

    def finished(self) -> torch.Tensor:
        assert self._target is not None, f"{self._parameter.name} has no pieces"
        assert len(self._parameter.pieces) == 1 or next(self._places, None) is None
        return self._target

    def _slots(self) -> Iterator[torch.Tensor]:
        """Views of the target for each piece, laid one after the other; the layout is told at `Parameter`."""
        parameter = self._parameter
        self._target = target = torch.empty(parameter.shape, dtype=self._dtype)
        stacked = len(parameter.shape) == 3 and len(parameter.pieces[0].shape) == 3
        axis = 1 if stacked else 0
        rows = target if stacked or len(parameter.shape) < 3 else target.view(-1, parameter.shape[-1])
        first = 0
        for piece in parameter.pieces:
            shape = (*piece.shape[:-2], piece.shape[-1], piece.shape[-2]) if piece.transpose else piece.shape
            yield rows.narrow(axis, first, shape[axis])
            first += shape[axis]
        assert first == rows.shape[axis], f"the pieces of {parameter.name} leave rows unfilled"
