"""How many bytes a model takes, by arithmetic alone: weights in each format, and the cache of a token.

What becomes of each parameter is told in `packing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.config import WeightFormat
from engine.models.spec import ModelSpec, Parameter
from engine.weights.packing import (
    HALF_TYPES,
    EmbeddingForm,
    embedding_form,
    has_native_strips,
    stored_dtype,
    strip_form,
    tied_head,
)
from engine.weights.source import StoredStrip, TensorInfo
from engine.weights.strips import Bits, Group

SCALE_BYTES = 4
FLOAT_BYTES = 4

_STORED_BYTES = {"BF16": 2, "F16": 2, "F32": 4}  # every other type is dequantized to float32


@dataclass(frozen=True)
class MatrixCounts:
    """How many matrices are held in which form, experts one by one, without embedding and routers."""

    native: int = 0
    q8: int = 0
    q4: int = 0


def weights_in_words(counts: MatrixCounts | None) -> str:
    """What weights are packed to, in the words of the model's line in the window; "" where none are."""
    if counts is None or not (counts.q4 or counts.q8):
        return ""
    if counts.q4 and counts.q8:
        return "4-bit and 8-bit weights"
    return "4-bit weights" if counts.q4 else "8-bit weights"


def card_in_words(name: str, counts: MatrixCounts | None) -> str:
    """A card and what is on it, in the words of the model's line in the window."""
    if counts is None or not (counts.q4 or counts.q8):
        return f"{name}, weights as stored"
    if counts.q4 and counts.q8:
        return f"{name}, 4-bit and 8-bit weights"
    return f"{name}, 4-bit weights" if counts.q4 else f"{name}, 8-bit weights"


@dataclass(frozen=True)
class WeightBytes:
    native: int
    q8: int
    q4: int

    def of(self, weights: WeightFormat) -> int:
        return {"native": self.native, "q8": self.q8, "q4": self.q4}[weights]

    def as_json(self) -> dict[str, int]:
        return {"native": self.native, "q8": self.q8, "q4": self.q4}


def strip_bytes(num_rows: int, num_inputs: int, form: StoredStrip) -> int:
    """Bytes of one strip. num_inputs is a multiple of its group."""
    scale_bytes = SCALE_BYTES * (2 if form.offsets else 1)
    return num_rows * (num_inputs * form.bits // 8 + num_inputs // form.group * scale_bytes)


def weight_bytes(
    spec: ModelSpec,
    parameters: Iterable[Parameter],
    tensors: Mapping[str, TensorInfo],
    *,
    group: Group = 32,
) -> WeightBytes:
    """Memory for the weights as stored (`native`), and as strips whose scales are for `group` inputs where
    rows divide so. `tensors` may lack some: float32 is assumed.

    The sizes of strips are exact, but for the rare file whose own strips turn out to hold a code that ours
    can't (see `gguf_strips`): that matrix is quantised anew, and an embedding that shares it is held twice.
    """
    named = {parameter.name: parameter for parameter in parameters}
    return WeightBytes(
        native=_packed_bytes(spec, named, tensors, bits=None, group=group)
        if has_native_strips(named.values(), tensors)
        else sum(_native_bytes(parameter, tensors) for parameter in named.values()),
        q8=_packed_bytes(spec, named, tensors, bits=8, group=group),
        q4=_packed_bytes(spec, named, tensors, bits=4, group=group),
    )


def _packed_bytes(
    spec: ModelSpec,
    parameters: Mapping[str, Parameter],
    tensors: Mapping[str, TensorInfo],
    *,
    bits: Bits | None,
    group: Group,
) -> int:
    matrices = list(parameters.values())
    total = 0
    embed = parameters.get("embed")
    if embed is not None:
        matrices.remove(embed)
        form = embedding_form(spec, embed, tensors, bits)
        if form is EmbeddingForm.BLOCKS:
            total += tensors[embed.pieces[0].source].num_bytes
        elif form is EmbeddingForm.STORED:
            total += _kept_bytes(embed, tensors)
        if spec.tied_embeddings:
            head = tied_head(parameters)
            if strip_form(head, tensors, bits=bits, group=group) is not None:
                matrices.append(head)
    for parameter in matrices:
        strip = strip_form(parameter, tensors, bits=bits, group=group)
        if strip is None:
            total += _kept_bytes(parameter, tensors)
        else:
            num_inputs = parameter.shape[-1]
            total += strip_bytes(parameter.num_elements // num_inputs, num_inputs, strip)
    return total


def kv_bytes_per_token(spec: ModelSpec) -> int:
    """The int8 cache: a byte for each number, and a float32 scale for each head's key and value."""
    return sum(
        2 * layer.attention.kv_dim + 2 * SCALE_BYTES * layer.attention.num_kv_heads for layer in spec.layers
    )


def kv_bytes_per_token_native(spec: ModelSpec) -> int:
    """The float32 cache of the reference backend."""
    return sum(2 * FLOAT_BYTES * layer.attention.kv_dim for layer in spec.layers)


def native_bytes(parameters: Iterable[Parameter], tensors: Mapping[str, TensorInfo], *, wide: bool) -> int:
    """Of weights of which nothing is packed: as they are kept, or with every number as a float32 (`wide`)."""
    if wide:
        return FLOAT_BYTES * sum(parameter.num_elements for parameter in parameters)
    return sum(_kept_bytes(parameter, tensors) for parameter in parameters)


def _kept_bytes(parameter: Parameter, tensors: Mapping[str, TensorInfo]) -> int:
    """Of a parameter that stays as it is among strips."""
    return parameter.num_elements * (2 if stored_dtype(parameter, tensors) in HALF_TYPES else FLOAT_BYTES)


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
