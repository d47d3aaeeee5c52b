"""Where the tokens of a step stand and what they attend to: whole pages of a prompt, or one decoded token."""

from __future__ import annotations

import ctypes
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812  (the customary name)

from engine.backend import Sequence
from engine.cpu.attention import CausalMasks, attend_block, attend_one
from engine.cpu.kv_attention_ir import PARTIAL_HEAD
from engine.cpu.kv_kernels import AttendTask, kv_kernels
from engine.cpu.kv_rows import read_rows, write_rows
from engine.cpu.machine_code import Kernels
from engine.cpu.page_pool import CpuPagePool
from engine.kv_geometry import PAGE, pages_for
from engine.models.spec import AttentionSpec

_SERIAL_NUMBERS = 2**15  # of keys: a team would not make fewer quicker
_LANES = 16


class Step(Protocol):
    """The tokens of one run through the layers."""

    @property
    def position(self) -> int:
        """That of the first row of hidden states."""

    @property
    def valid(self) -> slice | None:
        """The rows that are tokens, where rows are whole pages; the others only keep the shapes alike. None:
        all are, and shapes don't matter.
        """

    def attend(
        self, layer: int, spec: AttentionSpec, heads: torch.Tensor, masks: CausalMasks
    ) -> torch.Tensor:
        """heads (T, A + 2G, D), rotated queries, rotated keys and values, -> (T, A * D)."""


class OwnRows:
    """A text that stands alone: tokens attend to each other, and nothing is kept."""

    position = 0
    valid = None

    def attend(
        self, layer: int, spec: AttentionSpec, heads: torch.Tensor, masks: CausalMasks
    ) -> torch.Tensor:
        q, keys, values = torch.split(heads, [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], dim=1)
        return attend_block(spec, q, keys.transpose(0, 1), values.transpose(0, 1), 0, masks)


class PrefillStep:
    """Some tokens of a prompt behind a sequence, run as the whole pages that they lie in.

    So every product and every attention has the shape that it has when the prompt is read at once, and every
    row stands where it then stands: its bits don't depend on where the prompt was cut.
    """

    def __init__(self, pool: CpuPagePool, sequence: Sequence, num_tokens: int) -> None:
        start, end = sequence.length, sequence.length + num_tokens
        self.position = start - start % PAGE
        self.valid: slice | None = slice(start - self.position, end - self.position)
        self.num_rows = pages_for(end) * PAGE - self.position
        self._pool = pool
        self._start, self._end = start, end
        self._pages = sequence.pages[: pages_for(end)]

    def attend(
        self, layer: int, spec: AttentionSpec, heads: torch.Tensor, masks: CausalMasks
    ) -> torch.Tensor:
        self._write(layer, heads[:, spec.num_heads :])
        oldest = 0 if spec.window is None else max(0, self.position - spec.window + 1)
        first_page = oldest // PAGE
        origin = first_page * PAGE
        pages = self._pages[first_page:]
        rows = torch.empty(2 * spec.num_kv_heads, len(pages) * PAGE, spec.head_dim)
        read_rows(self._pool, pages, layer, length=self._end - origin, out=rows)
        keys, values = rows.chunk(2)
        q = heads[:, : spec.num_heads]
        return attend_block(spec, q, keys, values, self.position, masks, origin=origin)

    def _write(self, layer: int, kv: torch.Tensor) -> None:
        first = self._start
        while first < self._end:
            last = min(first - first % PAGE + PAGE, self._end)
            rows = kv[first - self.position : last - self.position]
            write_rows(self._pool, self._pages[first // PAGE], layer, first=first % PAGE, kv=rows)
            first = last


class DecodeStep:
    """One token behind a sequence."""

    valid = None

    def __init__(self, pool: CpuPagePool, sequence: Sequence) -> None:
        self.position = sequence.length
        self._pool = pool
        self._length = sequence.length + 1
        self._pages = sequence.pages[: pages_for(self._length)]
        self._addresses = (ctypes.c_int64 * len(self._pages))(*pool.addresses(self._pages))
        self._partials = torch.empty(0)

    def attend(
        self, layer: int, spec: AttentionSpec, heads: torch.Tensor, masks: CausalMasks
    ) -> torch.Tensor:
        kv = heads[:, spec.num_heads :]
        write_rows(self._pool, self._pages[-1], layer, first=self.position % PAGE, kv=kv)
        kernels = self._kernels(spec)
        q = heads[0, : spec.num_heads]  # (A, D)
        return self._plain(layer, spec, q) if kernels is None else self._direct(kernels, layer, spec, q)

    def _kernels(self, spec: AttentionSpec) -> Kernels | None:
        kv_format = self._pool.geometry.format
        # What lies behind a row of codes are codes; what lies behind a row of float32 need not be numbers.
        return None if kv_format == "native" and spec.head_dim % _LANES else kv_kernels(kv_format)

    def _oldest(self, spec: AttentionSpec) -> int:
        return 0 if spec.window is None else max(0, self._length - spec.window)

    def _plain(self, layer: int, spec: AttentionSpec, q: torch.Tensor) -> torch.Tensor:
        oldest = self._oldest(spec)
        first_page = oldest // PAGE
        origin = first_page * PAGE
        pages = self._pages[first_page:]
        rows = torch.empty(2 * spec.num_kv_heads, len(pages) * PAGE, spec.head_dim)
        read_rows(self._pool, pages, layer, length=self._length - origin, out=rows)
        keys, values = rows[:, oldest - origin : self._length - origin].chunk(2)
        return attend_one(spec, q, keys, values)

    def _direct(self, kernels: Kernels, layer: int, spec: AttentionSpec, q: torch.Tensor) -> torch.Tensor:
        width = -(-spec.head_dim // _LANES) * _LANES
        if width != spec.head_dim:
            q = F.pad(q, (0, width - spec.head_dim))
        oldest = self._oldest(spec)
        first_page = oldest // PAGE
        num_pages = len(self._pages) - first_page
        num_partials = num_pages * spec.num_heads * (PARTIAL_HEAD + width)
        if self._partials.numel() < num_partials:
            self._partials = torch.empty(num_partials)
        out = torch.empty(spec.num_heads, width)
        task = AttendTask(
            pages=ctypes.addressof(self._addresses) + 8 * first_page,
            offset=self._pool.geometry.layer_offsets[layer],
            num_pages=num_pages,
            first=oldest % PAGE,
            end=(self._length - 1) % PAGE + 1,
            q=q.data_ptr(),
            partials=self._partials.data_ptr(),
            out=out.data_ptr(),
            kv_heads=spec.num_kv_heads,
            group=spec.num_heads // spec.num_kv_heads,
            head_dim=spec.head_dim,
            blocks=width // _LANES,
            scale=spec.scale,
        )
        numbers = (self._length - oldest) * spec.num_heads * width
        threads = torch.get_num_threads() if numbers > _SERIAL_NUMBERS else 1
        kernels.run("attend", task, num_pages * spec.num_kv_heads, threads=threads)
        kernels.run("join", task, spec.num_heads)
        return out[:, : spec.head_dim].reshape(1, -1)
