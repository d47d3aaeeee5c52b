"""A file gives back what was written, and nothing of one that was touched."""

from __future__ import annotations

import threading
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.kv_geometry import PAGE, KvGeometry, pages_for
from engine.states.kv_file import (
    KvFileError,
    KvKey,
    WritingStopped,
    file_bytes,
    read_kv_header,
    read_kv_pages,
    write_kv_file,
)

KEY = KvKey("model", "native", KvGeometry("int8", ((1, 4), (2, 2))))
CONTEXT = 1000


def pages_of(count: int, key: KvKey = KEY) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    size = (key.geometry.page_bytes,)
    return [torch.randint(256, size, dtype=torch.uint8, generator=generator) for _ in range(count)]


def written(path: Path, length: int, key: KvKey = KEY) -> array[int]:
    ids = array("I", range(2**32 - 1, 2**32 - 1 - length, -1))
    write_kv_file(
        path,
        key,
        conversation="Überlegung 🦅",
        ids=ids,
        pages=pages_of(pages_for(length), key),
        stop=threading.Event(),
    ).finish()
    return ids


@pytest.mark.parametrize("length", [1, PAGE - 1, PAGE, PAGE + 1, 300, CONTEXT])
def test_what_was_written_comes_back(length: int, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "state.safetensors"
    ids = written(path, length)
    header = read_kv_header(path, KEY, context=CONTEXT)
    assert (header.conversation, header.ids) == ("Überlegung 🦅", ids)
    for count in {0, 1, pages_for(length)}:
        pages = read_kv_pages(path, KEY, context=CONTEXT, ids=ids, count=count)
        assert len(pages) == count
        assert all(map(torch.equal, pages, pages_of(pages_for(length))))
    assert path.stat().st_size <= file_bytes(KEY, length)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_other_programs_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    written(path, 100)
    tensors = safetensors.torch.load_file(path)
    assert torch.equal(tensors["page.1"], pages_of(2)[1])


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, array[int]]:
    path = tmp_path_factory.mktemp("file") / "state.safetensors"
    ids = written(path, 100)
    return path, path.read_bytes(), ids


@given(data=st.data(), kind=st.sampled_from(["flip", "cut", "grow", "zeros"]))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_is_found(
    data: st.DataObject, kind: str, sound: tuple[Path, bytes, array[int]], tmp_path: Path
) -> None:
    _, raw, ids = sound
    at = data.draw(st.integers(0, len(raw) - 1))
    damaged = bytearray(raw)
    match kind:
        case "flip":
            damaged[at] ^= 1 << data.draw(st.integers(0, 7))
        case "cut":
            del damaged[at:]
        case "grow":
            damaged[at:at] = b"\0" * data.draw(st.integers(1, 20))
        case "zeros":
            end = min(len(raw), at + data.draw(st.integers(1, 4096)))
            damaged[at:end] = bytes(end - at)
    if bytes(damaged) == raw:
        return
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(damaged)
    with pytest.raises(KvFileError):
        read_kv_pages(path, KEY, context=CONTEXT, ids=ids, count=2)


@pytest.mark.parametrize(
    ("key", "context", "words"),
    [
        (replace(KEY, model="other"), CONTEXT, "another model"),
        (replace(KEY, numerics="q4"), CONTEXT, "other settings"),
        (replace(KEY, geometry=KvGeometry("native", ((1, 4), (2, 2)))), CONTEXT, "another shape"),
        (replace(KEY, geometry=KvGeometry("int8", ((1, 4),))), CONTEXT, "another shape"),
        (KEY, 99, "100 tokens, and the context 99"),
    ],
)
def test_what_belongs_to_something_else_is_refused(
    key: KvKey, context: int, words: str, sound: tuple[Path, bytes, array[int]]
) -> None:
    with pytest.raises(KvFileError, match=words):
        read_kv_header(sound[0], key, context=context)


def test_another_version_is_outdated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.safetensors"
    monkeypatch.setattr("engine.states.kv_file.FORMAT_VERSION", 2)
    written(path, 10)
    monkeypatch.undo()
    with pytest.raises(KvFileError) as caught:
        read_kv_header(path, KEY, context=CONTEXT)
    assert caught.value.outdated


def test_a_file_that_was_replaced_meanwhile_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    ids = written(path, 100)
    written(path, 101)
    with pytest.raises(KvFileError, match="something else"):
        read_kv_pages(path, KEY, context=CONTEXT, ids=ids, count=1)


def test_a_write_that_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(WritingStopped):
        write_kv_file(
            tmp_path / "state.safetensors",
            KEY,
            conversation="a",
            ids=array("I", [1]),
            pages=pages_of(1),
            stop=stop,
        )
    assert list(tmp_path.iterdir()) == []
