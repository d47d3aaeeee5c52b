"""What becomes of a parameter while a model is loaded as strips: those that are there already are taken, from
the shelf or from the file; numbers are read, and where they are matrices, made strips.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from engine.checkpoints.foreign_files import shown
from engine.cpu.calibration import CalibrationEffort
from engine.cpu.code_kernel import improve
from engine.cpu.load_meter import LoadMeter
from engine.cpu.weights import ParameterFiller, check_numbers, stored_type
from engine.errors import ModelFileError
from engine.models.spec import ModelSpec, Parameter
from engine.weights.calibrated_strip import calibrated_strip
from engine.weights.gguf_blocks import BlockMatrix
from engine.weights.input_statistics import InputStatistics
from engine.weights.packing import is_strip, stored_strip, strip_form, strip_rows, tied_head
from engine.weights.quantise import LARGEST_WEIGHT, WeightRows
from engine.weights.source import StoredStrip, StripSource, TensorInfo, TensorSource
from engine.weights.stored_strips import matrices_of, members_of
from engine.weights.strip_shelf import Shelf
from engine.weights.strips import BLOCK, Bits, Group, Strip

READING = 0.25  # of the work on a matrix that becomes a strip; the rest is quantising


def is_made(parameter: Parameter, infos: Mapping[str, TensorInfo], bits: Bits | None) -> bool:
    """Whether a strip is made of it, and not read from the files as one."""
    return (
        strip_form(parameter, infos, bits=bits, group=BLOCK) is not None
        and stored_strip(parameter, infos, bits) is None
    )


def num_strips(spec: ModelSpec, parameter: Parameter) -> int:
    num_matrices = parameter.shape[0] if len(parameter.shape) == 3 else 1
    return num_matrices * len(strip_rows(spec, parameter))


class StripMaker:
    """Of one load. `tensors` are as stored: they stay, or wait there until they are `strips`. counts: of
    matrices, by form.
    """

    def __init__(
        self,
        spec: ModelSpec,
        parameters: Mapping[str, Parameter],
        source: TensorSource,
        *,
        bits: Bits | None,
        group: Group,
        effort: CalibrationEffort,
        shelf: Shelf,
        meter: LoadMeter,
    ) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.strips: dict[str, Sequence[Strip]] = {}
        self.counts = {"native": 0, "q8": 0, "q4": 0}
        self.narrow = 0  # matrices whose rows don't divide by the group that was asked for, but by 32
        self.not_kept = 0  # matrices that are strips by the headers, and by their numbers aren't
        self._spec = spec
        self._source = source
        self._infos = source.tensors()
        self._bits = bits
        self._group: Group = group
        self._effort = effort
        self._shelf = shelf
        self._meter = meter
        named = [*parameters.values(), *([tied_head(parameters)] if spec.tied_embeddings else [])]
        self._made = {each.name for each in named if is_made(each, self._infos, bits)}

    def read(self, parameters: Sequence[Parameter]) -> None:
        """Into strips where there are some, else as stored."""
        for parameter in parameters:
            if not self.read_as_strip(parameter):
                self.read_tensor(parameter)

    def read_tensor(self, parameter: Parameter) -> None:
        becomes_strip = self.form(parameter) is not None
        share = READING if becomes_strip else 1.0

        def on_bytes(count: int) -> None:
            self._meter.advance(share * count)

        filler = ParameterFiller(parameter, stored_type(parameter, self._infos))
        for piece in parameter.pieces:
            self._meter.check()
            tensor = self._source.read(piece.source, on_bytes)
            if not becomes_strip:  # else the quantiser looks, some rows at a time
                check_numbers(tensor, self._infos[piece.source].stored_name)
            filler.add(piece, tensor)
        self.tensors[parameter.name] = filler.finished()

    def read_as_strip(self, parameter: Parameter) -> bool:
        """Whether its strips are kept from an earlier load, or the file has them."""
        if not is_strip(parameter.name):
            return False
        self._meter.check()
        strips = self._shelf.read(parameter.name, num_strips(self._spec, parameter))
        if strips is not None:
            self._meter.advance(self.num_bytes(parameter))
        else:
            strips = self.stored_strips(parameter)
        if strips is None:
            return False
        self.keep(parameter.name, strips)
        return True

    def stored_strips(self, parameter: Parameter) -> Sequence[Strip] | None:
        """From the file, where it has all pieces as strips with at most the bits that are asked for."""
        source = self._source
        if not isinstance(source, StripSource) or stored_strip(parameter, self._infos, self._bits) is None:
            return None
        found: list[Strip] = []
        come = 0

        def on_bytes(count: int) -> None:
            nonlocal come
            come += count
            self._meter.advance(count)

        for piece in parameter.pieces:
            self._meter.check()
            strip = source.read_strip(piece.source, on_bytes)
            if strip is None:
                self._meter.advance(-come)  # they are read again
                self.not_kept += num_strips(self._spec, parameter)
                return None
            found.append(strip)
        return members_of(matrices_of(parameter, found), strip_rows(self._spec, parameter))

    def quantise(self, parameter: Parameter, statistics: Sequence[InputStatistics | None] | None) -> None:
        """One matrix (N, K), or each of a stack (E, N, K). Those whose rows can't be cut into groups stay."""
        if parameter.name in self.strips:
            return
        weight = self.tensors[parameter.name]
        stack = weight if weight.ndim == 3 else weight[None]
        if self.form(parameter) is None:
            self.counts["native"] += len(stack)
            return
        rows = list(strip_rows(self._spec, parameter))
        inputs = statistics if statistics is not None else [None] * len(stack)
        members = [part for matrix in stack for part in matrix.split(rows)]
        strips = self._quantised(parameter, members, [each for each in inputs for _ in rows])
        self.keep(parameter.name, strips)
        del self.tensors[parameter.name]

    def quantise_blocks(
        self, parameter: Parameter, blocks: BlockMatrix, statistics: InputStatistics | None
    ) -> None:
        """A matrix that is still in a GGUF type's blocks: it becomes numbers some rows at a time."""
        self.keep(parameter.name, self._quantised(parameter, [blocks], [statistics]))

    def _quantised(
        self,
        parameter: Parameter,
        members: Sequence[WeightRows],
        statistics: Sequence[InputStatistics | None],
    ) -> list[Strip]:
        """A strip of each member of its matrices. Raises ModelFileError with the tensor's name."""
        form = self.form(parameter)
        assert form is not None
        # With None it is a stored strip that turned out to be none: 8 bits lose least.
        bits: Bits = 8 if self._bits is None else self._bits
        num_rows = sum(member.shape[0] for member in members)
        bytes_per_row = (1 - READING) * self.num_bytes(parameter) / num_rows
        strips = []
        for matrix, each in zip(members, statistics, strict=True):
            try:
                strip = calibrated_strip(
                    matrix,
                    each,
                    bits=bits,
                    group=form.group,
                    sweeps=self._effort.sweeps,
                    improve=improve,
                    on_rows=lambda count: self._meter.advance(bytes_per_row * count),
                )
            except ModelFileError as error:
                name = self._bad_tensor(parameter)
                raise ModelFileError(f"{name}: {error.message}", "Download the model again.") from error
            strips.append(strip)
        return strips

    def form(self, parameter: Parameter) -> StoredStrip | None:
        return strip_form(parameter, self._infos, bits=self._bits, group=self._group)

    def keep(self, name: str, strips: Sequence[Strip]) -> None:
        self.strips[name] = strips
        if name in self._made:
            self._shelf.add(name, strips)
            self.narrow += sum(strip.group != self._group for strip in strips)
        for strip in strips:
            self.counts["q8" if strip.bits == 8 else "q4"] += 1

    def _bad_tensor(self, parameter: Parameter) -> str:
        """The name in the file of the piece that can't be quantised, read again to find it."""
        for piece in parameter.pieces:
            if not bool((self._source.read(piece.source).abs() <= LARGEST_WEIGHT).all()):
                return shown(self._infos[piece.source].stored_name)
        return shown(parameter.name)

    def num_bytes(self, parameter: Parameter) -> int:
        return sum(self._infos[piece.source].num_bytes for piece in parameter.pieces)
