"""Reads a model layer by layer and keeps its matrices as strips.

Each layer is read as it is stored, the calibration text goes through it (4 bits only: 8 lose next to nothing
anyway), its matrices become strips, and what was read is freed. So the most that is ever held is the strips
and one layer, or the head. A head in a GGUF type's blocks becomes numbers some rows at a time.

Which parameter takes which form is told in `engine.weights.packing`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from engine.checkpoints.foreign_files import shown
from engine.config import Activations
from engine.cpu.calibration import Calibration, effort_for
from engine.cpu.code_kernel import improve
from engine.cpu.load_meter import LoadMeter
from engine.cpu.matrices import Embedding, RowLookup, StripRows
from engine.cpu.model import ModelWeights, build_layer, build_weights
from engine.cpu.packing_notices import packing_notices
from engine.cpu.weights import ParameterFiller, check_numbers, stored_type
from engine.errors import ModelFileError
from engine.models.spec import ModelSpec, Parameter
from engine.notices import Notice
from engine.progress import ProgressCallback
from engine.runtime import release_memory
from engine.weights.calibrated_strip import calibrated_strip
from engine.weights.gguf_blocks import BlockMatrix
from engine.weights.input_statistics import InputStatistics
from engine.weights.packing import (
    EmbeddingForm,
    embedding_form,
    is_strip,
    stored_strip,
    strip_form,
    strip_rows,
    tied_head,
)
from engine.weights.quantise import CHUNK_ELEMENTS, LARGEST_WEIGHT, WeightRows
from engine.weights.sizes import MatrixCounts
from engine.weights.source import BlockSource, StoredStrip, StripSource, TensorInfo, TensorSource
from engine.weights.stored_strips import matrices_of, members_of
from engine.weights.strip_shelf import NoShelf, Shelf, StripShelf, strip_names
from engine.weights.strips import BLOCK, Bits, Group, Strip

_READING = 0.25  # of the work on a matrix that becomes a strip; the rest is quantising


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
    bits: Bits | None,
    group: Group = BLOCK,
    activations: Activations = "float",
    calibration_ids: Sequence[int],
    shelf: StripShelf | None = None,
    on_progress: ProgressCallback,
    cancel: threading.Event | None,
) -> LoadedStrips:
    """bits: None packs nothing, and what is stored as strips stays so. group: of the strips that are made;
    rows that don't divide by 256 get 32. activations: how rows go into products with strips.
    calibration_ids: some text of the model's language, only looked at for 4 bits; may be empty. shelf: where
    strips are kept from one load to the next; None keeps none.

    Raises Cancelled, and ModelFileError for weights that are no numbers, with the tensor's name.
    """
    # Not inference mode: it holds for one thread, and the quantiser's others may not write to its tensors.
    with torch.no_grad():

        def load(shelf: Shelf) -> LoadedStrips:
            meter = LoadMeter(_total(spec, parameters, source), on_progress, cancel)
            loader = _StripLoader(
                spec,
                parameters,
                source,
                bits=bits,
                group=group,
                activations=activations,
                shelf=shelf,
                meter=meter,
            )
            loaded = loader.load(calibration_ids)
            meter.finish()
            release_memory()  # small pieces of what is gone: 100 MB with a model of half a billion
            return loaded

        names = _names(spec, parameters, source.tensors(), bits)
        if shelf is None or not names:
            return load(NoShelf())
        loaded = shelf.run(names, load)
    return replace(loaded, notices=(*loaded.notices, *shelf.take_notices()))


def _names(
    spec: ModelSpec, parameters: Sequence[Parameter], infos: Mapping[str, TensorInfo], bits: Bits | None
) -> list[str]:
    """Of every matrix that has to be made a strip.

    What the files have as strips is not kept a second time: converting a 7B model's takes some two seconds of
    two cores, about what reading them from a disk takes, and they would take 5 GB more of it.
    """
    named = {parameter.name: parameter for parameter in parameters}
    if spec.tied_embeddings:
        named["head"] = tied_head(named)
    return [
        each
        for parameter in named.values()
        if _is_made(parameter, infos, bits)
        for each in strip_names(parameter.name, _num_strips(spec, parameter))
    ]


def _is_made(parameter: Parameter, infos: Mapping[str, TensorInfo], bits: Bits | None) -> bool:
    """Whether a strip is made of it, and not read from the files as one."""
    return (
        strip_form(parameter, infos, bits=bits, group=BLOCK) is not None
        and stored_strip(parameter, infos, bits) is None
    )


def _total(spec: ModelSpec, parameters: Sequence[Parameter], source: TensorSource) -> int:
    """Bytes of the files, those of a tied embedding twice: for its rows and for the head."""
    infos = source.tensors()
    pieces = [piece for parameter in parameters for piece in parameter.pieces]
    if spec.tied_embeddings:
        pieces += next(parameter.pieces for parameter in parameters if parameter.name == "embed")
    return sum(infos[piece.source].num_bytes for piece in pieces)


def _num_strips(spec: ModelSpec, parameter: Parameter) -> int:
    num_matrices = parameter.shape[0] if len(parameter.shape) == 3 else 1
    return num_matrices * len(strip_rows(spec, parameter))


class _StripLoader:
    """One load. Tensors wait in `_tensors` until they are strips; those that stay, stay."""

    def __init__(
        self,
        spec: ModelSpec,
        parameters: Sequence[Parameter],
        source: TensorSource,
        *,
        bits: Bits | None,
        group: Group,
        activations: Activations,
        shelf: Shelf,
        meter: LoadMeter,
    ) -> None:
        self._spec = spec
        self._parameters = {parameter.name: parameter for parameter in parameters}
        self._source = source
        self._infos = source.tensors()
        self._bits = bits
        self._group: Group = group
        self._activations: Activations = activations
        self._shelf = shelf
        self._meter = meter
        self._tensors: dict[str, torch.Tensor] = {}
        self._strips: dict[str, Sequence[Strip]] = {}
        self._counts = {"native": 0, "q8": 0, "q4": 0}
        named = (*parameters, tied_head(self._parameters)) if spec.tied_embeddings else parameters
        self._made = {each.name for each in named if _is_made(each, self._infos, bits)}
        self._effort = effort_for(sum(each.num_elements for each in parameters))
        self._narrow = 0  # matrices whose rows don't divide by the group that was asked for, but by 32
        self._not_kept = 0  # matrices that are strips by the headers, and by their numbers aren't

    def load(self, calibration_ids: Sequence[int]) -> LoadedStrips:
        spec = self._spec
        lookup = self._load_embedding()
        calibration = self._calibration(lookup, calibration_ids)
        for index, layer in enumerate(spec.layers):
            prefix = f"layers.{index}."
            own = [each for each in self._parameters.values() if each.name.startswith(prefix)]
            self._read(own)
            statistics: dict[str, Sequence[InputStatistics | None]] = {}
            if calibration is not None:
                held = build_layer(index, layer, self._tensors, strips=self._strips)
                statistics.update(calibration.run(held))
                del held
            for parameter in own:
                if is_strip(parameter.name):
                    self._quantise(parameter, statistics.pop(parameter.name.removeprefix(prefix), None))
            if not self._shelf.filled:
                release_memory()  # small pieces of what is gone: in all more than 100 MB of a small model
        self._load_head(lookup, calibration)
        stored = "embed" in self._tensors
        weights = build_weights(
            spec,
            self._tensors,
            self._strips,
            lookup=None if stored else lookup,
            activations=self._activations,
        )
        return LoadedStrips(weights, MatrixCounts(**self._counts), self._notices())

    def _notices(self) -> tuple[Notice, ...]:
        counts = MatrixCounts(**self._counts)
        return packing_notices(
            counts, self._bits, group=self._group, narrow=self._narrow, not_kept=self._not_kept
        )

    def _load_embedding(self) -> RowLookup:
        embed = self._parameters["embed"]
        form = embedding_form(self._spec, embed, self._infos, self._bits)
        if form is EmbeddingForm.HEAD:
            head = tied_head(self._parameters)
            # Not from the shelf: what is kept there may have been quantised, where the file's strip was none.
            strips = self._stored_strips(head)
            if strips is not None:
                self._keep("head", strips)
                self._meter.advance(self._num_bytes(head))  # the rows', too
                return StripRows(strips[0])
        source, [piece] = self._source, embed.pieces
        if form is not EmbeddingForm.STORED and isinstance(source, BlockSource):
            blocks = source.read_blocks(piece.source, self._meter.advance)
            # Those of a head are looked at when it becomes a strip, those of a load before by that load.
            if not self._spec.tied_embeddings and not self._shelf.filled:
                self._check_blocks(blocks, self._infos[piece.source].stored_name)
            return blocks
        self._read_tensor(embed)
        return Embedding(self._tensors["embed"])

    def _check_blocks(self, blocks: BlockMatrix, stored_name: str) -> None:
        """`check_numbers` for all rows, a few at a time."""
        num_rows, num_columns = blocks.shape
        step = max(1, CHUNK_ELEMENTS // num_columns)
        for start in range(0, num_rows, step):
            self._meter.check()
            check_numbers(blocks[start : start + step], stored_name)

    def _load_head(self, lookup: RowLookup, calibration: Calibration | None) -> None:
        tied = self._spec.tied_embeddings
        head = tied_head(self._parameters) if tied else self._parameters["head"]
        self._read([self._parameters["final_norm"]])
        if "head" in self._strips or self._read_as_strip(head):
            return
        statistics = None
        if calibration is not None:
            statistics = calibration.hidden_statistics(self._tensors["final_norm"], self._spec.norm_eps)
        blocks = self._head_blocks(head, lookup)
        if blocks is not None:
            self._keep(head.name, self._quantised(head, [blocks], [statistics]))
            return
        if tied and "embed" in self._tensors:
            self._tensors["head"] = self._tensors["embed"]
            self._meter.advance(_READING * self._num_bytes(head))
        else:
            self._read_tensor(head)
        self._quantise(head, [statistics])
        if tied:
            self._tensors.pop("head", None)

    def _head_blocks(self, head: Parameter, lookup: RowLookup) -> BlockMatrix | None:
        """The head in a GGUF type's blocks, where it becomes a strip: as float32 it would often be what a
        load needs most memory for.
        """
        if self._form(head) is None:
            return None
        if self._spec.tied_embeddings and isinstance(lookup, BlockMatrix):
            self._meter.advance(_READING * self._num_bytes(head))
            return lookup
        source, [piece] = self._source, head.pieces
        if "embed" in self._tensors and self._spec.tied_embeddings:
            return None
        if not isinstance(source, BlockSource) or not self._infos[piece.source].blocks:
            return None
        return source.read_blocks(piece.source, lambda count: self._meter.advance(_READING * count))

    def _calibration(self, lookup: RowLookup, ids: Sequence[int]) -> Calibration | None:
        if self._bits != 4 or self._shelf.filled or not ids:
            return None
        hidden = lookup.rows(torch.tensor(ids[: self._effort.num_tokens]))
        return Calibration(
            hidden,
            norm_eps=self._spec.norm_eps,
            widest_block=self._effort.widest_block,
            cancel=self._meter.cancel,
        )

    def _read(self, parameters: Sequence[Parameter]) -> None:
        """Into strips where there are some, else as stored."""
        for parameter in parameters:
            if not self._read_as_strip(parameter):
                self._read_tensor(parameter)

    def _read_tensor(self, parameter: Parameter) -> None:
        becomes_strip = self._form(parameter) is not None
        share = _READING if becomes_strip else 1.0

        def on_bytes(count: int) -> None:
            self._meter.advance(share * count)

        filler = ParameterFiller(parameter, stored_type(parameter, self._infos))
        for piece in parameter.pieces:
            self._meter.check()
            tensor = self._source.read(piece.source, on_bytes)
            if not becomes_strip:  # else the quantiser looks, some rows at a time
                check_numbers(tensor, self._infos[piece.source].stored_name)
            filler.add(piece, tensor)
        self._tensors[parameter.name] = filler.finished()

    def _read_as_strip(self, parameter: Parameter) -> bool:
        """Whether its strips are kept from an earlier load, or the file has them."""
        if not is_strip(parameter.name):
            return False
        self._meter.check()
        strips = self._shelf.read(parameter.name, _num_strips(self._spec, parameter))
        if strips is not None:
            self._meter.advance(self._num_bytes(parameter))
        else:
            strips = self._stored_strips(parameter)
        if strips is None:
            return False
        self._keep(parameter.name, strips)
        return True

    def _stored_strips(self, parameter: Parameter) -> Sequence[Strip] | None:
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
                self._not_kept += _num_strips(self._spec, parameter)
                return None
            found.append(strip)
        return members_of(matrices_of(parameter, found), strip_rows(self._spec, parameter))

    def _quantise(self, parameter: Parameter, statistics: Sequence[InputStatistics | None] | None) -> None:
        """One matrix (N, K), or each of a stack (E, N, K). Those whose rows can't be cut into groups stay."""
        if parameter.name in self._strips:
            return
        weight = self._tensors[parameter.name]
        stack = weight if weight.ndim == 3 else weight[None]
        if self._form(parameter) is None:
            self._counts["native"] += len(stack)
            return
        rows = list(strip_rows(self._spec, parameter))
        inputs = statistics if statistics is not None else [None] * len(stack)
        members = [part for matrix in stack for part in matrix.split(rows)]
        strips = self._quantised(parameter, members, [each for each in inputs for _ in rows])
        self._keep(parameter.name, strips)
        del self._tensors[parameter.name]

    def _quantised(
        self,
        parameter: Parameter,
        members: Sequence[WeightRows],
        statistics: Sequence[InputStatistics | None],
    ) -> list[Strip]:
        """A strip of each member of its matrices. Raises ModelFileError with the tensor's name."""
        form = self._form(parameter)
        assert form is not None
        # With None it is a stored strip that turned out to be none: 8 bits lose least.
        bits: Bits = 8 if self._bits is None else self._bits
        num_rows = sum(member.shape[0] for member in members)
        bytes_per_row = (1 - _READING) * self._num_bytes(parameter) / num_rows
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

    def _form(self, parameter: Parameter) -> StoredStrip | None:
        return strip_form(parameter, self._infos, bits=self._bits, group=self._group)

    def _keep(self, name: str, strips: Sequence[Strip]) -> None:
        self._strips[name] = strips
        if name in self._made:
            self._shelf.add(name, strips)
            self._narrow += sum(strip.group != self._group for strip in strips)
        for strip in strips:
            self._counts["q8" if strip.bits == 8 else "q4"] += 1

    def _bad_tensor(self, parameter: Parameter) -> str:
        """The name in the file of the piece that can't be quantised, read again to find it."""
        for piece in parameter.pieces:
            if not bool((self._source.read(piece.source).abs() <= LARGEST_WEIGHT).all()):
                return shown(self._infos[piece.source].stored_name)
        return shown(parameter.name)

    def _num_bytes(self, parameter: Parameter) -> int:
        return sum(self._infos[piece.source].num_bytes for piece in parameter.pieces)
