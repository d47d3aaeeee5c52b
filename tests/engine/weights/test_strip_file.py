"""What is written is read bit for bit, here and by the safetensors library; what is damaged is not read."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from engine.checkpoints.foreign_files import file_error
from engine.weights.mapped_files import mapped_bytes
from engine.weights.part_file import remove_unused
from engine.weights.strip_file import DTYPES, StripFile, StripFileError, StripKey
from engine.weights.strip_writer import StripFileWriter
from engine.weights.strips import Strip
from engine.weights.weight_file import WeightFile

KEY = StripKey(model="0123abcd", bits=4, group=32, quantiser_version=1, calibration="text-1")

Contents = Mapping[str, Strip | torch.Tensor]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here asks whether a power cut is survived, and hundreds of files are written."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def random_tensor(shape: Iterable[int], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Any bits at all: numbers that are none, too."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, tuple(shape), generator=generator).bool()
    size = torch.Size(shape).numel() * torch.empty(0, dtype=dtype).element_size()
    return (
        torch.randint(0, 256, (size,), generator=generator, dtype=torch.uint8).view(dtype).view(tuple(shape))
    )


def random_strip(
    rows: int, columns: int, *, bits: int = 8, group: int = 32, offsets: bool = False, seed: int = 0
) -> Strip:
    width = columns * bits // 8
    codes = random_tensor((rows, width), torch.int8 if bits == 8 else torch.uint8, seed)
    scales = random_tensor((rows, columns // group), torch.float32, seed + 1)
    added = random_tensor((rows, columns // group), torch.float32, seed + 2) if offsets else None
    return Strip(bits, group, codes, scales, added)  # type: ignore[arg-type]


def raw(tensor: torch.Tensor | None) -> tuple[object, ...]:
    if tensor is None:
        return ()
    return tensor.dtype, tuple(tensor.shape), tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def raw_of(item: Strip | torch.Tensor) -> tuple[object, ...]:
    if isinstance(item, torch.Tensor):
        return raw(item)
    return item.bits, item.group, raw(item.codes), raw(item.scales), raw(item.offsets)


def write(path: Path, contents: Contents, key: StripKey = KEY) -> Path:
    with StripFileWriter(path, key, contents) as writer:
        for name, item in contents.items():
            if isinstance(item, Strip):
                writer.add_strip(name, item)
            else:
                writer.add_tensor(name, item)
        writer.commit()
    return path


def read(path: Path, key: StripKey = KEY) -> dict[str, tuple[object, ...]]:
    """Everything in a file, as raw bits."""
    file = StripFile(path, key)
    try:
        strips = {name: raw_of(file.read_strip(name)) for name in file.strips}
        return {**strips, **{name: raw_of(file.read_tensor(name)) for name in file.tensors}}
    finally:
        file.close()


SMALL: Contents = {
    "layers.0.qkv": random_strip(3, 64, bits=4, offsets=True),
    "layers.0.down": random_strip(2, 32, bits=8, seed=5),
    "norm": random_tensor((5,), torch.bfloat16, 9),
    "nothing": torch.empty(0, 7),
}


@st.composite
def strips(draw: st.DrawFn) -> Strip:
    group = draw(st.sampled_from([32, 256]))
    return random_strip(
        draw(st.integers(0, 5)),
        group * draw(st.integers(1, 3)),
        bits=draw(st.sampled_from([4, 8])),
        group=group,
        offsets=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = getattr(torch, draw(st.sampled_from(sorted(DTYPES.values()))))
    return random_tensor(draw(st.lists(st.integers(0, 4), max_size=4)), dtype, draw(st.integers(0, 99)))


CONTENTS = st.dictionaries(st.text(max_size=8), strips() | tensors(), max_size=6)
ONE_FOLDER = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@ONE_FOLDER
@given(contents=CONTENTS)
def test_any_strips_and_tensors_come_back_bit_for_bit(contents: Contents, tmp_path: Path) -> None:
    path = write(tmp_path / "made.safetensors", contents)
    assert read(path) == {name: raw_of(item) for name, item in contents.items()}
    assert os.listdir(tmp_path) == ["made.safetensors"]


@ONE_FOLDER
@given(contents=CONTENTS)
def test_the_safetensors_library_reads_the_same(contents: Contents, tmp_path: Path) -> None:
    path = write(tmp_path / "made.safetensors", contents)
    expected = {}
    for name, item in contents.items():
        if isinstance(item, Strip):
            expected[f"{name}/codes"], expected[f"{name}/scales"] = raw(item.codes), raw(item.scales)
            if item.offsets is not None:
                expected[f"{name}/offsets"] = raw(item.offsets)
        else:
            expected[f"{name}/values"] = raw(item)
    with safe_open(path, "pt") as file:
        found = {name: raw(file.get_tensor(name)) for name in file.keys() if name != "checksums"}  # noqa: SIM118
        assert file.metadata()["key"] == KEY.as_json()
    assert found == expected


def test_what_is_not_contiguous_is_stored_as_it_reads(tmp_path: Path) -> None:
    tensor = torch.arange(12.0).view(3, 4).t()
    file = StripFile(write(tmp_path / "made.safetensors", {"t": tensor}), KEY)
    assert torch.equal(file.read_tensor("t"), tensor)
    file.close()


def test_pieces_beyond_one_read_come_back(tmp_path: Path) -> None:
    """Checksums are made piece by piece: sizes around the border of 1 MiB."""
    contents = {str(n): random_tensor((n,), torch.uint8, n) for n in (2**20 - 1, 2**20, 2**20 + 1, 3 * 2**20)}
    path = write(tmp_path / "made.safetensors", contents)
    assert read(path) == {name: raw_of(item) for name, item in contents.items()}


def test_its_size_is_that_of_the_file(tmp_path: Path) -> None:
    file = StripFile(write(tmp_path / "made.safetensors", SMALL), KEY)
    assert file.num_bytes == file.path.stat().st_size
    file.close()


@pytest.mark.parametrize("mask", [0x01, 0x20, 0xFF])
def test_a_changed_byte_is_noticed_wherever_it_is(mask: int, tmp_path: Path) -> None:
    path = write(tmp_path / "made.safetensors", SMALL)
    unnoticed = []
    with path.open("r+b", buffering=0) as file:
        for place, byte in enumerate(file.read()):
            file.seek(place)
            file.write(bytes([byte ^ mask]))
            try:
                read(path)
            except StripFileError:
                pass
            else:
                unnoticed.append(place)
            file.seek(place)
            file.write(bytes([byte]))
    assert unnoticed == []
    assert len(read(path)) == len(SMALL)


def test_a_cut_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    path = write(tmp_path / "made.safetensors", SMALL)
    for length in reversed(range(path.stat().st_size)):
        os.truncate(path, length)
        with pytest.raises(StripFileError):
            StripFile(path, KEY)


@ONE_FOLDER
@given(contents=CONTENTS.filter(len), data=st.data())
def test_damage_of_any_kind_is_noticed_or_harmless(
    contents: Contents, data: st.DataObject, tmp_path: Path
) -> None:
    path = write(tmp_path / "made.safetensors", contents)
    whole = path.read_bytes()
    start = data.draw(st.integers(0, len(whole) - 1))
    stop = data.draw(st.integers(start, min(start + 40, len(whole))))
    damaged = whole[:start] + data.draw(st.binary(max_size=40)) + whole[stop:]
    path.write_bytes(damaged)
    try:
        found = read(path)
    except StripFileError:
        return
    assert damaged == whole or found == {name: raw_of(item) for name, item in contents.items()}


def test_a_file_that_shrinks_while_it_is_open_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "made.safetensors", {"t": random_tensor((10_000,), torch.uint8)})
    file = StripFile(path, KEY)
    os.truncate(path, path.stat().st_size - 5000)
    with pytest.raises(StripFileError, match="has become shorter"):
        file.read_tensor("t")
    file.close()


def test_a_disk_that_can_not_read_the_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "made.safetensors", SMALL)
    file = StripFile(path, KEY)

    def fail(self: WeightFile, buffer: memoryview, offset: int) -> None:
        raise file_error(self.path, OSError(errno.EIO, "Input/output error"))

    monkeypatch.setattr(WeightFile, "read_into", fail)
    with pytest.raises(StripFileError, match=r"the disk reports an error$"):
        file.read_tensor("norm")
    file.close()
    with pytest.raises(StripFileError, match=r"the disk reports an error$"):
        StripFile(path, KEY)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (StripKey("ffff", 4, 32, 1, "text-1"), "it belongs to another model"),
        (StripKey("0123abcd", 8, 32, 1, "text-1"), r"other settings \(bits\)"),
        (StripKey("0123abcd", 4, 256, 1, "text-1"), r"other settings \(group\)"),
        (StripKey("0123abcd", 4, 32, 1, ""), r"other settings \(calibration\)"),
        (StripKey("0123abcd", 4, 32, 1, "text-1", "float32"), r"other settings \(scale_dtype\)"),
    ],
)
def test_a_file_made_of_or_for_something_else_is_refused(other: StripKey, why: str, tmp_path: Path) -> None:
    path = write(tmp_path / "made.safetensors", SMALL)
    with pytest.raises(StripFileError, match=why) as caught:
        StripFile(path, other)
    assert not caught.value.outdated


def test_a_file_of_another_quantiser_is_outdated(tmp_path: Path) -> None:
    path = write(tmp_path / "made.safetensors", SMALL)
    with pytest.raises(StripFileError, match="another version") as caught:
        StripFile(path, StripKey("0123abcd", 4, 32, 2, "text-1"))
    assert caught.value.outdated


def test_a_file_of_another_format_version_is_outdated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "made.safetensors", SMALL)
    monkeypatch.setattr("engine.weights.strip_file.FORMAT_VERSION", 2)
    with pytest.raises(StripFileError, match="another version") as caught:
        StripFile(path, KEY)
    assert caught.value.outdated


def test_a_models_own_file_is_no_file_of_strips(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(3), "checksums": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(StripFileError):
        StripFile(tmp_path / "model.safetensors", KEY)


def test_strips_of_an_unfinished_writer_leave_nothing(tmp_path: Path) -> None:
    with StripFileWriter(tmp_path / "made.safetensors", KEY, ["t"]) as writer:
        writer.add_tensor("t", torch.zeros(3))
        assert len(os.listdir(tmp_path)) == 1
    assert os.listdir(tmp_path) == []


def test_a_strip_that_was_promised_has_to_be_there(tmp_path: Path) -> None:
    with StripFileWriter(tmp_path / "made.safetensors", KEY, ["a", "b"]) as writer:
        writer.add_tensor("a", torch.zeros(3))
        with pytest.raises(ValueError, match="'a' was added before"):
            writer.add_tensor("a", torch.zeros(3))
        with pytest.raises(ValueError, match="'c' was not told beforehand"):
            writer.add_tensor("c", torch.zeros(3))
        with pytest.raises(ValueError, match="1 strips were never added, 'b' for one"):
            writer.commit()
    assert os.listdir(tmp_path) == []


def test_what_the_format_lacks_is_refused(tmp_path: Path) -> None:
    with StripFileWriter(tmp_path / "made.safetensors", KEY, ["a", "b"]) as writer:
        with pytest.raises(ValueError, match="complex64"):
            writer.add_tensor("a", torch.zeros(3, dtype=torch.complex64))
        with pytest.raises(ValueError, match="'b/values' can't be stored"):
            writer.add_tensor("b", torch.zeros([1] * 9))


def test_the_room_for_the_header_is_enough_for_the_longest(tmp_path: Path) -> None:
    """Names that JSON writes six times as long, every part of a strip, the largest number of axes."""
    strips = {200 * "\u0001" + str(i): random_strip(1, 32, offsets=True, seed=i) for i in range(50)}
    contents = {**strips, **{200 * "€" + str(i): torch.zeros([1] * 8) for i in range(50)}}
    path = write(tmp_path / "made.safetensors", contents)
    assert read(path) == {name: raw_of(item) for name, item in contents.items()}


def test_strips_are_read_by_several_threads_at_once(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    contents = {str(i): random_strip(40, 256, bits=bits, seed=i) for i, bits in enumerate([4, 8] * 10)}
    file = StripFile(write(tmp_path / "made.safetensors", contents), KEY)
    names = list(itertools.chain(*[contents] * 5))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda name: raw_of(file.read_strip(name)), names))
    file.close()
    assert found == [raw_of(contents[name]) for name in names]


def test_strips_lie_in_the_file_itself_where_vectors_can_use_them(tmp_path: Path) -> None:
    even, odd, moved = random_strip(64, 256), random_strip(7, 32, seed=5), random_strip(64, 64, seed=9)
    path = write(tmp_path / "made.safetensors", {"even": even, "odd": odd, "next": moved})
    file = StripFile(path, KEY)
    found = {name: file.read_strip(name) for name in ("even", "odd", "next")}
    file.close()
    assert {name: raw_of(strip) for name, strip in found.items()} == {
        "even": raw_of(even),
        "odd": raw_of(odd),
        "next": raw_of(moved),
    }
    for strip in found.values():
        assert all(part.data_ptr() % 64 == 0 for part in (strip.codes, strip.scales))
    found["even"].codes[0, 0] += 1
    assert read(path)["even"] == raw_of(even), "the file stays as it is"


def test_where_the_system_maps_nothing_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> mmap.mmap:
        raise OSError(errno.ENODEV, "No such device")

    path = write(tmp_path / "made.safetensors", SMALL)
    mapped = read(path)
    monkeypatch.setattr(mmap, "mmap", refuse)
    assert read(path) == mapped


def test_what_is_mapped_is_counted_until_the_last_of_it_is_gone(tmp_path: Path) -> None:
    before = mapped_bytes()
    path = write(tmp_path / "made.safetensors", {"s": random_strip(64, 256)})
    file = StripFile(path, KEY)
    strip = file.read_strip("s")
    file.close()
    assert mapped_bytes() == before + path.stat().st_size
    part = strip.codes[1:]
    del strip
    assert mapped_bytes() > before
    del part
    assert mapped_bytes() == before


def test_mapped_strips_keep_their_file_from_being_removed(tmp_path: Path) -> None:
    path = write(tmp_path / "made.safetensors", {"s": random_strip(64, 256)})
    file = StripFile(path, KEY)
    strip = file.read_strip("s")
    file.close()
    assert not remove_unused(path)
    del strip
    assert remove_unused(path)
