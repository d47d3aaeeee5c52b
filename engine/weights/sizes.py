"""How many bytes a model takes, by arithmetic alone: weights in each format, and the cache of a token.

A strip is a matrix (N, K) as integer codes with one float32 scale for each row and group of 32 inputs.
Embedding, norms, biases and routers stay as they are, and so do matrices whose rows don't divide into groups;
the head is a strip, also where it is the embedding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.models.spec import ModelSpec, Parameter
from engine.weights.source import TensorInfo

GROUP_SIZE = 32  # inputs that share a scale
SCALE_BYTES = 4
FLOAT_BYTES = 4

STRIP_PARAMETERS = ("qkv", "output", "gate_up", "down", "experts.gate_up", "experts.down", "head")
_STORED_BYTES = {"BF16": 2, "F16": 2, "F32": 4}  # every other type is dequantized to float32


def is_strip(name: str) -> bool:
    """Whether a parameter of this name is kept as strips, where its rows can be cut into groups."""
    return name.split(".", 2)[-1] in STRIP_PARAMETERS


@dataclass(frozen=True)
class MatrixCounts:
    """How many matrices are held in which form, experts one by one, without embedding and routers."""

    native: int = 0
    q8: int = 0
    q4: int = 0


@dataclass(frozen=True)
class WeightBytes:
    native: int
    q8: int
    q4: int

    def as_json(self) -> dict[str, int]:
        return {"native": self.native, "q8": self.q8, "q4": self.q4}


def strip_bytes(num_rows: int, num_inputs: int, bits: int) -> int:
    """Bytes of one strip with codes of 8 bits, or of 4 bits packed two a byte within a row. num_inputs is a
    multiple of GROUP_SIZE.
    """
    return num_rows * (num_inputs * bits // 8 + num_inputs // GROUP_SIZE * SCALE_BYTES)


def weight_bytes(
    spec: ModelSpec, parameters: Iterable[Parameter], tensors: Mapping[str, TensorInfo]
) -> WeightBytes:
    """Memory for the weights as stored (`native`) and as strips. `tensors` may lack some: float32 is
    assumed.
    """
    native = q8 = q4 = 0
    for parameter in parameters:
        stored = _native_bytes(parameter, tensors)
        native += stored
        if is_strip(parameter.name) and parameter.shape[-1] % GROUP_SIZE == 0:
            num_rows = parameter.num_elements // parameter.shape[-1]
            q8 += strip_bytes(num_rows, parameter.shape[-1], 8)
            q4 += strip_bytes(num_rows, parameter.shape[-1], 4)
        else:
            q8 += stored
            q4 += stored
    if spec.tied_embeddings and spec.hidden_size % GROUP_SIZE == 0:
        q8 += strip_bytes(spec.vocab_size, spec.hidden_size, 8)
        q4 += strip_bytes(spec.vocab_size, spec.hidden_size, 4)
    return WeightBytes(native, q8, q4)


def kv_bytes_per_token(spec: ModelSpec) -> int:
    """The int8 cache: a byte for each number, and a float32 scale for each head's key and value."""
    return sum(
        2 * layer.attention.kv_dim + 2 * SCALE_BYTES * layer.attention.num_kv_heads for layer in spec.layers
    )


def kv_bytes_per_token_native(spec: ModelSpec) -> int:
    """The float32 cache of the reference backend."""
    return sum(2 * FLOAT_BYTES * layer.attention.kv_dim for layer in spec.layers)


def _native_bytes(parameter: Parameter, tensors: Mapping[str, TensorInfo]) -> int:
    if not parameter.pieces:
        return parameter.num_elements * FLOAT_BYTES
    total = 0
    for piece in parameter.pieces:
        info = tensors.get(piece.source)
        size = FLOAT_BYTES if info is None else _STORED_BYTES.get(info.dtype, FLOAT_BYTES)
        elements = 1
        for length in piece.shape:
            elements *= length
        total += elements * size
    return total
