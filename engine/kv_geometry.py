"""What the bytes of a page mean: keys and values of 64 tokens for all attention layers, on every backend.

A page is the layers one after the other. An int8 layer is K codes (G, 64, D), V codes (G, 64, D), K scales
(G, 64), V scales (G, 64); a native one is K (G, 64, D), V (G, 64, D) as float32. Numbers are little-endian.
Keys are stored behind RoPE.

A row of D numbers x is kept in int8 as codes round(x / scale), ties to even, with scale = max|x| / 127 in
float32. A scale that would be zero or denormal is 0, and so are its codes; a row with anything in it that is
no finite number has the scale NaN, so that whatever reads it finds out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

from engine.models.spec import ModelSpec

PAGE = 64  # tokens
LARGEST_CODE = 127
KvFormat = Literal["int8", "native"]  # native: float32

_SCALE_BYTES = 4
_FLOAT_BYTES = 4


def pages_for(num_tokens: int) -> int:
    """How many pages hold that many tokens."""
    return -(-num_tokens // PAGE)


@dataclass(frozen=True)
class KvGeometry:
    """Two pages mean the same exactly if their geometries are equal."""

    format: KvFormat
    layers: tuple[tuple[int, int], ...]  # (kv_heads, head_dim) of each

    @classmethod
    def of(cls, spec: ModelSpec, kv_format: KvFormat) -> KvGeometry:
        attention = (layer.attention for layer in spec.layers)
        return cls(kv_format, tuple((each.num_kv_heads, each.head_dim) for each in attention))

    @property
    def token_bytes(self) -> int:
        return sum(self._layer_token_bytes(*layer) for layer in self.layers)

    @property
    def page_bytes(self) -> int:
        return PAGE * self.token_bytes

    @cached_property
    def layer_offsets(self) -> tuple[int, ...]:
        """Where each layer begins within a page, in bytes."""
        sizes: Iterable[int] = (PAGE * self._layer_token_bytes(*layer) for layer in self.layers)
        return tuple(accumulate(sizes, initial=0))[:-1]

    def _layer_token_bytes(self, kv_heads: int, head_dim: int) -> int:
        kv_dim = kv_heads * head_dim
        return 2 * (kv_dim + _SCALE_BYTES * kv_heads if self.format == "int8" else _FLOAT_BYTES * kv_dim)
