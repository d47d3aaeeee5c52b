"""Files that lie in this process's memory as they are on disk, and how many bytes that comes to.

Linux counts what is mapped among the memory that can be had at once: it may drop such pages, since the disk
has them. But weights are read at every token, and who takes their place has each token wait for the disk.
"""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from pathlib import Path

import psutil

from engine.weights.weight_file import WeightFile

# What a file system is called whose files lie elsewhere: with another computer, or with the host of this one.
_ELSEWHERE = frozenset(
    {
        "9p", "afpfs", "afs", "beegfs", "ceph", "cifs", "gpfs", "lustre", "macfuse", "ncpfs", "nfs", "nfs4",
        "orangefs", "osxfuse", "prl_fs", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs", "webdav",
    }
)  # fmt: skip
_PROGRAMS = "fuse."  # in front of its name: a program that may end (local disks have "fuseblk")

_sizes: dict[int, int] = {}  # bytes of each map that still exists


def map_of(file: WeightFile) -> mmap.mmap | None:
    """The whole file; None where the system doesn't map it, it has become shorter, or it lies where it may
    become unreachable: reading reports that, a map ends the process. What is written to the map changes this
    process's pages, not the file.
    """
    if lies_elsewhere(file.path):
        return None
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


def lies_elsewhere(path: Path) -> bool:
    """Whether it takes a network or another program to reach a file. Where nothing is known, it doesn't."""
    real = os.path.realpath(path)
    if sys.platform == "win32":
        return real.startswith("\\\\")
    try:
        mounted = psutil.disk_partitions(all=True)
    except OSError:
        return False
    kind, length = "", -1
    for each in mounted:
        if len(each.mountpoint) >= length and Path(real).is_relative_to(
            each.mountpoint
        ):  # the later one hides
            kind, length = each.fstype, len(each.mountpoint)
    return kind in _ELSEWHERE or kind.startswith(_PROGRAMS)
