"""Strips go to disk behind the load, whole or not at all, and nobody waits for the disk."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.weights import part_file
from engine.weights.strip_cache import StripCache
from engine.weights.strip_file import StripKey
from engine.weights.strip_keeper import StripKeeper, wait_for_keeper
from engine.weights.strips import Strip

KEY = StripKey(model="model", bits=8, group=32, quantiser_version=1)


def strip_of(value: int, rows: int = 4) -> Strip:
    return Strip(8, 32, torch.full((rows, 32), value, dtype=torch.int8), torch.ones(rows, 1))


class HeldDisk:
    """The `os` module of a disk that does nothing of one kind before `release` is set."""

    def __init__(self, held: str, error: int | None = None) -> None:
        self.reached, self.release = threading.Event(), threading.Event()
        self._held, self._error = held, error

    def __getattr__(self, name: str) -> Any:
        if name != self._held:
            return getattr(os, name)

        def call(*args: Any) -> Any:
            self.reached.set()
            assert self.release.wait(60)
            if self._error is not None:
                raise OSError(self._error, os.strerror(self._error))
            return getattr(os, name)(*args)

        return call


@pytest.fixture
def cache(tmp_path: Path) -> StripCache:
    return StripCache(tmp_path / "strips", 10**9)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "strip-keeper"]


def files(cache: StripCache) -> list[Path]:
    folder = cache.path(KEY).parent
    return list(folder.iterdir()) if folder.exists() else []


def kept_value(cache: StripCache) -> int | None:
    file = cache.open(KEY).file
    if file is None:
        return None
    value = int(file.read_strip("a").codes[0, 0])
    file.close()
    return value


@pytest.mark.parametrize("held", ["open", "write", "fsync", "replace"])
def test_nobody_waits_for_the_disk(held: str, cache: StripCache, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = HeldDisk(held)
    monkeypatch.setattr(part_file, "os", disk)
    with StripKeeper(cache, KEY, ["a", "b"]) as keeper:
        keeper.add("a", strip_of(3))
        keeper.add("b", strip_of(4))
        keeper.commit()
    assert disk.reached.wait(60)
    assert not cache.path(KEY).exists()
    disk.release.set()
    keeper.wait()
    assert kept_value(cache) == 3
    assert keeper.take_notices() == ()
    assert files(cache) == [cache.path(KEY)]


def test_giving_up_in_the_middle_of_a_large_strip_leaves_nothing(
    cache: StripCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = HeldDisk("write")
    monkeypatch.setattr(part_file, "os", disk)
    with StripKeeper(cache, KEY, ["a"]) as keeper:
        keeper.add("a", strip_of(1, rows=10**6))
        assert disk.reached.wait(60)
        threading.Timer(0.05, disk.release.set).start()
    assert files(cache) == []
    assert keeper.take_notices() == ()


def test_giving_up_with_strips_that_wait_leaves_nothing(cache: StripCache) -> None:
    with StripKeeper(cache, KEY, ["a", "b", "c"]) as keeper:
        keeper.add("a", strip_of(1))
        keeper.add("b", strip_of(1))
    assert files(cache) == []


@pytest.mark.parametrize("held", ["open", "write", "fsync", "replace"])
def test_what_goes_wrong_is_told_once(held: str, cache: StripCache, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = HeldDisk(held, errno.ENOSPC)
    disk.release.set()
    monkeypatch.setattr(part_file, "os", disk)
    with StripKeeper(cache, KEY, ["a", "b"]) as keeper:
        keeper.add("a", strip_of(3))
        keeper.add("b", strip_of(4))
        keeper.commit()
    keeper.wait()
    assert [notice.code for notice in keeper.take_notices()] == ["strips-not-kept"]
    assert keeper.take_notices() == ()
    assert files(cache) == []


def test_who_wants_the_file_waits_for_it_and_may_stop_waiting(
    cache: StripCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = HeldDisk("fsync")
    monkeypatch.setattr(part_file, "os", disk)
    with StripKeeper(cache, KEY, ["a"]) as keeper:
        keeper.add("a", strip_of(5))
        keeper.commit()

    def give_up() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        wait_for_keeper(cache.path(KEY), give_up)
    looks: list[None] = []

    def look() -> None:
        looks.append(None)
        disk.release.set()

    wait_for_keeper(cache.path(KEY), look)
    assert looks
    assert kept_value(cache) == 5
    wait_for_keeper(cache.path(KEY), give_up)  # nobody is at work any more: nothing is waited for


ENDS_AT_ONCE = """
import os, sys, time
from pathlib import Path
import torch
from engine.weights import part_file
from engine.weights.strip_cache import StripCache
from engine.weights.strip_file import StripKey
from engine.weights.strip_keeper import StripKeeper
from engine.weights.strips import Strip

class SlowDisk:
    def __getattr__(self, name):
        return getattr(os, name)
    def fsync(self, descriptor):
        time.sleep(0.5)

part_file.os = SlowDisk()
cache = StripCache(Path(sys.argv[1]), 10**9)
key = StripKey(model="model", bits=8, group=32, quantiser_version=1)
with StripKeeper(cache, key, ["a"]) as keeper:
    keeper.add("a", Strip(8, 32, torch.full((10**5, 32), 7, dtype=torch.int8), torch.ones(10**5, 1)))
    keeper.commit()
if sys.argv[2] == "raise":
    raise KeyError("the last words of a process")
"""


@pytest.mark.parametrize("end", ["return", "raise"])
def test_process_that_ends_behind_the_load_leaves_the_whole_file(end: str, cache: StripCache) -> None:
    command = [sys.executable, "-c", ENDS_AT_ONCE, str(cache.path(KEY).parent), end]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == (0 if end == "return" else 1)
    assert ("last words" in done.stderr) == (end == "raise")
    assert done.stderr.count("Traceback") == (0 if end == "return" else 1)
    assert kept_value(cache) == 7
    assert files(cache) == [cache.path(KEY)]
