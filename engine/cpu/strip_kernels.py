"""Machine code for strips, made once a process by LLVM: a product with one vector, and rows as float32.

torch has no product of float32 with codes in groups of 32 that isn't plain scalar code (its 4-bit kernel is
quick in bfloat16 only, with scales and results rounded to 8 bits), and its element-wise steps one after the
other take longer than reading float32 weights does. So the two loops that matter are LLVM IR, in
`strip_ir.py`; here they are compiled for this processor and called. `strip_matrix.py` has the plain path in
torch beside them.

The work is spread over torch's own OpenMP threads: a second team would fight with them for the cores.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch

from engine.cpu.compiler import compiled, compiled_for
from engine.cpu.machine_code import OpenMp, torch_open_mp
from engine.cpu.strip_ir import KERNELS, ROWS_AT_ONCE, dot_name, kernel_text
from engine.weights.strips import BLOCK, Strip


class Task(ctypes.Structure):
    """What one kernel works on, for all threads. The order is that of `_SHARE`."""

    _fields_ = (
        ("codes", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("blocks", ctypes.c_int64),
        ("shift", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("thread_num", ctypes.c_void_p),
        ("num_threads", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
    )


class StripKernels:
    """The compiled kernels. Use them from one thread at a time."""

    def __init__(self, engine: Any, open_mp: OpenMp | None) -> None:
        self.engine = engine  # owns the code
        self._open_mp = open_mp
        arguments = (ctypes.c_void_p,) * 5 + (ctypes.c_int64,) * 4
        self._plain = {
            name: ctypes.CFUNCTYPE(None, *arguments)(engine.get_function_address(name)) for name in KERNELS
        }
        self._shares = {name: engine.get_function_address(f"{name}_share") for name in KERNELS}
        self._pool: ThreadPoolExecutor | None = None

    def widen(self, strip: Strip, out: torch.Tensor) -> None:
        """`out` (N, K) float32, contiguous, becomes `dequantise(strip)`, bit for bit."""
        task = self.task(strip)
        task.out = out.data_ptr()
        self.run(f"widen{strip.bits}", task)

    def task(self, strip: Strip) -> Task:
        """All but x and out. It holds addresses only: the tensors have to live as long."""
        task = Task(
            codes=strip.codes.data_ptr(),
            scales=strip.scales.data_ptr(),
            offsets=None if strip.offsets is None else strip.offsets.data_ptr(),
            blocks=strip.columns // BLOCK,
            shift=(strip.group // BLOCK).bit_length() - 1,
            rows=strip.rows,
        )
        if self._open_mp is not None:
            task.thread_num, task.num_threads = self._open_mp.thread_num, self._open_mp.num_threads
        return task

    def run(self, name: str, task: Task) -> None:
        """One of `KERNELS` over all rows."""
        threads = min(torch.get_num_threads(), max(1, task.rows // ROWS_AT_ONCE))
        if threads > 1 and self._open_mp is not None:
            self._open_mp.parallel(self._shares[name], ctypes.byref(task), threads, 0)
            return
        pointers = task.codes, task.scales, task.offsets, task.x, task.out, task.blocks, task.shift
        if threads == 1:
            self._plain[name](*pointers, 0, task.rows)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(threads, "strips")
        borders = [task.rows * i // threads for i in range(threads + 1)]
        wait(
            [self._pool.submit(self._plain[name], *pointers, *share) for share in itertools.pairwise(borders)]
        )


class StripDot:
    """x (1, K) float32, contiguous, -> x @ dequantise(strip).T (1, N).

    What stays the same between calls is looked up once: for small matrices that takes half as long as the
    product does.
    """

    def __init__(self, kernels: StripKernels, strip: Strip) -> None:
        self._kernels = kernels
        self._strip = strip  # owns what the task points to
        self._name = dot_name(strip.bits, offsets=strip.offsets is not None)
        self._task = kernels.task(strip)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(1, self._strip.rows)
        self._task.x, self._task.out = x.data_ptr(), out.data_ptr()
        self._kernels.run(self._name, self._task)
        return out


@functools.cache
def strip_kernels() -> StripKernels | None:
    """None where LLVM can't be had; then torch does the work."""
    engine = compiled(kernel_text())
    return None if engine is None else StripKernels(engine, torch_open_mp())


def compile_kernels(cpu: str, features: str = "") -> StripKernels:
    """For another processor's features; see `compiled_for`."""
    return StripKernels(compiled_for(kernel_text(), cpu, features), torch_open_mp())
