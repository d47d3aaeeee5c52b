"""Where the weights of a model come from: names, shapes and types first, the bytes one tensor at a time
later.

A source knows a model's file format and nothing of what the tensors are for. Names are canonical (see
`engine.models.spec.Piece`): prefixes are dropped and GGUF names are translated, so one family file serves
every format.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from engine.weights.weight_file import OnBytes, WeightFile, unwatched

if TYPE_CHECKING:
    import torch

    from engine.weights.gguf_blocks import BlockMatrix
    from engine.weights.strips import Bits, Group, Strip


@dataclass(frozen=True)
class StoredStrip:
    """What a strip that is stored is like, but for its numbers and shape."""

    bits: Bits
    offsets: bool = False
    group: Group = 32


@dataclass(frozen=True)
class TensorInfo:
    """What a file says of one tensor, without reading it.

    `dtype` is the type as stored, in the words of the format: "BF16", "F16", "F32", or a GGUF type such as
    "Q4_1". `num_bytes` is the size in the file. `stored_name` is the name in the file, for messages.
    `strip` is what `StripSource.read_strip` is going to give, None where it will give nothing; `blocks` tells
    whether `BlockSource.read_blocks` has the tensor.
    """

    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    stored_name: str
    strip: StoredStrip | None = None
    blocks: bool = False

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


class TensorSource(Protocol):
    """An open model file, or all shards of one. Reading from several threads at once is safe."""

    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor that belongs to the language model, by canonical name. Reads nothing."""

    def files(self) -> Sequence[WeightFile]:
        """The open files, in the order of their names."""

    def read(self, name: str, on_bytes: OnBytes = unwatched) -> torch.Tensor:
        """The tensor on the CPU, contiguous and the caller's own: as stored (bfloat16, float16, float32);
        GGUF types that are none of these are dequantised to float32. `on_bytes` hears of all `num_bytes`.
        Raises ModelFileError when the file has become unreadable or shorter since it was opened."""

    def close(self) -> None:
        """Closes the files. Reading afterwards is a mistake of the program. Closing twice does nothing."""


@runtime_checkable
class StripSource(Protocol):
    """A source some of whose tensors are strips already."""

    def read_strip(self, name: str, on_bytes: OnBytes = unwatched) -> Strip | None:
        """The matrix (N, K) with not a bit lost, or None where it isn't stored so; then `read` it, which
        tells of its bytes anew. A stack (E, N, K) comes as E * N rows. Raises ModelFileError that names the
        tensor.
        """


@runtime_checkable
class BlockSource(Protocol):
    """A source that can leave some of its tensors in the form in which the file has them."""

    def read_blocks(self, name: str, on_bytes: OnBytes = unwatched) -> BlockMatrix:
        """A matrix (N, K) whose `TensorInfo.blocks` is true."""
