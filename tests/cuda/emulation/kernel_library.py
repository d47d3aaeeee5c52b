"""Kernels in a shared library, and what went wrong in them."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from engine.cuda.driver import CardFaultError


class KernelLibrary:
    """A shared library of kernels, as `EmulatedCompiler` makes them."""

    def __init__(self, code: bytes) -> None:
        self._code = code
        with self._file() as name:
            self._library = ctypes.CDLL(name)
        self._library.kestrel_error.restype = ctypes.c_char_p
        self._library.kestrel_set_order.argtypes = [ctypes.c_uint64]
        self._library.kestrel_set_time_limit.argtypes = [ctypes.c_uint]
        self._library.kestrel_set_most_shared.argtypes = [ctypes.c_uint]
        self._library.kestrel_set_processors.argtypes = [ctypes.c_uint]
        self._damaged = self._library.kestrel_damaged
        self._damaged.restype = ctypes.c_int64
        self._damaged.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64]

    def kernel(self, name: str) -> EmulatedKernel:
        try:
            launch = getattr(self._library, f"kestrel_launch_{name}")
            size = ctypes.c_uint.in_dll(self._library, f"kestrel_size_{name}").value
        except (AttributeError, ValueError):
            raise CardFaultError(f"The code has no kernel {name}.") from None
        launch.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 5]
        return EmulatedKernel(name, size, launch, self)

    def set_up(
        self, *, order_seed: int, time_limit_s: int, most_shared_bytes: int, multiprocessors: int
    ) -> None:
        """For launches after this."""
        self._library.kestrel_set_order(order_seed)
        self._library.kestrel_set_time_limit(time_limit_s)
        self._library.kestrel_set_most_shared(most_shared_bytes)
        self._library.kestrel_set_processors(multiprocessors)

    def error(self) -> str:
        """Of the last launch that failed; a place in the code becomes a line, if that can be found."""
        text = (self._library.kestrel_error() or b"").decode(errors="replace")
        return re.sub(r"\[code \+(0x[0-9a-f]+)\]", lambda found: f"[{self._line(found[1])}]", text)

    def _line(self, offset: str) -> str:
        tool = shutil.which("addr2line")
        if tool is None:
            return f"code +{offset}"
        with self._file() as name:
            asked = [tool, "-s", "-e", name, offset]
            return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()

    @contextmanager
    def _file(self) -> Iterator[str]:
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(self._code)
            file.flush()
            yield file.name

    def first_damaged(self, starts: np.ndarray, pattern: np.ndarray) -> int | None:
        """Index of the first address at which `pattern` isn't."""
        found = self._damaged(starts.ctypes.data, len(starts), pattern.ctypes.data, pattern.size)
        return None if found < 0 else found


@dataclass(frozen=True)
class EmulatedKernel:
    """size: bytes of its arguments' structure."""

    name: str
    size: int
    launch: Callable[..., int]
    library: KernelLibrary
