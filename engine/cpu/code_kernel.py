"""The steps of `engine.weights.code_descent` over the codes of one group, compiled.

In torch they are seven operations for each input, which take longer than all products of the descent
together. A row's numbers are computed in one order, so it has the same bits whatever rows and threads are
around it. The plain path rounds some of them otherwise, so a code on the edge may fall to the other side.
"""

from __future__ import annotations

import ctypes
import functools

import torch

from engine.cpu.code_ir import IMPROVE, LANES, PULLS_AT_ONCE, kernel_text
from engine.cpu.compiler import compiled
from engine.cpu.machine_code import Kernels, task_fields, torch_open_mp
from engine.weights.code_descent import improve_plainly


class _Task(ctypes.Structure):
    _fields_ = task_fields(IMPROVE)


def improve(
    local: torch.Tensor, slopes: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, narrow: torch.dtype
) -> torch.Tensor:
    """As `improve_plainly`, which does the work where LLVM can't be had. Use it from one thread at a time."""
    kernels = _kernels()
    if kernels is None:
        return improve_plainly(local, slopes, codes, scale, narrow)
    size, rows = codes.shape
    assert size % PULLS_AT_ONCE == 0
    assert slopes.is_contiguous()
    assert codes.is_contiguous()
    assert scale.is_contiguous()
    local = local.contiguous()
    changes = torch.empty_like(codes)
    task = _Task(
        local=local.data_ptr(),
        slopes=slopes.data_ptr(),
        codes=codes.data_ptr(),
        scales=scale.data_ptr(),
        changes=changes.data_ptr(),
        size=size,
        rows=rows,
        narrow=narrow == torch.float16,
    )
    items = -(-rows // LANES)
    kernels.run("improve", task, items, threads=min(torch.get_num_threads(), items))
    return changes


@functools.cache
def _kernels() -> Kernels | None:
    engine = compiled(kernel_text())
    return None if engine is None else Kernels(engine, ("improve",), torch_open_mp())
