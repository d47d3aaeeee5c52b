"""Files that lie in this process's memory as they are on disk, and how many bytes that comes to.

Linux counts what is mapped among the memory that can be had at once: it may drop such pages, since the disk
has them. But weights are read at every token, and who takes their place has each token wait for the disk.
"""

from __future__ import annotations

import mmap
import weakref

from engine.weights.weight_file import WeightFile

_sizes: dict[int, int] = {}  # bytes of each map that still exists


def map_of(file: WeightFile) -> mmap.mmap | None:
    """The whole file; None where the system doesn't map it, or it has become shorter. What is written to it
    changes this process's pages, not the file.
    """
    try:
        whole = mmap.mmap(file.handle.fileno(), file.size, access=mmap.ACCESS_COPY)
    except (OSError, ValueError, OverflowError):
        return None
    _sizes[id(whole)] = file.size
    weakref.finalize(whole, _sizes.pop, id(whole)).atexit = False
    return whole


def mapped_bytes() -> int:
    """Bytes of all files that are mapped, until the last array in them is gone."""
    return sum(tuple(_sizes.values()))
