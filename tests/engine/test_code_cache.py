"""What is kept comes back as it was, for the same key, or not at all."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.code_cache import CodeCache

KEY = ("text", "a processor", "compiler 1")
CODE = bytes(range(256)) * 80


@pytest.fixture
def cache(tmp_path: Path) -> CodeCache:
    return CodeCache(tmp_path / "kernels")


def file_of(tmp_path: Path) -> Path:
    [path] = (tmp_path / "kernels").iterdir()
    return path


def test_code_comes_back_for_its_key_alone(cache: CodeCache, tmp_path: Path) -> None:
    assert cache.get(KEY) is None
    assert not (tmp_path / "kernels").exists(), "looking makes nothing"
    assert cache.put(KEY, CODE)
    assert CodeCache(tmp_path / "kernels").get(KEY) == CODE
    assert cache.get((*KEY, "")) is None
    assert cache.get(("text", "a processor", "compiler 2")) is None


@given(st.lists(st.text(st.characters(codec="utf-8")), max_size=4), st.lists(st.text(), max_size=4))
def test_parts_of_a_key_never_run_into_each_other(one: list[str], other: list[str]) -> None:
    from engine.code_cache import _joined

    try:
        same = _joined(one) == _joined(other)
    except UnicodeEncodeError:
        return
    assert same == (one == other)


@pytest.mark.parametrize("damage", ["cut", "flipped", "longer", "empty", "another's"])
def test_a_damaged_file_is_no_code_and_is_replaced(damage: str, cache: CodeCache, tmp_path: Path) -> None:
    cache.put(KEY, CODE)
    path = file_of(tmp_path)
    raw = bytearray(path.read_bytes())
    match damage:
        case "cut":
            del raw[-1]
        case "flipped":
            raw[-7] ^= 4
        case "longer":
            raw.append(0)
        case "empty":
            raw.clear()
        case _:
            other = CodeCache(tmp_path / "others")
            other.put(("another",), CODE)
            [theirs] = (tmp_path / "others").iterdir()
            raw = bytearray(theirs.read_bytes())
    path.write_bytes(raw)
    assert cache.get(KEY) is None
    assert cache.put(KEY, CODE)
    assert cache.get(KEY) == CODE


@pytest.mark.skipif(sys.platform == "win32", reason="the folder's permissions decide there")
def test_a_file_that_others_may_change_is_not_used(cache: CodeCache, tmp_path: Path) -> None:
    cache.put(KEY, CODE)
    file_of(tmp_path).chmod(0o666)
    assert cache.get(KEY) is None


@pytest.mark.skipif(sys.platform == "win32", reason="the folder's permissions decide there")
def test_a_folder_in_which_others_may_put_files_is_not_used(cache: CodeCache, tmp_path: Path) -> None:
    cache.put(KEY, CODE)
    (tmp_path / "kernels").chmod(0o777)
    assert cache.get(KEY) is None
    assert cache.put(KEY, CODE)
    assert cache.get(KEY) == CODE, "what was kept anew is in a folder of its own"


@pytest.mark.skipif(sys.platform == "win32", reason="the folder's permissions decide there")
def test_code_is_kept_where_groups_may_write_what_programs_make(cache: CodeCache) -> None:
    before = os.umask(0o002)
    try:
        cache.put(KEY, CODE)
    finally:
        os.umask(before)
    assert cache.get(KEY) == CODE


@pytest.mark.skipif(sys.platform == "win32", reason="links and pipes are none there, or need permissions")
@pytest.mark.parametrize("what", ["link", "pipe", "folder", "huge file"])
def test_what_is_no_file_of_the_cache_is_no_code_and_holds_nobody_up(
    what: str, cache: CodeCache, tmp_path: Path
) -> None:
    cache.put(KEY, CODE)
    path = file_of(tmp_path)
    moved = path.rename(tmp_path / "elsewhere")
    match what:
        case "link":
            path.symlink_to(moved)
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case _:
            moved.rename(path)
            os.truncate(path, 2**41)
    found: list[bytes | None] = []
    asking = threading.Thread(target=lambda: found.append(cache.get(KEY)), daemon=True)
    asking.start()
    asking.join(20)
    assert found == [None]
    assert cache.put(KEY, CODE) == (what != "folder")
    assert cache.get(KEY) == (None if what == "folder" else CODE)


def test_what_was_used_least_recently_makes_room(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path / "kernels", limit_bytes=3 * (len(CODE) + 32))
    for name in "abc":
        cache.put((name,), CODE)
    for age, name in enumerate("cab"):  # b was used last but for what follows
        path = cache._path((name,))
        os.utime(path, ns=(10**18 + age, 10**18 + age))
    assert cache.get(("c",)) == CODE  # used now
    assert cache.put(("d",), CODE)
    assert [name for name in "abcd" if cache.get((name,)) is not None] == ["b", "c", "d"]
    assert not cache.put(("e",), bytes(10**6)), "it is larger than everything may be"


def test_a_folder_that_cannot_be_written_keeps_nothing_and_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "kernels").write_text("a file where the folder should be")
    cache = CodeCache(tmp_path / "kernels")
    assert not cache.put(KEY, CODE)
    assert cache.get(KEY) is None
