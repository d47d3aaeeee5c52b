"""Rows of keys and values into pages and out of them. What bytes mean stands in `engine/kv_geometry.py`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from engine.cpu.code_scales import code_scales
from engine.cpu.kv_kernels import AppendTask, WidenTask, kv_kernels
from engine.cpu.page_pool import CpuPagePool
from engine.kv_geometry import PAGE

_SERIAL_NUMBERS = 2**14  # a team would not make fewer quicker


def quantise_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x (..., D) float32 -> codes (..., D) int8 and scales (...) float32."""
    quotients, scales = code_scales(x)
    return quotients.round_().to(torch.int8), scales[..., 0]


def write_rows(pool: CpuPagePool, page: int, layer: int, *, first: int, kv: torch.Tensor) -> None:
    """kv (T, 2G, D), the heads of K and then those of V, become the rows from `first` on of a page."""
    numbers, scales = pool.layer(page, layer)
    rows = slice(first, first + kv.shape[0])
    if scales is None:
        numbers[:, rows] = kv.transpose(0, 1)
        return
    kernels = kv_kernels("int8")
    if kernels is None:
        codes, found = quantise_rows(kv)
        numbers[:, rows], scales[:, rows] = codes.transpose(0, 1), found.T
        return
    num_tokens, heads, head_dim = kv.shape
    assert kv.stride()[1:] == (head_dim, 1)
    task = AppendTask(
        kv=kv.data_ptr(),
        row_stride=kv.stride(0),
        layer=numbers.data_ptr(),
        first=first,
        heads=heads,
        head_dim=head_dim,
    )
    threads = torch.get_num_threads() if kv.numel() > _SERIAL_NUMBERS else 1
    kernels.run("append", task, num_tokens * heads, threads=threads)


def read_rows(pool: CpuPagePool, pages: Sequence[int], layer: int, *, length: int, out: torch.Tensor) -> None:
    """The first `length` rows of some pages as float32, into out (2G, capacity, D), which has room for all
    rows of the pages: zeros behind `length`, whatever the pages hold there.
    """
    heads, capacity, head_dim = out.shape
    kernels = kv_kernels("int8") if pool.geometry.format == "int8" else None
    if kernels is None:
        for number, page in enumerate(pages):
            numbers, scales = pool.layer(page, layer)
            rows = out[:, number * PAGE : (number + 1) * PAGE]
            rows.copy_(numbers)
            if scales is not None:
                rows.mul_(scales[..., None])
        out[:, length : len(pages) * PAGE] = 0
        return
    assert out.is_contiguous()
    addresses = (ctypes.c_int64 * len(pages))(*pool.addresses(pages))
    task = WidenTask(
        pages=ctypes.addressof(addresses),
        offset=pool.geometry.layer_offsets[layer],
        length=length,
        out=out.data_ptr(),
        capacity=capacity,
        heads=heads,
        head_dim=head_dim,
    )
    threads = torch.get_num_threads() if out.numel() > _SERIAL_NUMBERS else 1
    kernels.run("widen", task, len(pages) * heads, threads=threads)
