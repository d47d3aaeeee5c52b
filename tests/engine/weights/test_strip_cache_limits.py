"""How much of it stays, and several programs in one folder at once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kept_strips import LIMIT, NAMES, files_in, keep, key_of, strip_of, value_in

from engine.weights import strip_cache
from engine.weights.strip_cache import MAX_LIMIT_BYTES, StripCache, default_limit
from engine.weights.strip_file import StripFile, StripFileError, StripKey


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "strips"


@pytest.fixture
def cache(root: Path) -> StripCache:
    return StripCache(root, LIMIT)


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
