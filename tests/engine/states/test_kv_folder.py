"""The folder of kept conversations: within its limit, and empty when that is wished."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
import torch

from engine.kv_geometry import KvGeometry
from engine.states.kv_file import KvKey
from engine.states.kv_folder import KvFolder, forget_all, shorten, used_bytes
from engine.states.kv_writer import writer_of

GEOMETRY = KvGeometry("int8", ((1, 4),))
KEY, OTHER_KEY = (KvKey(model, "native", GEOMETRY) for model in ("model", "another model"))
NAMES = ("a", "b", "c", "d")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "states"


def keep(folder: KvFolder, name: str, *, used_ns: int) -> None:
    page = torch.zeros(GEOMETRY.page_bytes, dtype=torch.uint8)
    folder.write(name, array("I", [1, 2, 3]), [page], used_ns=used_ns)
    folder.wait()


def fill(root: Path, *, key: KvKey = KEY) -> KvFolder:
    """One file for each name, the first one used the longest time ago."""
    folder = KvFolder(root, key, context=64, limit_bytes=10**6)
    for number, name in enumerate(NAMES):
        keep(folder, name, used_ns=(number + 1) * 10**9)
    return folder


def kept(root: Path, *, key: KvKey = KEY, limit_bytes: int = 10**6) -> set[str]:
    folder = KvFolder(root, key, context=64, limit_bytes=limit_bytes)
    return {stored.conversation for stored in folder.index()}


def test_what_the_folder_takes_is_the_sum_of_its_files_of_every_model(root: Path) -> None:
    assert used_bytes(root) == 0
    fill(root)
    fill(root, key=OTHER_KEY)
    (root / "notes.txt").write_text("not one of ours")
    files = list(root.glob("*.safetensors"))
    assert len(files) == 2 * len(NAMES)
    assert used_bytes(root) == sum(path.stat().st_size for path in files)


@pytest.mark.parametrize("num_left", [0, 1, 3, 4])
def test_a_lower_limit_removes_what_was_used_least_recently(root: Path, num_left: int) -> None:
    fill(root)
    size = used_bytes(root) // len(NAMES)
    shorten(root, num_left * size)
    assert kept(root) == set(NAMES[len(NAMES) - num_left :])


def test_a_limit_that_was_lowered_holds_from_the_next_load_on(root: Path) -> None:
    fill(root)
    size = used_bytes(root) // len(NAMES)
    assert kept(root, limit_bytes=2 * size) == {"c", "d"}
    assert used_bytes(root) == 2 * size


def test_a_limit_of_nothing_keeps_nothing_and_says_nothing(root: Path) -> None:
    folder = KvFolder(root, KEY, context=64, limit_bytes=0)
    keep(folder, "a", used_ns=1)
    assert used_bytes(root) == 0
    assert folder.take_notices() == ()


def test_a_limit_too_small_for_one_is_named_as_it_was_chosen(root: Path) -> None:
    folder = KvFolder(root, KEY, context=64, limit_bytes=1_000)
    keep(folder, "a", used_ns=1)
    [notice] = folder.take_notices()
    assert notice.code == "states-not-kept"
    assert "may take 1.0 kB" in notice.message


def test_forgetting_all_leaves_no_file_of_any_model_and_none_of_others(root: Path) -> None:
    fill(root)
    fill(root, key=OTHER_KEY)
    (root / "notes.txt").write_text("not one of ours")
    assert forget_all(root) == ()
    assert [path.name for path in root.iterdir()] == ["notes.txt"]


def test_forgetting_all_of_a_folder_that_is_not_there_is_done_already(root: Path) -> None:
    assert forget_all(root) == ()
    assert not root.exists()


def test_forgetting_all_stops_what_is_still_to_be_written(root: Path) -> None:
    folder = KvFolder(root, KEY, context=64, limit_bytes=10**6)
    page = torch.zeros(GEOMETRY.page_bytes, dtype=torch.uint8)
    with writer_of(root).lock:  # no file can appear meanwhile
        stored = [folder.write(name, array("I", [1]), [page], used_ns=1) for name in NAMES]
        forget_all(root)
    folder.wait()
    assert used_bytes(root) == 0
    assert all(one.failed for one in stored)


def test_forgetting_one_conversation_leaves_the_others(root: Path) -> None:
    folder = fill(root)
    folder.forget("b")
    assert kept(root) == {"a", "c", "d"}
