"""What was used least recently goes first, what is open stays, and nothing else is ever touched."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from engine.kept_files import entries, kept_files, limit_on_disk, remove_abandoned, remove_oldest
from engine.weights.part_file import PartFile, lock_for_reading

NAME = re.compile(r"[a-z]\.bin")
PART = re.compile(r"[a-z]\.[0-9a-f]{12}\.part")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Files of 100 bytes, used in the order c, a, b; and one that is none of ours."""
    for used, name in enumerate(("notes.txt", "c.bin", "a.bin", "b.bin")):
        path = tmp_path / name
        path.write_bytes(bytes(100))
        os.utime(path, ns=(used, used))
    return tmp_path


@pytest.mark.parametrize(
    ("num_bytes", "left"), [(-5, "abc"), (0, "abc"), (1, "ab"), (100, "ab"), (101, "b"), (300, "")]
)
def test_no_more_than_needed_goes_oldest_first(num_bytes: int, left: str, root: Path) -> None:
    assert remove_oldest(list(kept_files(root, NAME)), num_bytes)
    assert sorted(file.path.stem for file in kept_files(root, NAME)) == list(left)
    assert (root / "notes.txt").exists()


def test_what_is_open_stays_and_the_next_goes_instead(root: Path) -> None:
    with open(root / "c.bin", "rb", buffering=0) as handle:
        lock_for_reading(handle)
        assert remove_oldest(list(kept_files(root, NAME)), 100)
        assert sorted(file.path.stem for file in kept_files(root, NAME)) == ["b", "c"]
        assert not remove_oldest(list(kept_files(root, NAME)), 200), "there isn't as much to be had"
    assert [file.path.stem for file in kept_files(root, NAME)] == ["c"]


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert entries(missing) == list(kept_files(missing, NAME)) == []
    remove_abandoned(missing, PART)
    total = shutil.disk_usage(tmp_path).total
    assert limit_on_disk(missing / "deep", 0.5, total) == int(0.5 * total)
    assert limit_on_disk(missing, 0.5, 7) == 7


def test_only_what_nobody_writes_any_more_is_abandoned(root: Path) -> None:
    left, going_on = PartFile(root / "a.bin"), PartFile(root / "b.bin")
    left._close()  # the system does that when a process ends
    remove_abandoned(root, PART)
    assert not left.part_path.exists()
    going_on.finish()
    assert (root / "b.bin").stat().st_size == 0
