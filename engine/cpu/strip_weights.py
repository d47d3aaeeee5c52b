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

from engine.config import Activations
from engine.cpu.calibration import Calibration, effort_for
from engine.cpu.load_meter import LoadMeter
from engine.cpu.matrices import Embedding, RowLookup, StripRows
from engine.cpu.model import ModelWeights, build_layer, build_weights
from engine.cpu.packing_notices import packing_notices
from engine.cpu.strip_maker import READING, StripMaker, is_made, num_strips
from engine.cpu.weights import check_numbers
from engine.models.spec import ModelSpec, Parameter
from engine.notices import Notice
from engine.progress import ProgressCallback
from engine.runtime import release_memory
from engine.weights.gguf_blocks import BlockMatrix
from engine.weights.input_statistics import InputStatistics
from engine.weights.packing import (
    EmbeddingForm,
    embedding_form,
    is_strip,
    tied_head,
)
from engine.weights.quantise import CHUNK_ELEMENTS
from engine.weights.sizes import MatrixCounts
from engine.weights.source import BlockSource, TensorInfo, TensorSource
from engine.weights.strip_shelf import NoShelf, Shelf, StripShelf, strip_names
from engine.weights.strips import BLOCK, Bits, Group


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
        if is_made(parameter, infos, bits)
        for each in strip_names(parameter.name, num_strips(spec, parameter))
    ]


def _total(spec: ModelSpec, parameters: Sequence[Parameter], source: TensorSource) -> int:
    """Bytes of the files, those of a tied embedding twice: for its rows and for the head."""
    infos = source.tensors()
    pieces = [piece for parameter in parameters for piece in parameter.pieces]
    if spec.tied_embeddings:
        pieces += next(parameter.pieces for parameter in parameters if parameter.name == "embed")
    return sum(infos[piece.source].num_bytes for piece in pieces)


class _StripLoader:
    """One load: which parameter comes when, and what the calibration text sees of it."""

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
        self._effort = effort_for(sum(each.num_elements for each in parameters))
        self._maker = StripMaker(
            spec,
            self._parameters,
            source,
            bits=bits,
            group=group,
            effort=self._effort,
            shelf=shelf,
            meter=meter,
        )

    def load(self, calibration_ids: Sequence[int]) -> LoadedStrips:
        spec = self._spec
        lookup = self._load_embedding()
        calibration = self._calibration(lookup, calibration_ids)
        for index, layer in enumerate(spec.layers):
            prefix = f"layers.{index}."
            own = [each for each in self._parameters.values() if each.name.startswith(prefix)]
            self._maker.read(own)
            statistics: dict[str, Sequence[InputStatistics | None]] = {}
            if calibration is not None:
                held = build_layer(index, layer, self._maker.tensors, strips=self._maker.strips)
                statistics.update(calibration.run(held))
                del held
            for parameter in own:
                if is_strip(parameter.name):
                    self._maker.quantise(parameter, statistics.pop(parameter.name.removeprefix(prefix), None))
            if not self._shelf.filled:
                release_memory()  # small pieces of what is gone: in all more than 100 MB of a small model
        self._load_head(lookup, calibration)
        stored = "embed" in self._maker.tensors
        weights = build_weights(
            spec,
            self._maker.tensors,
            self._maker.strips,
            lookup=None if stored else lookup,
            activations=self._activations,
        )
        return LoadedStrips(weights, MatrixCounts(**self._maker.counts), self._notices())

    def _notices(self) -> tuple[Notice, ...]:
        counts = MatrixCounts(**self._maker.counts)
        return packing_notices(
            counts, self._bits, group=self._group, narrow=self._maker.narrow, not_kept=self._maker.not_kept
        )

    def _load_embedding(self) -> RowLookup:
        embed = self._parameters["embed"]
        form = embedding_form(self._spec, embed, self._infos, self._bits)
        if form is EmbeddingForm.HEAD:
            head = tied_head(self._parameters)
            # Not from the shelf: what is kept there may have been quantised, where the file's strip was none.
            strips = self._maker.stored_strips(head)
            if strips is not None:
                self._maker.keep("head", strips)
                self._meter.advance(self._maker.num_bytes(head))  # the rows', too
                return StripRows(strips[0])
        source, [piece] = self._source, embed.pieces
        if form is not EmbeddingForm.STORED and isinstance(source, BlockSource):
            blocks = source.read_blocks(piece.source, self._meter.advance)
            # Those of a head are looked at when it becomes a strip, those of a load before by that load.
            if not self._spec.tied_embeddings and not self._shelf.filled:
                self._check_blocks(blocks, self._infos[piece.source].stored_name)
            return blocks
        self._maker.read_tensor(embed)
        return Embedding(self._maker.tensors["embed"])

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
        self._maker.read([self._parameters["final_norm"]])
        if "head" in self._maker.strips or self._maker.read_as_strip(head):
            return
        statistics = None
        if calibration is not None:
            statistics = calibration.hidden_statistics(self._maker.tensors["final_norm"], self._spec.norm_eps)
        blocks = self._head_blocks(head, lookup)
        if blocks is not None:
            self._maker.quantise_blocks(head, blocks, statistics)
            return
        if tied and "embed" in self._maker.tensors:
            self._maker.tensors["head"] = self._maker.tensors["embed"]
            self._meter.advance(READING * self._maker.num_bytes(head))
        else:
            self._maker.read_tensor(head)
        self._maker.quantise(head, [statistics])
        if tied:
            self._maker.tensors.pop("head", None)

    def _head_blocks(self, head: Parameter, lookup: RowLookup) -> BlockMatrix | None:
        """The head in a GGUF type's blocks, where it becomes a strip: as float32 it would often be what a
        load needs most memory for.
        """
        if self._maker.form(head) is None:
            return None
        if self._spec.tied_embeddings and isinstance(lookup, BlockMatrix):
            self._meter.advance(READING * self._maker.num_bytes(head))
            return lookup
        source, [piece] = self._source, head.pieces
        if "embed" in self._maker.tensors and self._spec.tied_embeddings:
            return None
        if not isinstance(source, BlockSource) or not self._infos[piece.source].blocks:
            return None
        return source.read_blocks(piece.source, lambda count: self._meter.advance(READING * count))

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
