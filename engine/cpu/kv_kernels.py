"""Machine code for pages: rows into them and out of them, and attention of one query right over them.

Reading int8 codes directly, decoding touches a quarter of the bytes that float32 rows are; torch would have
to write them out as float32 first. `kv_rows.py` and `attention.py` have the plain paths in torch beside it.
"""

from __future__ import annotations

import ctypes
import functools

from engine.cpu.compiler import compiled
from engine.cpu.kv_attention_ir import ATTEND
from engine.cpu.kv_ir import kernel_text, kernels
from engine.cpu.kv_rows_ir import APPEND, WIDEN
from engine.cpu.machine_code import Kernels, task_fields, torch_open_mp
from engine.kv_geometry import KvFormat


class AppendTask(ctypes.Structure):
    _fields_ = task_fields(APPEND)


class WidenTask(ctypes.Structure):
    _fields_ = task_fields(WIDEN)


class AttendTask(ctypes.Structure):
    _fields_ = task_fields(ATTEND)


@functools.cache
def kv_kernels(kv_format: KvFormat) -> Kernels | None:
    """Compiled at the first call (about 0.2 s). None where LLVM can't be had; then torch does the work."""
    engine = compiled(kernel_text(kv_format))
    return None if engine is None else Kernels(engine, kernels(kv_format), torch_open_mp())
