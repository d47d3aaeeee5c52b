"""Reading by offset: everything that was asked for, or an error."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path

import pytest

from engine.errors import ModelFileError
from engine.weights import weight_file
from engine.weights.weight_file import WeightFile

CONTENT = bytes(range(256)) * 40


class SlowDisk(io.BytesIO):
    """Gives at most 100 bytes a call, as systems do with more than 2 GiB."""

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        return super().readinto(buffer[:100])


class BrokenDisk(io.BytesIO):
    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        raise OSError(5, "Input/output error")


WAYS = ["at a place"] if hasattr(os, "preadv") else []


@pytest.fixture(params=[*WAYS, "seek and read"])
def file(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WeightFile:
    """Read in each of the ways that systems have."""
    if request.param == "seek and read":
        monkeypatch.setattr(weight_file, "_preadv", None)
    path = tmp_path / "weights.bin"
    path.write_bytes(CONTENT)
    return WeightFile(path)


def put(disk: io.BytesIO, file: WeightFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the file read from there instead."""
    file.handle.close()
    file.handle = disk  # type: ignore[assignment]
    if weight_file._preadv is not None:
        monkeypatch.setattr(disk, "fileno", lambda: 0, raising=False)

        def preadv(_: int, buffers: list[memoryview], offset: int) -> int:
            disk.seek(offset)
            return disk.readinto(buffers[0])

        monkeypatch.setattr(weight_file, "_preadv", preadv)


@pytest.mark.parametrize(
    ("offset", "size"), [(0, 0), (0, 1), (7, 99), (7, 100), (7, 101), (10_139, 101), (10_240, 0)]
)
def test_short_reads_are_continued(
    offset: int, size: int, file: WeightFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(SlowDisk(CONTENT), file, monkeypatch)
    buffer = bytearray(size)
    file.read_into(memoryview(buffer), offset)
    assert bytes(buffer) == CONTENT[offset : offset + size]


def test_reading_past_the_end_is_told(file: WeightFile) -> None:
    with pytest.raises(ModelFileError, match=r"weights\.bin has become shorter"):
        file.read_into(memoryview(bytearray(101)), len(CONTENT) - 100)
    file.close()


def test_a_failing_disk_is_told(file: WeightFile, monkeypatch: pytest.MonkeyPatch) -> None:
    put(BrokenDisk(CONTENT), file, monkeypatch)
    with pytest.raises(ModelFileError, match=r"weights\.bin can't be read: the disk reports an error"):
        file.read_into(memoryview(bytearray(1)), 0)


def test_threads_read_their_own_bytes(file: WeightFile) -> None:
    """Without the lock one thread's seek would move another's read."""
    wrong: list[int] = []

    def read_all(start: int) -> None:
        for offset in range(start, len(CONTENT) - 64, 8):
            buffer = bytearray(64)
            file.read_into(memoryview(buffer), offset)
            if bytes(buffer) != CONTENT[offset : offset + 64]:
                wrong.append(offset)

    threads = [threading.Thread(target=read_all, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.close()
    assert wrong == []
