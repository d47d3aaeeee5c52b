"""A load of strips while it goes on: its progress, its end by a cancel, and what it holds."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from gguf_files import write_gguf
from model_files import TINY_MODELS
from strip_loads import CancelledAt, load, logits, one_layer_spec, random_tensors, shelf_in

import engine.weights.quantise as quantise_module
from engine.checkpoints.model_folder import open_model
from engine.config import WeightFormat
from engine.cpu import strip_maker
from engine.cpu.backend import CpuBackend
from engine.cpu.strip_matrix import StripMatrix
from engine.errors import Cancelled
from engine.models.parameters import decoder_parameters
from engine.models.spec import (
    Parameter,
)
from engine.progress import LoadProgress, LoadStage
from engine.weights.quantise import quantise
from engine.weights.weight_file import OnBytes, unwatched


def test_a_cancel_while_kept_strips_are_read_ends_that(tmp_path: Path) -> None:
    root = tmp_path / "kept"
    folder = open_model(TINY_MODELS / "tiny-qwen3")

    def load_kept(cancel: threading.Event) -> CpuBackend:
        return load(folder, 8, shelf=shelf_in(root), cancel=cancel)

    shelf = shelf_in(root)
    first = load(folder, 8, shelf=shelf)
    shelf.wait()
    never = CancelledAt(10**9)
    kept = load_kept(never)
    assert torch.equal(logits(kept, [1, 2, 3]), logits(first, [1, 2, 3]))
    for look in range(1, never.looks + 1, 5):
        with pytest.raises(Cancelled):
            load_kept(CancelledAt(look))
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("strip-reader")]
    folder.tensors.close()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", [None, "F32", "Q8_0", "Q5_0"])
def test_progress_grows_with_every_step_and_comes_to_its_total_once(
    bits: int, kind: str | None, tmp_path: Path
) -> None:
    path = TINY_MODELS / "tiny-qwen2"
    if kind is not None:
        path = write_gguf("tiny-qwen2", tmp_path / "model.gguf", kind=kind)
    steps: list[LoadProgress] = []
    load(open_model(path), bits, [1, 2, 3], on_progress=steps.append)
    assert {step.stage for step in steps} == {LoadStage.WEIGHTS}
    assert len({step.total for step in steps}) == 1
    done = [step.done for step in steps]
    assert done == sorted(set(done))
    assert (done[0], done[-1]) == (0, steps[0].total)
    assert len(done) > 10


def test_progress_moves_inside_one_large_matrix(given_tensors, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """The head, which is most of a small model."""
    monkeypatch.setattr(quantise_module, "CHUNK_ELEMENTS", 64 * 100)
    spec = one_layer_spec(vocab_size=3000)
    parameters = decoder_parameters(spec)
    source = given_tensors(random_tensors(parameters))
    steps: list[LoadProgress] = []
    CpuBackend.load(spec, parameters, source, weights="q8", on_progress=steps.append)
    jumps = [after.done - before.done for before, after in pairwise(steps)]
    head = 4 * 3000 * 64
    assert max(jumps[-30:]) < head / 20
    assert sum(jumps[-30:]) > 0.7 * head


@pytest.mark.parametrize("weights", ["q8", "q4"])
def test_a_cancel_inside_one_large_matrix_leaves_nothing_behind(
    weights: WeightFormat, given_tensors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(quantise_module, "CHUNK_ELEMENTS", 64 * 100)
    spec = one_layer_spec(vocab_size=3000)
    parameters = decoder_parameters(spec)
    source = given_tensors(random_tensors(parameters))
    cancel = threading.Event()
    steps: list[LoadProgress] = []

    def on_progress(step: LoadProgress) -> None:
        steps.append(step)
        if step.done > step.total - 4 * 3000 * 64 * 0.4:
            cancel.set()

    root = tmp_path / "kept"
    with pytest.raises(Cancelled):
        CpuBackend.load(
            spec,
            parameters,
            source,
            weights=weights,
            shelf=shelf_in(root),
            on_progress=on_progress,
            cancel=cancel,
        )
    assert steps[-1].done < steps[-1].total
    assert not root.exists() or not list(root.iterdir())
    working = ("quantise", "dequantise", "strip")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(working)]


@pytest.mark.parametrize("bits", [4, 8])
def test_cancel_is_seen_wherever_the_load_is(bits: int) -> None:
    never = CancelledAt(10**9)
    load(open_model(TINY_MODELS / "tiny-qwen3"), bits, [1, 2, 3], cancel=never)
    assert never.looks > 20
    step = max(1, never.looks // 60)  # 4 bits look some hundred times
    for look in range(1, never.looks + 1, step):
        folder = open_model(TINY_MODELS / "tiny-qwen3")
        with pytest.raises(Cancelled):
            load(folder, bits, [1, 2, 3], cancel=CancelledAt(look))
        folder.tensors.close()


def test_most_that_is_held_is_the_strips_and_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted at every quantisation: the bytes of tensors that were read and still wait."""
    folder = open_model(TINY_MODELS / "tiny-qwen3")
    waiting: list[int] = []
    original = strip_maker.StripMaker.quantise

    def spy(self, parameter, importance):  # type: ignore[no-untyped-def]
        kept = {"embed", "final_norm"} | {name for name in self.tensors if "norm" in name}
        waiting.append(sum(tensor.nbytes for name, tensor in self.tensors.items() if name not in kept))
        original(self, parameter, importance)

    monkeypatch.setattr(strip_maker.StripMaker, "quantise", spy)
    load(folder, 4, [1, 2])

    def stored(parameters: Sequence[Parameter]) -> int:
        infos = folder.tensors.tensors()
        return sum(infos[piece.source].num_bytes for each in parameters for piece in each.pieces)

    layer = stored([each for each in folder.parameters if each.name.startswith("layers.0.")])
    head = stored([each for each in folder.parameters if each.name in ("head", "embed")])
    folder.tensors.close()
    assert max(waiting) <= max(layer, head)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("name", "tied"), [("tiny-qwen3", True), ("tiny-qwen2", False)])
def test_a_head_in_blocks_is_never_dequantised_as_a_whole(
    name: str, tied: bool, bits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = open_model(write_gguf(name, tmp_path / "model.gguf", kind="Q5_0"))
    assert folder.spec.tied_embeddings == tied
    original, read = folder.tensors.read, list[str]()

    def spy(name: str, on_bytes: OnBytes = unwatched) -> torch.Tensor:
        read.append(name)
        return original(name, on_bytes)

    monkeypatch.setattr(folder.tensors, "read", spy)
    backend = load(folder, bits)
    assert "layers.0.mlp.down_proj.weight" in read
    assert not {"embed_tokens.weight", "lm_head.weight"} & set(read)
    stored = original("embed_tokens.weight" if tied else "lm_head.weight")
    folder.tensors.close()
    head = backend.weights.head
    assert isinstance(head, StripMatrix)
    expected = quantise(stored, bits=bits)  # type: ignore[arg-type]
    assert torch.equal(head.strip.codes, expected.codes)
    assert torch.equal(head.strip.scales, expected.scales)
