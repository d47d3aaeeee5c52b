"""Weights that stand for nothing, made in the card's own memory: so a model's speed is known without its
files, and within seconds however large it is.

Of what the computer has, only norms come up. Matrices take the shapes and forms of theirs: codes from a hash
of their place, the same in every run, with one scale for all, such that a row of numbers of size 1 makes
numbers of size 1. So logits stay finite, however many layers there are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from engine.cuda.arguments import Fill
from engine.cuda.driver import NOWHERE, Address, as_bytes
from engine.cuda.embedding import CardEmbedding, EmbeddingImage
from engine.cuda.kernel_set import KernelSet
from engine.cuda.matrices import DeviceLinear, DeviceMatrix, LinearImage
from engine.cuda.memory import CardMemory, Use
from engine.cuda.uploader import Uploader
from engine.weights.random_scales import number_bound, strip_scale

# What a word of 4 bytes becomes, as in kernels/random.cu.
_PATTERN, _NIBBLES, _BYTES, _FLOAT32, _BFLOAT16 = range(5)
_CODES = {"codes4": _NIBBLES, "codes8": _BYTES}
_NUMBERS = {"float32": _FLOAT32, "bfloat16": _BFLOAT16}
_DISTINCT_ROWS = 1024  # of an embedding
_SEED = 20_260_101
_THREADS = 256
_MOST_BLOCKS = 2**14  # each goes on until all is filled


@dataclass(frozen=True)
class Filling:
    """What some bytes become. pattern: of 4 bytes. bound: of numbers, which lie evenly between it and its
    negative.
    """

    form: int
    pattern: int = 0
    bound: float = 0.0


_ZEROS = Filling(_PATTERN)


class RandomRows:
    """A `RowLookup` of any vocabulary: some rows, over and over. What they hold costs no time, and so they
    needn't be as many as there are tokens.
    """

    def __init__(self, vocab_size: int, width: int) -> None:
        generator = torch.Generator().manual_seed(_SEED)
        rows = torch.randn(min(_DISTINCT_ROWS, vocab_size), width, generator=generator)
        self._rows = rows.bfloat16()
        self._vocab_size = vocab_size
        self.num_bytes = self._rows.nbytes

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self._rows.index_select(0, ids % len(self._rows)).float()

    def card_image(self) -> EmbeddingImage:
        return RepeatedRows("bfloat16", self._rows.shape[1], self._rows, vocab_size=self._vocab_size)


@dataclass(frozen=True)
class RepeatedRows(EmbeddingImage):
    """Goes up once, and is copied on the card."""

    vocab_size: int = field(kw_only=True)

    @property
    def num_bytes(self) -> int:
        return self.vocab_size * self._row_bytes

    def upload(self, memory: CardMemory) -> CardEmbedding:
        address = memory.allocate(self.num_bytes, Use.WEIGHTS)
        memory.driver.upload(address, as_bytes(self.weights.view(-1).view(torch.uint8)))
        done = len(self.weights)
        while done < self.vocab_size:
            count = min(done, self.vocab_size - done)
            target = Address(address + done * self._row_bytes)
            memory.driver.copy(target, address, count * self._row_bytes)
            done += count
        return CardEmbedding(self, weights=address, scales=NOWHERE, offsets=NOWHERE)

    @property
    def _row_bytes(self) -> int:
        return self.width * self.weights.itemsize


class RandomUploader(Uploader):
    """Fills what others upload. Nothing here waits for the card."""

    def __init__(self, memory: CardMemory, kernels: KernelSet) -> None:
        super().__init__(memory, kernels)
        self._num_filled = 0

    def image(self, image: LinearImage) -> DeviceLinear:
        address = self._allocate(image.num_bytes)
        linear = image.at(address)
        sections = sorted(_sections(linear), key=lambda section: section[0])
        ends = [*(start for start, _ in sections[1:]), Address(address + image.num_bytes)]
        for (start, filling), end in zip(sections, ends, strict=True):
            self._fill(start, end - start, filling)
        return linear

    def _fill(self, address: Address, num_bytes: int, filling: Filling) -> None:
        self._num_filled += 1
        arguments = Fill(
            target=address,
            count=num_bytes,
            seed=self._num_filled,
            pattern=filling.pattern,
            bound=filling.bound,
            form=filling.form,
        )
        blocks = min(_MOST_BLOCKS, -(-num_bytes // (4 * _THREADS)))
        self._kernels.launch("fill_memory", arguments, grid=(blocks, 1, 1))


def _sections(linear: DeviceLinear) -> Iterator[tuple[Address, Filling]]:
    """Where each of a map's parts begins. It ends where the next one does, so that padding is filled, too."""
    for part in linear.parts:
        yield part.weights, _weights(part)
        if part.scales:
            yield part.scales, Filling(_PATTERN, _scale_pattern(part))
        if part.offsets:
            yield part.offsets, _ZEROS
    if linear.bias:
        yield linear.bias, _ZEROS


def _weights(part: DeviceMatrix) -> Filling:
    if part.is_strip:
        return Filling(_CODES[part.kind])
    return Filling(_NUMBERS[part.kind], bound=number_bound(part.columns))


def _scale_pattern(part: DeviceMatrix) -> int:
    scale = strip_scale(4 if part.kind == "codes4" else 8, part.columns)
    if not part.narrow_scales:
        return int.from_bytes(struct.pack("<f", scale), "little")
    return int.from_bytes(struct.pack("<2e", scale, scale), "little")
