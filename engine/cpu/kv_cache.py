"""Float32 keys and values of one sequence, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.cpu.attention import PAGE
from engine.cpu.memory import check_available
from engine.models.spec import AttentionSpec

_BYTES = 4  # of a float32


class KvCache:
    """Keys and values of `length` tokens for every layer.

    Each layer has one buffer (2, G, capacity, D): keys, then values; a head's tokens lie side by side, as the
    products over them want. Capacity is whole pages and doubles when it is full. Rows at or behind `length`
    are left over from an unfinished or a forgotten step; `rows` hands them out only to the step that has just
    written them.
    """

    def __init__(self, layers: Sequence[AttentionSpec], *, max_length: int) -> None:
        self._layers = layers
        self._max_length = max_length
        self._capacity = 0
        self._buffers = [torch.empty(2, spec.num_kv_heads, 0, spec.head_dim) for spec in layers]
        self._length = 0

    @property
    def length(self) -> int:
        return self._length

    @property
    def num_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers)

    def truncate(self, length: int) -> None:
        assert 0 <= length <= self._length
        self._length = length

    def reserve(self, length: int) -> None:
        """Make room for `length` tokens. Raises OutOfMemoryError, and then nothing has changed."""
        if length <= self._capacity:
            return
        pages = -(-length // PAGE)
        pages = max(pages, min(2 * self._capacity // PAGE, -(-self._max_length // PAGE)))
        capacity = pages * PAGE
        row_bytes = sum(2 * spec.kv_dim * _BYTES for spec in self._layers)
        check_available((capacity - self._capacity) * row_bytes, f"A cache for {capacity} tokens")
        for index, (spec, old) in enumerate(zip(self._layers, self._buffers, strict=True)):
            buffer = torch.empty(2, spec.num_kv_heads, capacity, spec.head_dim)
            buffer[:, :, : self._length].copy_(old[:, :, : self._length])
            self._buffers[index] = buffer  # the old one is freed before the next layer's is made
        self._capacity = capacity

    def write(self, layer: int, kv: torch.Tensor) -> None:
        """Lay kv (T, 2, G, D), keys and values, behind the valid rows; they count only after `commit`."""
        num_tokens = kv.shape[0]
        self._buffers[layer][:, :, self._length : self._length + num_tokens].copy_(kv.permute(1, 2, 0, 3))

    def rows(self, layer: int, num_new: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of keys and values (G, length + num_new, D): the valid ones and those just written."""
        keys, values = self._buffers[layer][:, :, : self._length + num_new].unbind(0)
        return keys, values

    def commit(self, num_new: int) -> None:
        """What `write` has laid down in every layer is valid from now on."""
        assert self._length + num_new <= self._capacity
        self._length += num_new
