"""Compiled kernels (see `compiler.py`), and torch's own threads to run them on."""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.cpu.vector_ir import TASK_HEAD, Fields


@dataclass(frozen=True)
class OpenMp:
    """torch's own team of threads. A second team would fight with it for the cores."""

    parallel: Callable[..., Any]
    thread_num: int  # address of omp_get_thread_num
    num_threads: int  # address of omp_get_num_threads


@functools.cache
def torch_open_mp() -> OpenMp | None:
    """The entry to torch's OpenMP where it is GNU's or LLVM's under its GNU names (Linux, macOS)."""
    ending = {"linux": "so", "darwin": "dylib"}.get(sys.platform)
    if ending is None or "openmp" not in torch.__config__.parallel_info().lower():
        return None
    try:
        # Loaded already: a look-up by its handle also finds what it was linked with.
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / f"libtorch_cpu.{ending}"))
        parallel = library.GOMP_parallel
        functions = library.omp_get_thread_num, library.omp_get_num_threads
    except (OSError, AttributeError):
        return None
    parallel.restype = None
    parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
    thread_num, num_threads = addresses
    if thread_num is None or num_threads is None:
        return None
    return OpenMp(parallel, thread_num, num_threads)


_TYPES = {"i64": ctypes.c_int64, "ptr": ctypes.c_void_p, "double": ctypes.c_double}


def task_fields(fields: Fields) -> list[tuple[str, Any]]:
    """For a `ctypes.Structure`: what a kernel's task has behind `TASK_HEAD`."""
    return [(name, _TYPES[kind]) for name, kind in TASK_HEAD + fields]


class Kernels:
    """Kernels in the form of `vector_ir.py`, by name. Use them from one thread at a time."""

    def __init__(self, engine: Any, names: Sequence[str], open_mp: OpenMp | None) -> None:
        self.engine = engine  # owns the code
        self.names = tuple(names)
        self._open_mp = open_mp
        kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self._plain = {name: kernel(engine.get_function_address(name)) for name in names}
        self._shares = {name: engine.get_function_address(f"{name}_share") for name in names}
        self._workers: ThreadPoolExecutor | None = None

    def run(self, name: str, task: Any, items: int, *, threads: int = 1) -> None:
        """Over all items. A task holds addresses only: the tensors have to live as long."""
        address = ctypes.addressof(task)
        if threads == 1:
            self._plain[name](address, 0, items)
        elif self._open_mp is not None:
            task.items = items
            task.thread_num, task.num_threads = self._open_mp.thread_num, self._open_mp.num_threads
            self._open_mp.parallel(self._shares[name], address, threads, 0)
        else:
            if self._workers is None:
                self._workers = ThreadPoolExecutor(threads, "kernels")
            borders = [items * i // threads for i in range(threads + 1)]
            shares = itertools.pairwise(borders)
            wait([self._workers.submit(self._plain[name], address, *each) for each in shares])
