"""How much memory is really free, and the refusal when something does not fit."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from engine.errors import OutOfMemoryError
from engine.weights.mapped_files import mapped_bytes

RESERVE_BYTES = 256 * 2**20
"""Left to everything else: activations, the window, the system."""

_UNCHECKED_BYTES = 16 * 2**20  # asking the system costs more than it is worth below this
_TORCH_FAILURE = re.compile("Allocator: (can't allocate|not enough) memory")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Memory that can be had without swapping, within the limits of container and process."""
    found = (_system_available(), _cgroup_available(), _process_available())
    return min(available for available in found if available is not None)


def total_bytes() -> int:
    """Of the computer's memory, whoever has it."""
    return int(psutil.virtual_memory().total)


def check_available(num_bytes: int, what: str) -> None:
    """Raises OutOfMemoryError, with both numbers, when `num_bytes` more would not leave the reserve."""
    if num_bytes < _UNCHECKED_BYTES:
        return
    if not has_room_for(num_bytes):
        raise out_of_memory(num_bytes, what)


def out_of_memory(num_bytes: int, what: str) -> OutOfMemoryError:
    """That `what` needs `num_bytes`, which aren't there."""
    available = max(0, available_bytes() - RESERVE_BYTES)
    return OutOfMemoryError(
        f"{what} needs {mebibytes(num_bytes)}, but only {mebibytes(available)} of memory are free.",
        "Close other programs, or choose a smaller model or a shorter context.",
    )


def has_room_for(num_bytes: int) -> bool:
    """Whether `num_bytes` more would leave the reserve."""
    return num_bytes <= available_bytes() - RESERVE_BYTES


def check_weights_fit(num_bytes: int, form: str) -> None:
    """`form` stands behind "The weights need … of memory". Raises OutOfMemoryError."""
    available = max(0, available_bytes() - RESERVE_BYTES)
    if num_bytes > available:
        raise OutOfMemoryError(
            f"The weights need {mebibytes(num_bytes)} of memory {form}, but {mebibytes(available)} are free.",
            "Close other programs or choose a smaller model.",
        )


@contextmanager
def failed_allocations_told() -> Iterator[None]:
    """Raises OutOfMemoryError where Python or torch can't allocate: on the CPU, torch has no exception of its
    own for that.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _TORCH_FAILURE.search(str(error)):
            raise
        free = mebibytes(max(0, available_bytes()))
        raise OutOfMemoryError(
            f"The memory ran out in the middle of the work; {free} are free now.",
            "Close other programs, or choose a smaller model or a shorter context.",
        ) from error


def mebibytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.0f} MiB"


def _system_available() -> int:
    """Linux counts files as free that are mapped; the others don't."""
    available = int(psutil.virtual_memory().available)
    return max(0, available - mapped_bytes()) if sys.platform.startswith("linux") else available


def _cgroup_available() -> int | None:
    """What a container's limit (cgroup v2) leaves; files that were only cached, and are not in use, count as
    free. Those in use are taken to be among the active ones, as far as these go.
    """
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((_CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        in_use = max(0, mapped_bytes() - int(stat.get("active_file", 0)))
        return max(0, int(limit) - used + max(0, int(stat.get("inactive_file", 0)) - in_use))
    except (OSError, ValueError):
        return None  # no cgroup v2, or not ours to read: the system's figure stands alone


def _process_available() -> int | None:
    """What a limit on the process's address space (`ulimit -v`) leaves."""
    try:
        import resource
    except ImportError:
        return None  # Windows has no such limit
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    return max(0, limit - int(psutil.Process().memory_info().vms))
