"""Whatever happens to the folder, a load goes on, and what is in the folder is whole."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import durability
from engine.weights import part_file, strip_cache
from engine.weights.strip_cache import MAX_LIMIT_BYTES, StripCache, default_limit
from engine.weights.strip_file import StripFile, StripFileError, StripKey
from engine.weights.strips import Strip

if sys.platform != "win32":
    import fcntl

LIMIT = 10**9
NAMES = ("layers.0.qkv", "norm")


def key_of(model: str = "model", **others: Any) -> StripKey:
    return StripKey(**{"model": model, "bits": 8, "group": 32, "quantiser_version": 1, **others})


def strip_of(value: int, rows: int = 4) -> Strip:
    return Strip(8, 32, torch.full((rows, 32), value, dtype=torch.int8), torch.full((rows, 1), float(value)))


def keep(cache: StripCache, key: StripKey, value: int = 1, *, rows: int = 4) -> bool:
    """Stores a strip and a tensor of this value, as a load does."""
    with cache.writer(key, NAMES) as writer:
        writer.add_strip("layers.0.qkv", strip_of(value, rows))
        writer.add_tensor("norm", torch.full((3,), float(value)))
        kept = writer.commit()
    assert kept == (writer.notices == ())
    return kept


def value_in(cache: StripCache, key: StripKey) -> int | None:
    """The value that `keep` stored, everything read and compared; None where nothing usable is kept."""
    lookup = cache.open(key)
    if lookup.file is None:
        return None
    value = int(lookup.file.read_tensor("norm")[0])
    strip = lookup.file.read_strip("layers.0.qkv")
    lookup.file.close()
    assert (strip.codes == value).all()
    assert (strip.scales == value).all()
    return value


def files_in(root: Path) -> list[str]:
    return sorted(os.listdir(root)) if root.exists() else []


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


# --- limits


def age(cache: StripCache, key: StripKey, seconds: int) -> None:
    path = cache.path(key)
    used = path.stat().st_mtime - seconds
    os.utime(path, (used, used))


def test_the_least_recently_used_go_first(root: Path) -> None:
    cache = StripCache(root, LIMIT)
    keys = [key_of(name) for name in "abcd"]
    for i, key in enumerate(keys[:3]):
        keep(cache, key, i)
        age(cache, key, 100 - i)
    size = cache.path(keys[0]).stat().st_size
    assert value_in(cache, keys[0]) == 0, "which makes it the last one used"
    tight = StripCache(root, 3 * size)
    assert keep(tight, keys[3], 3)
    assert [value_in(tight, key) for key in keys] == [0, None, 2, 3]


def test_what_is_open_is_not_removed(root: Path) -> None:
    cache = StripCache(root, LIMIT)
    keep(cache, key_of("a"), 1)
    tight = StripCache(root, cache.path(key_of("a")).stat().st_size)
    file = StripCache(root, LIMIT).open(key_of("a")).file
    assert file is not None
    with tight.writer(key_of("b"), NAMES) as writer:
        writer.add_strip("layers.0.qkv", strip_of(2))
        writer.add_tensor("norm", torch.zeros(3))
        assert not writer.commit()
    assert "may hold" in writer.notices[0].message
    file.close()
    assert keep(tight, key_of("b"), 2)
    assert (value_in(tight, key_of("a")), value_in(tight, key_of("b"))) == (None, 2)


def test_a_file_that_takes_the_place_of_its_older_self_costs_no_other(root: Path) -> None:
    cache = StripCache(root, LIMIT)
    keep(cache, key_of("a"), 1)
    age(cache, key_of("a"), 100)
    keep(cache, key_of("b"), 2)
    tight = StripCache(root, 2 * cache.path(key_of("a")).stat().st_size)
    assert keep(tight, key_of("b"), 3)
    assert (value_in(tight, key_of("a")), value_in(tight, key_of("b"))) == (1, 3)


def test_strips_beyond_the_limit_stop_being_written_at_once(root: Path) -> None:
    cache = StripCache(root, 50_000)
    keep(cache, key_of("a"), 1)
    with cache.writer(key_of("b"), ["big", "later"]) as writer:
        writer.add_tensor("big", torch.zeros(20_000))
        assert [notice.code for notice in writer.notices] == ["strips-not-kept"]
        assert len(files_in(root)) == 1, "nothing of it is left, and nothing went for it"
        writer.add_tensor("later", torch.zeros(1))
        assert not writer.commit()
    assert len(writer.notices) == 1
    assert value_in(cache, key_of("a")) == 1


def test_other_programs_keep_room_on_the_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest file goes when the disk gets full; when none is left, nothing is kept."""
    cache = StripCache(root, LIMIT)
    keep(cache, key_of("a"), 1)
    kept_bytes = cache.path(key_of("a")).stat().st_size

    def usage(_: Path) -> SimpleNamespace:
        return SimpleNamespace(free=free + (0 if cache.path(key_of("a")).exists() else kept_bytes))

    monkeypatch.setattr(strip_cache.shutil, "disk_usage", usage)
    free = strip_cache.LEAST_FREE_BYTES - kept_bytes
    assert keep(cache, key_of("b"), 2)
    assert (value_in(cache, key_of("a")), value_in(cache, key_of("b"))) == (None, 2)
    free = 0
    assert not keep(cache, key_of("c"), 3)


def test_only_files_of_the_cache_are_ever_removed(root: Path) -> None:
    root.mkdir(parents=True)
    foreign = ["notes.txt", "model.safetensors", "x.part", f"{'0' * 31}.safetensors"]
    for name in foreign:
        (root / name).write_bytes(bytes(100))
    tight = StripCache(root, 6_000)
    for name in "abcdefgh":
        keep(tight, key_of(name))
    assert set(foreign) <= set(files_in(root))
    assert len(files_in(root)) < len(foreign) + 8


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 300), st.booleans()), max_size=12),
    limit=st.integers(5_000, 60_000),
)
def test_no_order_of_loads_breaks_the_limit(
    steps: list[tuple[str, int, bool]], limit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("strips")
    cache = StripCache(root, limit)
    values: dict[str, int] = {}
    for i, (name, rows, finishes) in enumerate(steps):
        assert value_in(cache, key_of(name)) in (None, values.get(name))
        if finishes:
            if keep(cache, key_of(name), i, rows=rows):
                values[name] = i
                assert value_in(cache, key_of(name)) == i
        else:
            with cache.writer(key_of(name), NAMES) as writer:
                writer.add_strip("layers.0.qkv", strip_of(i, rows))
        assert sum(path.stat().st_size for path in root.iterdir()) <= limit
        assert all(path.suffix == ".safetensors" for path in root.iterdir())


def test_the_default_limit_is_a_fifth_of_the_disk_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "not" / "there"
    seen = []

    def usage(folder: Path) -> SimpleNamespace:
        seen.append(folder)
        if not folder.exists():
            raise FileNotFoundError
        return SimpleNamespace(total=total)

    monkeypatch.setattr(strip_cache.shutil, "disk_usage", usage)
    total = 100 * 10**9
    assert default_limit(missing) == 20 * 10**9
    total = 10**12
    assert default_limit(missing) == MAX_LIMIT_BYTES == 50 * 10**9
    assert seen == [missing, missing.parent, tmp_path] * 2


# --- several at once

WRITES_FOR_EVER = """
import sys
from pathlib import Path
from engine.weights.strip_cache import StripCache
from engine.weights.strip_file import StripKey

cache = StripCache(Path(sys.argv[1]), 10**9)
writer = cache.writer(StripKey(model="model", bits=8, group=32, quantiser_version=1), ["a"])
assert writer.notices == ()
print("writing", flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_wrote_is_removed_and_what_a_living_one_writes_is_not(
    cache: StripCache, root: Path
) -> None:
    command = [sys.executable, "-c", WRITES_FOR_EVER, str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "writing\n"
            assert value_in(cache, key_of()) is None
            assert len(files_in(root)) == 1
            assert keep(cache, key_of(), 1), "two processes may make the same strips"
        finally:
            process.kill()
            process.wait()
    assert len(files_in(root)) == 2
    assert value_in(cache, key_of()) == 1
    assert len(files_in(root)) == 1


def test_writers_readers_and_removers_at_once_never_see_half_a_file(root: Path) -> None:
    faults: list[BaseException] = []
    found: Counter[bool] = Counter()

    def work(number: int) -> None:
        cache = StripCache(root, 9_000 if number % 2 else LIMIT)
        try:
            for i in range(15):
                key = key_of("ab"[i % 2])
                lookup = cache.open(key)
                assert lookup.notices == ()
                if lookup.file is not None:
                    lookup.file.close()
                found[value_in(cache, key) is not None] += 1
                keep(cache, key, 10 * number + i % 10, rows=100)
        except BaseException as error:  # noqa: BLE001  (it is reported below)
            faults.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert found[True]
    assert all(name.endswith(".safetensors") for name in files_in(root))


@pytest.mark.parametrize("replaced", [False, True])
def test_file_that_goes_between_the_look_and_the_opening_is_no_damage(
    cache: StripCache, replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process removed it to make room, and perhaps put another in its place."""
    key = key_of()
    keep(cache, key, 1)
    real = strip_cache.StripFile
    calls: list[Path] = []

    def late(path: Path, wanted: StripKey) -> StripFile:
        calls.append(path)
        if len(calls) == 1:
            path.unlink()
            with pytest.raises(StripFileError) as missing:
                real(path, wanted)
            if replaced:
                keep(cache, key, 22, rows=8)
            raise missing.value
        return real(path, wanted)

    monkeypatch.setattr(strip_cache, "StripFile", late)
    lookup = cache.open(key)
    assert lookup.notices == ()
    assert (lookup.file is not None) == replaced
    if lookup.file is not None:
        assert int(lookup.file.read_tensor("norm")[0]) == 22
        lookup.file.close()
