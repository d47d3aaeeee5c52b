"""Files that are kept in a folder of the person's within a budget: what was used least recently goes first.

When a file was used last is its time of change, since many systems don't keep access times. Files that are
open somewhere stay, see `engine.weights.part_file`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.weights.part_file import remove_unused

LEAST_FREE_BYTES = 10**9  # on the disk: what other programs need to go on working


@dataclass(frozen=True)
class KeptFile:
    path: Path
    num_bytes: int
    used_ns: int


def limit_on_disk(root: Path, fraction: float, most: int) -> int:
    """Bytes: that fraction of the disk on which the folder is or will be, but no more than `most`."""
    for folder in (root, *root.parents):
        try:
            return min(most, int(fraction * shutil.disk_usage(folder).total))
        except OSError:  # not there yet: its parent is on the same disk
            continue
    return most


def entries(root: Path) -> list[Path]:
    """What lies in the folder; nothing where it can't be read."""
    try:
        return list(root.iterdir())
    except OSError:  # not there, or unreadable: nothing can be kept in it, and writing tells so
        return []


def kept_files(root: Path, name: re.Pattern[str]) -> Iterator[KeptFile]:
    """The folder's files with such a name."""
    for path in entries(root):
        if name.fullmatch(path.name):
            try:
                status = path.stat()
            except OSError:  # another process removed it, or it can't be reached
                continue
            yield KeptFile(path, status.st_size, status.st_mtime_ns)


def remove_oldest(files: Iterable[KeptFile], num_bytes: int) -> bool:
    """Whether `num_bytes` are freed, by removing what was used least recently and is not open."""
    for file in sorted(files, key=lambda file: file.used_ns):
        if num_bytes <= 0:
            break
        try:
            if remove_unused(file.path):
                num_bytes -= file.num_bytes
        except OSError:  # it can't be removed, so it counts as one in use
            continue
    return num_bytes <= 0


def remove_abandoned(root: Path, name: re.Pattern[str]) -> None:
    """Removes files with such a name that processes left behind which ended while they were writing."""
    for path in entries(root):
        if name.fullmatch(path.name):
            try:
                remove_unused(path)
            except OSError:  # tried again the next time; a folder that can't be written tells itself
                pass
