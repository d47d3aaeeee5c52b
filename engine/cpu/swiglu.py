"""The gate of a feed-forward block: silu of the first half of each row times its second half.

Every number has one way of being computed here. torch computes exponentials 16 at a time and the rest of a
piece one by one, by another method; where its threads' pieces end depends on the number of rows, and so
would the last bit of some results.
"""

from __future__ import annotations

import ctypes
import functools

import torch
import torch.nn.functional as F  # noqa: N812  (the customary name)

from engine.cpu.compiler import compiled
from engine.cpu.machine_code import Kernels, task_fields, torch_open_mp
from engine.cpu.swiglu_ir import SWIGLU, kernel_text

_SERIAL_NUMBERS = 2**15  # a team would not make fewer quicker


class _Task(ctypes.Structure):
    """Items: rows. x (rows, 2 size) -> out (rows, size)."""

    _fields_ = task_fields(SWIGLU)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """(T, 2I), contiguous -> (T, I). A row has the same bits whatever is around it."""
    kernels = _kernels()
    if kernels is None:
        return torch.cat([_plain(row[None]) for row in gate_up])
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, size)
    task = _Task(x=gate_up.data_ptr(), out=out.data_ptr(), size=size)
    threads = min(torch.get_num_threads(), rows) if rows * size > _SERIAL_NUMBERS else 1
    kernels.run("swiglu", task, rows, threads=threads)
    return out


def _plain(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


@functools.cache
def _kernels() -> Kernels | None:
    engine = compiled(kernel_text())
    return None if engine is None else Kernels(engine, ("swiglu",), torch_open_mp())
