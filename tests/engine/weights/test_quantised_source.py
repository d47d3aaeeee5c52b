"""Matrices of quantised folders are what their formats say, under the model's own names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from model_files import WEIGHTS, read_tensors
from quantised_folders import (
    Recipe,
    awq,
    fp8_blocks,
    fp8_rows,
    gptq,
    int8,
    make_folder,
    numbers,
    packed,
)

from engine.checkpoints.model_folder import open_model
from engine.weights.names import canonical_name
from engine.weights.quantised_source import QuantisedFolderSource
from engine.weights.strips import dequantise

# name -> recipe, bits of the strips (None: no strip), whether they have offsets
FORMS: dict[str, tuple[Recipe, int | None, bool]] = {
    "gptq": (gptq(), 4, True),
    "gptq, groups of 64": (gptq(group=64), 4, True),
    "gptq, per row": (gptq(group=-1), 4, True),
    "gptq, symmetric": (gptq(sym=True), 4, False),
    "gptq version 2": (gptq(v2=True), 4, True),
    "gptq, 8 bits": (gptq(bits=8, sym=True), 8, True),
    "gptq, 8 bits, zero points": (gptq(bits=8), None, False),
    "gptq, act-order": (gptq(desc_act=True), None, False),
    "gptq, groups of 16": (gptq(group=16), None, False),
    "awq": (awq(), 4, True),
    "awq, groups of 64": (awq(group=64), 4, True),
    "packed int4": (packed(), 4, False),
    "packed int4, zero points": (packed(sym=False, group=64), 4, True),
    "packed int4, per row": (packed(group=-1), 4, False),
    "packed int4, act-order": (packed(actorder=True), None, False),
    "packed int8": (packed(bits=8, group=-1), 8, True),
    "packed int8, zero points": (packed(bits=8, group=32, sym=False), None, False),
    "int8": (int8(), 8, True),
    "int8, zero points": (int8(sym=False), None, False),
    "fp8 blocks": (fp8_blocks(), None, False),
    "fp8 small blocks": (fp8_blocks((32, 48)), None, False),
    "fp8 rows": (fp8_rows(), None, False),
    "fp8 in one": (fp8_rows("tensor"), None, False),
}


@contextmanager
def opened(folder: Path) -> Iterator[QuantisedFolderSource]:
    model = open_model(folder)
    try:
        assert isinstance(model.tensors, QuantisedFolderSource)
        yield model.tensors
    finally:
        model.tensors.close()


@pytest.mark.parametrize("model", ["tiny-qwen2", "tiny-qwen3moe-mix"])
@pytest.mark.parametrize("form", FORMS)
def test_every_number_is_the_one_that_is_stored(form: str, model: str, tmp_path: Path) -> None:
    recipe, bits, offsets = FORMS[form]
    folder, twin = make_folder(model, tmp_path, recipe)
    with opened(folder) as source:
        infos = source.tensors()
        for stored_name, tensor in read_tensors(twin / WEIGHTS).items():
            name = canonical_name(stored_name)
            assert infos[name].shape == tensor.shape
            expected = torch.from_numpy(np.array(numbers(tensor)))
            assert torch.equal(source.read(name).float(), expected), name
            strip = source.read_strip(name)
            if tensor.dtype != "F32":
                assert strip is None
                continue
            if bits is None:
                assert strip is None
                assert infos[name].strip is None
                continue
            assert strip is not None, name
            assert torch.equal(dequantise(strip), expected), name
            told = infos[name].strip
            assert told is not None
            assert (told.bits, told.group, told.offsets) == (bits, strip.group, offsets)
            assert strip.bits == bits
            assert offsets or strip.offsets is None


@pytest.mark.parametrize("form", FORMS)
def test_sizes_are_those_of_all_tensors_of_a_matrix(form: str, tmp_path: Path) -> None:
    folder, _ = make_folder("tiny-qwen2", tmp_path, FORMS[form][0])
    with opened(folder) as source:
        told = sum(info.num_bytes for info in source.tensors().values())
        left_out = sum(
            len(t.data) for name, t in read_tensors(folder / WEIGHTS).items() if "input_scale" in name
        )
        assert told + left_out == sum(len(tensor.data) for tensor in read_tensors(folder / WEIGHTS).values())
        for name, info in source.tensors().items():
            read: list[int] = []
            source.read(name, read.append)
            assert sum(read) == info.num_bytes
            read.clear()
            assert (source.read_strip(name, read.append) is None) == (info.strip is None)
            assert sum(read) == (0 if info.strip is None else info.num_bytes)
