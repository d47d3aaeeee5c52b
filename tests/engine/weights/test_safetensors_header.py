"""The header reader accepts nothing that the reference implementation refuses, and says the same of what
both accept.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_files import TINY_MODELS, WEIGHTS, write_raw_safetensors
from safetensors import SafetensorError, safe_open

from engine.checkpoints.foreign_files import open_binary
from engine.errors import ModelFileError
from engine.weights.safetensors_header import StoredTensor, read_header

SIZES = st.one_of(st.integers(0, 12), st.sampled_from([-1, 2**31, 2**62, 2**63, 2**64]))
ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["BF16", "F16", "F32", "F64", "U8", "I4", 5, None]),
        "shape": st.one_of(st.lists(SIZES, max_size=3), st.just("4")),
        "data_offsets": st.one_of(
            st.lists(SIZES, min_size=2, max_size=2), st.lists(SIZES, max_size=3), st.none()
        ),
    }
)


def header_of(path: Path) -> dict[str, StoredTensor]:
    with open_binary(path) as handle:
        return dict(read_header(handle, path))


def header_or_error(path: Path) -> dict[str, StoredTensor] | ModelFileError:
    try:
        return header_of(path)
    except ModelFileError as error:
        return error


def reference_of(path: Path) -> dict[str, tuple[str, tuple[int, ...]]] | None:
    """Types and shapes as the safetensors library reads them; None when it refuses the file."""
    try:
        with safe_open(path, "numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: (each.get_dtype(), tuple(each.get_shape())) for name, each in slices.items()}
    except SafetensorError:
        return None


@pytest.mark.parametrize("model", sorted(path.name for path in TINY_MODELS.iterdir()))
def test_real_headers_are_read_as_the_library_reads_them(model: str) -> None:
    path = TINY_MODELS / model / WEIGHTS
    ours = header_of(path)
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in ours.items()} == reference_of(path)
    assert sum(tensor.num_bytes for tensor in ours.values()) == path.stat().st_size - min(
        t.start for t in ours.values()
    )


def tightly_packed(sizes: list[int]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    position = 0
    for i, size in enumerate(sizes):
        entries[f"t{i}"] = {"dtype": "F16", "shape": [size], "data_offsets": [position, position + 2 * size]}
        position += 2 * size
    return entries


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(0, 9), max_size=6), order=st.randoms(use_true_random=False))
def test_good_headers_are_accepted_in_any_order(sizes: list[int], order: Any, tmp_path: Path) -> None:
    entries = tightly_packed(sizes)
    names = list(entries)
    order.shuffle(names)
    path = tmp_path / "good.safetensors"
    write_raw_safetensors(path, {name: entries[name] for name in names}, bytes(2 * sum(sizes)))
    assert {name: tensor.shape for name, tensor in header_of(path).items()} == {
        f"t{i}": (size,) for i, size in enumerate(sizes)
    }


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entries=st.dictionaries(st.text(max_size=3), ENTRY, max_size=3), num_bytes=st.integers(0, 24))
def test_what_the_library_refuses_is_refused(entries: dict[str, Any], num_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "made.safetensors"
    write_raw_safetensors(path, entries, bytes(num_bytes))
    ours = header_or_error(path)
    if isinstance(ours, ModelFileError):
        assert "made.safetensors" in ours.message
        return
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in ours.items()} == reference_of(path)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_bytes_are_refused_or_read_alike(data: st.DataObject, tmp_path: Path) -> None:
    entries = tightly_packed([3, 1, 4])
    raw = bytearray(json.dumps(entries).encode())
    raw = bytearray(struct.pack("<Q", len(raw)) + raw + bytes(16))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(raw)
    ours = header_or_error(path)
    if isinstance(ours, ModelFileError):
        assert ours.message.isprintable()
        return
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in ours.items()} == reference_of(path)


@pytest.mark.parametrize("length", range(0, 200, 3))
def test_every_cut_is_refused(length: int, tmp_path: Path) -> None:
    path = tmp_path / "cut.safetensors"
    write_raw_safetensors(path, tightly_packed([3, 1, 4]), bytes(16))
    whole = path.read_bytes()
    path.write_bytes(whole[: min(length, len(whole) - 1)])
    with pytest.raises(ModelFileError, match=r"cut\.safetensors"):
        header_of(path)
