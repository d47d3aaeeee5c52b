from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from engine.cpu import weights
from engine.cpu.memory import RESERVE_BYTES
from engine.cpu.weights import load_parameters
from engine.errors import Cancelled, OutOfMemoryError
from engine.models.spec import Parameter, Piece
from engine.progress import LoadProgress, LoadStage, no_progress

Tensors = dict[str, torch.Tensor]
MakeSource = Callable[[Tensors], "object"]


def load(source, *parameters: Parameter) -> Tensors:  # type: ignore[no-untyped-def]
    return load_parameters(parameters, source, on_progress=no_progress, cancel=None).tensors


def have_memory(num_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "available_bytes", lambda: RESERVE_BYTES + num_bytes)


def test_pieces_lie_one_after_the_other_along_the_rows(given_tensors) -> None:  # type: ignore[no-untyped-def]
    q, k, v = torch.randn(4, 3), torch.randn(2, 3), torch.randn(2, 3)
    parameter = Parameter("qkv", (8, 3), (Piece("q", (4, 3)), Piece("k", (2, 3)), Piece("v", (2, 3))))
    bias = Parameter("qkv_bias", (3,), (Piece("qb", (2,)), Piece("kb", (1,))))
    tensors = {"q": q, "k": k, "v": v, "qb": torch.tensor([1.0, 2.0]), "kb": torch.tensor([3.0])}
    loaded = load(given_tensors(tensors), parameter, bias)
    assert torch.equal(loaded["qkv"], torch.cat((q, k, v)))
    assert loaded["qkv_bias"].tolist() == [1.0, 2.0, 3.0]


def test_experts_stored_one_by_one_fill_from_the_front(given_tensors) -> None:  # type: ignore[no-untyped-def]
    tensors = {f"{part}{expert}": torch.randn(2, 3) for expert in range(4) for part in ("gate", "up")}
    parameter = Parameter("e", (4, 4, 3), tuple(Piece(name, (2, 3)) for name in tensors))
    loaded = load(given_tensors(tensors), parameter)["e"]
    for expert in range(4):
        assert torch.equal(loaded[expert], torch.cat((tensors[f"gate{expert}"], tensors[f"up{expert}"])))


def test_stacked_experts_are_joined_within_each_expert(given_tensors) -> None:  # type: ignore[no-untyped-def]
    gate, up = torch.randn(4, 2, 3), torch.randn(4, 2, 3)
    parameter = Parameter("e", (4, 4, 3), (Piece("gate", (4, 2, 3)), Piece("up", (4, 2, 3))))
    loaded = load(given_tensors({"gate": gate, "up": up}), parameter)["e"]
    assert torch.equal(loaded, torch.cat((gate, up), dim=1))


@pytest.mark.parametrize("halves", [1, 2])
def test_transposed_pieces_swap_their_last_axes(halves: int, given_tensors) -> None:  # type: ignore[no-untyped-def]
    stored = {f"p{index}": torch.randn(4, 3, 2) for index in range(halves)}  # (E, in, out)
    pieces = tuple(Piece(name, (4, 3, 2), transpose=True) for name in stored)
    loaded = load(given_tensors(stored), Parameter("e", (4, 2 * halves, 3), pieces))["e"]
    assert torch.equal(loaded, torch.cat([part.transpose(1, 2) for part in stored.values()], dim=1))
    assert loaded.is_contiguous()


def test_everything_is_widened_exactly_when_there_is_room(given_tensors) -> None:  # type: ignore[no-untyped-def]
    stored = torch.randn(6, 4).bfloat16()
    source = given_tensors({"w": stored, "n": torch.randn(4).half()})
    loaded = load(
        source, Parameter("w", (6, 4), (Piece("w", (6, 4)),)), Parameter("n", (4,), (Piece("n", (4,)),))
    )
    assert {tensor.dtype for tensor in loaded.values()} == {torch.float32}
    assert torch.equal(loaded["w"], stored.float())


def test_progress_grows_to_the_total_of_the_bytes_in_the_files(given_tensors) -> None:  # type: ignore[no-untyped-def]
    source = given_tensors({"a": torch.randn(6, 4).bfloat16(), "b": torch.randn(5, 4), "c": torch.randn(4)})
    parameters = (
        Parameter("ab", (11, 4), (Piece("a", (6, 4)), Piece("b", (5, 4)))),
        Parameter("c", (4,), (Piece("c", (4,)),)),
    )
    steps: list[LoadProgress] = []
    load_parameters(parameters, source, on_progress=steps.append, cancel=None)
    assert [step.done for step in steps] == [0, 48, 128, 144]
    assert {(step.stage, step.total) for step in steps} == {(LoadStage.WEIGHTS, 144)}


@pytest.mark.parametrize("after", [0, 1, 2])
def test_cancel_is_seen_before_the_next_piece_is_read(after: int, given_tensors) -> None:  # type: ignore[no-untyped-def]
    source = given_tensors({name: torch.randn(2, 2) for name in "abc"})
    parameter = Parameter("p", (6, 2), tuple(Piece(name, (2, 2)) for name in "abc"))
    cancel = threading.Event()

    def on_progress(step: LoadProgress) -> None:
        if step.done == after * 16:
            cancel.set()

    with pytest.raises(Cancelled):
        load_parameters((parameter,), source, on_progress=on_progress, cancel=cancel)
    assert len(source.reads) == after


class TestTooLittleMemory:
    """A matrix of 1024 numbers (bfloat16) and a norm of 32 (float16): 4224 bytes widened, 2176 not."""

    parameters = (
        Parameter("w", (32, 32), (Piece("a", (16, 32)), Piece("b", (16, 32)))),
        Parameter("norm", (32,), (Piece("n", (32,)),)),
    )

    @pytest.fixture
    def source(self, given_tensors):  # type: ignore[no-untyped-def]
        return given_tensors(
            {
                "a": torch.randn(16, 32).bfloat16(),
                "b": torch.randn(16, 32).bfloat16(),
                "n": torch.randn(32).half(),
            }
        )

    def test_matrices_stay_as_stored_and_that_is_told(self, source, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
        have_memory(4223, monkeypatch)
        loaded = load_parameters(self.parameters, source, on_progress=no_progress, cancel=None)
        assert loaded.tensors["w"].dtype == torch.bfloat16
        assert torch.equal(loaded.tensors["w"], torch.cat((source.read("a"), source.read("b"))))
        assert loaded.tensors["norm"].dtype == torch.float32
        assert [notice.code for notice in loaded.notices] == ["weights-not-widened"]

    def test_just_enough_is_enough(self, source, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
        have_memory(4224, monkeypatch)
        loaded = load_parameters(self.parameters, source, on_progress=no_progress, cancel=None)
        assert loaded.tensors["w"].dtype == torch.float32
        assert loaded.notices == ()

    def test_refusal_comes_before_anything_is_read(self, source, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
        have_memory(2175, monkeypatch)
        with pytest.raises(OutOfMemoryError):
            load_parameters(self.parameters, source, on_progress=no_progress, cancel=None)
        assert source.reads == []

    def test_pieces_of_different_types_are_widened_all_the_same(
        self, given_tensors, monkeypatch: pytest.MonkeyPatch
    ) -> None:  # type: ignore[no-untyped-def]
        tensors = {"a": torch.randn(16, 32).bfloat16(), "b": torch.randn(16, 32).half(), "n": torch.randn(32)}
        have_memory(4223, monkeypatch)
        with pytest.raises(OutOfMemoryError):
            load_parameters(self.parameters, given_tensors(tensors), on_progress=no_progress, cancel=None)


def test_refusal_names_both_numbers(given_tensors, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    have_memory(7 * 2**20, monkeypatch)
    source = given_tensors({"w": torch.empty(2**21)})
    with pytest.raises(OutOfMemoryError, match=r"need 8 MiB .* 7 MiB"):
        load(source, Parameter("w", (2**21,), (Piece("w", (2**21,)),)))
