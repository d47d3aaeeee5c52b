"""An open file of weights, read by offset.

Files are not mapped into memory: a map needs address space for the whole file, ends the process when the file
shrinks, and faults its pages in while the caller holds the interpreter's lock. `readinto` does none of that.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.checkpoints.foreign_files import file_error, open_binary, shown
from engine.errors import ModelFileError, OutOfMemoryError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch


OnBytes = Callable[[int], None]
"""Called on the thread that reads, with how many more bytes of the file are done. What it raises ends it."""

_CHUNK_BYTES = 4 * 2**20  # between two calls of it: a slow disk's 40 ms, and too long for the calls to count


def unwatched(_: int) -> None:
    """For reading that nobody follows."""


ALIGNMENT = 64  # bytes, of a cache line and of the widest registers
_preadv = getattr(os, "preadv", None)  # Windows and old systems have none


class WeightFile:
    """Reads are safe from several threads, and where the system can read at a place, they run at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle: io.FileIO = open_binary(path)
        self.size = os.fstat(self.handle.fileno()).st_size
        self._lock = threading.Lock()

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fills `buffer` from `offset` on; the interpreter's lock is released while the disk works."""
        done = 0
        try:
            while done < len(buffer):
                count = self._read_some(buffer[done:], offset + done)
                if not count:
                    raise ModelFileError(
                        f"{shown(self.path.name)} has become shorter since it was opened.",
                        "Wait until its download or copy is finished, then load it again.",
                    )
                done += count
        except OSError as error:
            raise file_error(self.path, error) from error

    def read_tensor_bytes(self, buffer: torch.Tensor, offset: int, on_bytes: OnBytes = unwatched) -> None:
        """`read_into` for a flat byte tensor, a few megabytes at a time."""
        view: Any = buffer.numpy()  # shares its memory
        whole = memoryview(view)
        for done in range(0, len(whole), _CHUNK_BYTES):
            chunk = whole[done : done + _CHUNK_BYTES]
            self.read_into(chunk, offset + done)
            on_bytes(len(chunk))

    def _read_some(self, buffer: memoryview, offset: int) -> int:
        """How many bytes came: at most 2 GiB a call on Linux."""
        if _preadv is not None:
            return int(_preadv(self.handle.fileno(), [buffer], offset))
        with self._lock:  # joins each seek to its read
            self.handle.seek(offset)
            return self.handle.readinto(buffer) or 0

    def close(self) -> None:
        self.handle.close()


def new_buffer(num_bytes: int, name: str) -> torch.Tensor:
    """`num_bytes` of memory as a byte tensor. Raises OutOfMemoryError."""
    import torch

    try:
        return torch.empty(num_bytes, dtype=torch.uint8)
    except (RuntimeError, MemoryError) as error:  # torch's allocator raises RuntimeError
        raise _no_memory(num_bytes, name) from error


def new_array(num_bytes: int, name: str) -> npt.NDArray[np.uint8]:
    """`num_bytes` of memory where torch may not be there yet, aligned as its tensors are. Raises
    OutOfMemoryError.
    """
    import numpy as np

    try:
        whole = np.empty(num_bytes + ALIGNMENT, np.uint8)
    except MemoryError as error:
        raise _no_memory(num_bytes, name) from error
    start = -whole.ctypes.data % ALIGNMENT
    return whole[start : start + num_bytes]


def _no_memory(num_bytes: int, name: str) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"There is no memory for {shown(name)} ({num_bytes:,} bytes).",
        "Close other programs, or pick a smaller model.",
    )
