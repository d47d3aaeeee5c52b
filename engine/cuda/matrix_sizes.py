"""How many bytes matrices take of the card, told by what the files' headers say of them: what `matrices.py`,
`layer_images.py` and `embedding.py` find once the weights are there. No torch.

Scales are taken to be of 16 bits, as those of every strip are that has no outlandish ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine.cuda.tile_layout import TILE, TileLayout, most_chains
from engine.models.spec import AttentionSpec, LayerSpec, ModelSpec, MoeSpec, Parameter
from engine.weights.gguf_strips import STRIP_FORMS
from engine.weights.packing import (
    HALF_TYPES,
    EmbeddingForm,
    embedding_form,
    stored_dtype,
    strip_form,
    strip_rows,
    tied_head,
)
from engine.weights.source import StoredStrip, TensorInfo
from engine.weights.strips import Bits, Group

_ALIGNMENT = 256
_SCALE_BYTES, _FLOAT_BYTES, _HALF_BYTES = 2, 4, 2


@dataclass(frozen=True)
class MatrixSize:
    """Bytes of one buffer: as it stays, and as it comes."""

    stays: int
    comes: int


@dataclass(frozen=True)
class WeightForms:
    """How a model's weights are held. bits: packed to these; None: not packed. wide: numbers that stay so
    become float32.
    """

    bits: Bits | None
    group: Group
    wide: bool = False


@dataclass(frozen=True)
class CardSizes:
    """Of a model's weights on the card. norms: bytes of each. embedding: None where no kernel has a form for
    it.
    """

    layers: tuple[tuple[MatrixSize, ...], ...]
    head: MatrixSize
    norms: tuple[int, ...]
    embedding: int | None


def card_sizes(
    spec: ModelSpec, parameters: Iterable[Parameter], tensors: Mapping[str, TensorInfo], forms: WeightForms
) -> CardSizes:
    """`tensors` may lack some: they are taken to be float32."""
    named = {parameter.name: parameter for parameter in parameters}
    find = _Finder(spec, named, tensors, forms)
    return CardSizes(
        layers=tuple(find.layer(i, layer) for i, layer in enumerate(spec.layers)),
        head=find.head(),
        norms=tuple(_norms(spec)),
        embedding=find.embedding(),
    )


class _Finder:
    def __init__(
        self,
        spec: ModelSpec,
        named: Mapping[str, Parameter],
        tensors: Mapping[str, TensorInfo],
        forms: WeightForms,
    ) -> None:
        self._spec = spec
        self._named = named
        self._tensors = tensors
        self._forms = forms

    def layer(self, index: int, layer: LayerSpec) -> tuple[MatrixSize, ...]:
        names = ["qkv", "output"]
        is_moe = isinstance(layer.feed_forward, MoeSpec)
        names += ["experts.gate_up", "experts.down", "router"] if is_moe else ["gate_up", "down"]
        return tuple(self._size(self._named[f"layers.{index}.{name}"]) for name in names)

    def head(self) -> MatrixSize:
        spec, named = self._spec, self._named
        if spec.tied_embeddings:
            return self._size(tied_head(named), numbers=self._item_bytes(named["embed"]))
        return self._size(named["head"])

    def embedding(self) -> int | None:
        embed = self._named["embed"]
        rows, columns = embed.shape
        form = embedding_form(self._spec, embed, self._tensors, self._forms.bits)
        if form is EmbeddingForm.STORED:
            return _aligned(embed.num_elements * self._item_bytes(embed))
        if form is EmbeddingForm.HEAD:
            strip = self._strip(tied_head(self._named))
            assert strip is not None
        else:
            dtype = self._tensors[embed.pieces[0].source].dtype
            if dtype not in STRIP_FORMS:
                return None
            strip = STRIP_FORMS[dtype]
        scales = _aligned(rows * (columns // strip.group) * _SCALE_BYTES)
        return _aligned(rows * columns * strip.bits // 8) + scales * (2 if strip.offsets else 1)

    def _strip(self, parameter: Parameter) -> StoredStrip | None:
        return strip_form(parameter, self._tensors, bits=self._forms.bits, group=self._forms.group)

    def _item_bytes(self, parameter: Parameter) -> int:
        half = not self._forms.wide and stored_dtype(parameter, self._tensors) in HALF_TYPES
        return _HALF_BYTES if half else _FLOAT_BYTES

    def _size(self, parameter: Parameter, *, numbers: int = 0) -> MatrixSize:
        """numbers: bytes of each, where it stays so; 0: by itself."""
        stays, comes = _Buffer(), _Buffer()
        count = math.prod(parameter.shape[:-2])  # experts
        rows, columns = parameter.shape[-2:]
        strip = self._strip(parameter)
        if strip is None:
            size = count * rows * columns * (numbers or self._item_bytes(parameter))
            stays.add(size)
            comes.add(size)
        else:
            for part in _parts(strip_rows(self._spec, parameter)):
                _add_strips(strip, part, columns, count, stays, comes)
        bias = self._named.get(f"{parameter.name}_bias")
        if bias is not None:
            stays.add(bias.num_elements * _FLOAT_BYTES)
            comes.add(bias.num_elements * _FLOAT_BYTES)
        return MatrixSize(stays.num_bytes, comes.num_bytes)


def _parts(rows: Sequence[int]) -> list[int]:
    """Rows of strips that lie below one another as one: those in whole tiles with what stands behind them."""
    parts: list[list[int]] = []
    for each in rows:
        if parts and all(one % TILE == 0 for one in (*parts[-1][:1], each)):
            parts[-1].append(each)
        else:
            parts.append([each])
    return [sum(part) for part in parts]


def _add_strips(
    strip: StoredStrip, rows: int, columns: int, count: int, stays: _Buffer, comes: _Buffer
) -> None:
    layout = TileLayout(strip.bits, rows, columns, strip.group, most_chains(rows, count))
    kinds = 2 if strip.offsets else 1
    comes.add(count * rows * columns * strip.bits // 8)
    stays.add(count * layout.code_bytes)
    for _ in range(kinds):
        comes.add(count * rows * (columns // strip.group) * _SCALE_BYTES)
        stays.add(count * layout.num_scales * _SCALE_BYTES)


class _Buffer:
    """Things one behind the other."""

    def __init__(self) -> None:
        self.num_bytes = 0

    def add(self, num_bytes: int) -> None:
        self.num_bytes = _aligned(self.num_bytes) + num_bytes


def _norms(spec: ModelSpec) -> Iterable[int]:
    hidden = spec.hidden_size * _FLOAT_BYTES
    yield hidden  # the last one
    for layer in spec.layers:
        yield from (hidden, hidden)
        if layer.attention.qk_norm:
            yield _qk_norm(layer.attention)


def _qk_norm(attention: AttentionSpec) -> int:
    return (attention.num_heads + attention.num_kv_heads) * attention.head_dim * _FLOAT_BYTES


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
