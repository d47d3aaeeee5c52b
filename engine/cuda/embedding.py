"""The embedding on the card: a step begins with its tokens' ids.

It is held beside the head, also where the two are tied: rows are looked up in another order of bytes than
products are made in. What lies in blocks for which no kernel has a form is looked up by the computer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from engine.cpu.matrices import Embedding as StoredRows
from engine.cpu.matrices import RowLookup, StripRows
from engine.cuda.arguments import Embedding
from engine.cuda.driver import NOWHERE, Address, as_bytes
from engine.cuda.kernel_set import KernelSet
from engine.cuda.memory import CardMemory, Use
from engine.errors import ModelFileError
from engine.weights.gguf_blocks import BlockMatrix
from engine.weights.gguf_strips import STRIP_FORMS, strip_from_blocks
from engine.weights.strips import Strip, scales_fit

_KINDS = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
_COLUMNS_A_BLOCK = 256  # as in kernels/embed.cu
_ALIGNMENT = 256


@dataclass(frozen=True)
class EmbeddingImage:
    """Rows (V, H) as they are to lie on the card. kind: of numbers or codes. group: inputs a scale."""

    kind: str
    width: int
    weights: torch.Tensor
    scales: torch.Tensor | None = None
    offsets: torch.Tensor | None = None
    group: int = 1

    @property
    def num_bytes(self) -> int:
        return sum(_aligned(each.nbytes) for each in self._tensors)

    def upload(self, memory: CardMemory) -> CardEmbedding:
        """Raises OutOfMemoryError."""
        address = memory.allocate(self.num_bytes, Use.WEIGHTS)
        places, end = [], address
        for tensor in self._tensors:
            memory.driver.upload(end, as_bytes(tensor.contiguous().view(-1).view(torch.uint8)))
            places.append(end)
            end = Address(end + _aligned(tensor.nbytes))
        weights, scales, offsets = (*places, NOWHERE, NOWHERE)[:3]
        return CardEmbedding(self, weights=weights, scales=scales, offsets=offsets)

    @property
    def _tensors(self) -> list[torch.Tensor]:
        return [each for each in (self.weights, self.scales, self.offsets) if each is not None]


class CardEmbedding:
    """Where they are."""

    def __init__(self, image: EmbeddingImage, *, weights: Address, scales: Address, offsets: Address) -> None:
        self.num_bytes = image.num_bytes
        self._kernel = f"embed_{image.kind}"
        self._width = image.width
        self._common = {
            "weights": weights,
            "scales": scales,
            "offsets": offsets,
            "width": image.width,
            "group": image.group,
            "narrow_scales": image.scales is not None and image.scales.dtype == torch.float16,
        }

    def launch(self, kernels: KernelSet, tokens: Address, hidden: Address, *, rows: int) -> None:
        """Rows of the ids at `tokens`, to `hidden` (T, H) float32."""
        arguments = Embedding(tokens=tokens, hidden=hidden, **self._common)
        kernels.launch(self._kernel, arguments, grid=(-(-self._width // _COLUMNS_A_BLOCK), rows, 1))


class HostEmbedding:
    """What the computer looks up, and sends."""

    def __init__(self, lookup: RowLookup, memory: CardMemory) -> None:
        self._lookup = lookup
        self._driver = memory.driver

    def send(self, ids: Sequence[int], hidden: Address) -> None:
        with torch.inference_mode():
            rows = self._lookup.rows(torch.tensor(ids, dtype=torch.int64))
        self._driver.upload(hidden, as_bytes(rows))


@runtime_checkable
class HasImage(Protocol):
    """A lookup that knows itself how its rows come to lie on the card."""

    def card_image(self) -> EmbeddingImage: ...


def embedding_image(lookup: RowLookup) -> EmbeddingImage | None:
    """None where rows are stored in a form that no kernel knows."""
    if isinstance(lookup, HasImage):
        return lookup.card_image()
    if isinstance(lookup, StoredRows):
        weight = lookup.weight
        return EmbeddingImage(_KINDS[weight.dtype], weight.shape[1], weight)
    if isinstance(lookup, StripRows):
        return _strip_image(lookup.strip)
    if isinstance(lookup, BlockMatrix) and lookup.dtype in STRIP_FORMS:
        rows, columns = lookup.shape
        try:
            strip = strip_from_blocks(lookup.raw, lookup.dtype, rows=rows, columns=columns)
        except ModelFileError:
            return None  # some row is no numbers, which shows when it is looked up
        return None if strip is None else _strip_image(strip)
    return None


def _strip_image(strip: Strip) -> EmbeddingImage:
    dtype = torch.float16 if scales_fit(strip, torch.float16) else torch.float32
    return EmbeddingImage(
        f"codes{strip.bits}",
        strip.columns,
        strip.codes,
        scales=strip.scales.to(dtype),
        offsets=None if strip.offsets is None else strip.offsets.to(dtype),
        group=strip.group,
    )


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
