"""Whatever happens to the folder, a load goes on, and what is in the folder is whole."""

from __future__ import annotations

import errno
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kept_strips import LIMIT, NAMES, files_in, keep, key_of, strip_of, value_in

from engine import durability
from engine.weights import part_file, strip_cache
from engine.weights.strip_cache import StripCache
from engine.weights.strip_file import StripFileError

if sys.platform != "win32":
    import fcntl


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "strips"


@pytest.fixture
def cache(root: Path) -> StripCache:
    return StripCache(root, LIMIT)


class FailingOs:
    """The `os` module, in which the call number `fail_at` of the function `fails` raises `error`."""

    def __init__(self, fails: str = "", fail_at: int = 0, error: int = errno.EIO) -> None:
        self.calls: Counter[str] = Counter()
        self.order: list[str] = []
        self._fails, self._fail_at, self._error = fails, fail_at, error

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if not callable(real):
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            number = self.calls[name]
            self.calls[name] += 1
            self.order.append(name)
            if name == self._fails and number == self._fail_at:
                raise OSError(self._error, os.strerror(self._error))
            return real(*args, **kwargs)

        return call


def use_os(patch: pytest.MonkeyPatch, fake: FailingOs) -> None:
    """In everything that writes files."""
    for module in (part_file, durability):
        patch.setattr(module, "os", fake)


def test_what_was_kept_is_there_the_next_time(cache: StripCache, root: Path) -> None:
    assert cache.open(key_of()) == strip_cache.Lookup(None)
    assert not root.exists(), "looking makes no folder"
    assert keep(cache, key_of(), 7)
    assert value_in(StripCache(root, LIMIT), key_of()) == 7
    assert files_in(root) == [cache.path(key_of()).name]


def test_models_and_options_have_files_of_their_own(cache: StripCache) -> None:
    keys = [
        key_of(),
        key_of("other"),
        key_of(bits=4),
        key_of(group=256),
        key_of(calibration="text"),
        key_of(scale_dtype="float32"),
    ]
    for i, key in enumerate(keys):
        keep(cache, key, i)
    assert [value_in(cache, key) for key in keys] == list(range(len(keys)))


def test_a_newer_version_takes_the_place_of_the_older(cache: StripCache, root: Path) -> None:
    keep(cache, key_of(), 1)
    newer = key_of(quantiser_version=2)
    lookup = cache.open(newer)
    assert lookup.file is None
    assert [notice.code for notice in lookup.notices] == ["strips-outdated"]
    keep(cache, newer, 2)
    assert value_in(cache, newer) == 2
    assert len(files_in(root)) == 1


def test_a_file_of_another_model_under_this_ones_name_is_not_used(cache: StripCache) -> None:
    keep(cache, key_of("other"))
    os.replace(cache.path(key_of("other")), cache.path(key_of()))
    lookup = cache.open(key_of())
    assert lookup.file is None
    assert [notice.code for notice in lookup.notices] == ["strips-unusable"]
    assert "it belongs to another model" in lookup.notices[0].message


def empty_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "emptied": lambda path: os.truncate(path, 0),
    "cut short": lambda path: os.truncate(path, path.stat().st_size - 1),
    "longer": lambda path: os.truncate(path, path.stat().st_size + 1),
    "text": lambda path: path.write_text("no strips"),
    "a folder": empty_folder,
}
if sys.platform != "win32":
    DAMAGES["a link to nothing"] = lambda path: (path.unlink(), path.symlink_to("nowhere"))
    DAMAGES["a pipe"] = lambda path: (path.unlink(), os.mkfifo(path))


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_file_that_can_not_be_used_is_told_and_made_again(
    kind: str, cache: StripCache, tmp_path: Path
) -> None:
    keep(cache, key_of(), 1)
    DAMAGES[kind](cache.path(key_of()))
    lookup = cache.open(key_of())
    assert lookup.file is None
    assert [notice.code for notice in lookup.notices] == ["strips-unusable"]
    if kind != "a folder":  # nothing takes the place of a folder; this is told
        assert keep(cache, key_of(), 2)
        assert value_in(cache, key_of()) == 2
    else:
        assert not keep(cache, key_of(), 2)


def test_damage_that_shows_while_reading_is_told_and_made_again(cache: StripCache) -> None:
    keep(cache, key_of(), 1)
    path = cache.path(key_of())
    damaged = bytearray(path.read_bytes())
    damaged[-100] ^= 4
    path.write_bytes(damaged)
    file = cache.open(key_of()).file
    assert file is not None
    with pytest.raises(StripFileError, match="checksum") as caught:
        file.read_strip("layers.0.qkv")
    notice = cache.discard(file, caught.value)
    assert notice.code == "strips-unusable"
    assert "the checksum of layers.0.qkv/codes is wrong" in notice.message
    keep(cache, key_of(), 2)
    assert value_in(cache, key_of()) == 2


def calls_of_one_load(root: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    with monkeypatch.context() as patch:
        counting = FailingOs()
        use_os(patch, counting)
        assert keep(StripCache(root, LIMIT), key_of())
    return counting.calls


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("function", ["open", "lseek", "write", "fsync", "replace", "close", "fstat"])
def test_a_failure_at_any_call_leaves_the_old_file_or_the_new_one(
    function: str, error: int, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_calls = calls_of_one_load(tmp_path / "counted", monkeypatch)[function]
    assert num_calls > 0
    cache = StripCache(root, LIMIT)
    for number in range(num_calls):
        keep(cache, key_of(), 1)
        with monkeypatch.context() as patch:
            use_os(patch, FailingOs(function, number, error))
            with cache.writer(key_of(), NAMES) as writer:
                writer.add_strip("layers.0.qkv", strip_of(2))
                writer.add_tensor("norm", torch.full((3,), 2.0))
                kept = writer.commit()
        assert [notice.code for notice in writer.notices] == ([] if kept else ["strips-not-kept"])
        assert value_in(cache, key_of()) in ((2,) if kept else (1, 2))
        assert files_in(root) == [cache.path(key_of()).name]
        if not kept and error == errno.ENOSPC:
            assert "is full" in writer.notices[0].message


def test_the_disk_has_everything_before_the_file_gets_its_name(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut could leave the name on a file of zeros."""
    watched = FailingOs()
    use_os(monkeypatch, watched)
    keep(StripCache(root, LIMIT), key_of())
    order = [name for name in watched.order if name in ("write", "fsync", "replace")]
    assert order[-3:] == ["fsync", "replace", "fsync"]
    assert set(order[:-3]) == {"write"}


def test_only_a_folder_that_can_not_be_flushed_is_no_reason_to_complain(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_os(monkeypatch, FailingOs("fsync", 1, errno.EINVAL))
    assert keep(StripCache(root, LIMIT), key_of())


def test_strips_that_another_program_removes_while_they_are_written_are_told(
    cache: StripCache, root: Path
) -> None:
    with cache.writer(key_of(), ["a"]) as writer:
        writer.add_tensor("a", torch.zeros(3))
        for name in files_in(root):
            (root / name).unlink()
        assert not writer.commit()
    assert [notice.code for notice in writer.notices] == ["strips-not-kept"]
    assert files_in(root) == []


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks there")
@pytest.mark.parametrize(("removals", "kept"), [(1, True), (100, False)])
def test_a_new_file_that_is_tidied_away_before_it_is_locked_is_made_again(
    removals: int, kept: bool, cache: StripCache, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another process does that starts in the same instant."""
    real_lock, left = fcntl.flock, [removals]

    def lock(descriptor: int, operation: int) -> None:
        if left[0] > 0:
            left[0] -= 1
            for name in files_in(root):
                (root / name).unlink()
        real_lock(descriptor, operation)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", lock)
        assert keep(cache, key_of(), 1) == kept
    assert value_in(cache, key_of()) == (1 if kept else None)
    assert len(files_in(root)) == int(kept)


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks there")
@pytest.mark.parametrize("error", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_file_systems_without_locks_will_do(
    error: int, cache: StripCache, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert keep(cache, key_of("a"), 1)
    assert value_in(cache, key_of("a")) == 1
    tight = StripCache(root, cache.path(key_of("a")).stat().st_size)
    assert keep(tight, key_of("b"), 2)
    assert (value_in(tight, key_of("a")), value_in(tight, key_of("b"))) == (None, 2)


def test_short_writes_are_continued(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowOs(FailingOs):
        def write(self, descriptor: int, data: memoryview) -> int:
            return os.write(descriptor, data[:7])

    use_os(monkeypatch, SlowOs())
    cache = StripCache(root, LIMIT)
    assert keep(cache, key_of(), 3)
    assert value_in(cache, key_of()) == 3


def test_what_can_not_be_removed_now_is_removed_at_the_next_load(
    cache: StripCache, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch, cache.writer(key_of(), NAMES) as writer:
        writer.add_tensor("norm", torch.zeros(3))
        patch.setattr(Path, "unlink", refuse)
        writer.abort()
        cache.open(key_of())
    assert len(files_in(root)) == 1
    cache.open(key_of())
    assert files_in(root) == []


def test_a_folder_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = StripCache(tmp_path / "file" / "strips", LIMIT)
    assert cache.open(key_of()) == strip_cache.Lookup(None)
    assert not keep(cache, key_of())


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="everything is allowed to root")
def test_a_read_only_folder_is_read_and_writing_it_is_told(cache: StripCache, root: Path) -> None:
    keep(cache, key_of(), 1)
    root.chmod(0o500)
    try:
        assert value_in(cache, key_of()) == 1
        assert not keep(cache, key_of("other"), 2)
    finally:
        root.chmod(0o700)


def test_files_whose_time_can_not_be_set_are_read(cache: StripCache, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(cache, key_of(), 1)
    monkeypatch.setattr(strip_cache, "os", FailingOs("utime", 0, errno.EROFS))
    assert value_in(cache, key_of()) == 1
