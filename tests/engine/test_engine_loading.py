"""Loading a whole engine: what it goes through, what it refuses, and what it says of itself."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from model_files import TINY_MODELS, Tensors, copy_model, edit_tensors

from engine import loading
from engine.checkpoints.model_folder import open_model
from engine.config import EngineConfig, WeightGroup
from engine.cpu import memory
from engine.cpu.memory import RESERVE_BYTES
from engine.engine import Engine
from engine.errors import (
    Cancelled,
    ComputeFaultError,
    EngineError,
    ModelFileError,
    OutOfMemoryError,
    SettingError,
)
from engine.generation import Finished, GenerationRequest
from engine.inspection import inspect_model
from engine.progress import LoadProgress, LoadStage
from engine.weights.sizes import MatrixCounts

MODEL = TINY_MODELS / "tiny-qwen2"
CPU = EngineConfig(device="cpu", weights="native")
PROMPT = tuple(range(40))
STAGES = [stage for stage in LoadStage if stage is not LoadStage.UPLOAD]  # that is for a card

Load = Callable[..., Engine]


@pytest.fixture
def load() -> Iterator[Load]:
    """Loads a folder with settings, and closes the engine after the test."""
    engines: list[Engine] = []

    def load_folder(path: Path = MODEL, **settings: Any) -> Engine:
        engines.append(
            Engine.load(open_model(path), EngineConfig(**{"device": "cpu", "weights": "native", **settings}))
        )
        return engines[-1]

    yield load_folder
    for each in engines:
        each.close()


def answer(engine: Engine, conversation: str = "") -> tuple[int, ...]:
    request = GenerationRequest(PROMPT, max_new_tokens=8, ignore_eos=True, conversation=conversation)
    *_, finished = engine.generate(request)
    assert isinstance(finished, Finished)
    return finished.token_ids


class TestLoad:
    def test_stages_come_in_order_and_bytes_add_up(self) -> None:
        steps: list[LoadProgress] = []
        Engine.load(open_model(MODEL), CPU, on_progress=steps.append).close()
        stages = [step.stage for step in steps]
        assert list(dict.fromkeys(stages)) == STAGES
        assert stages == sorted(stages, key=list(LoadStage).index)
        weights = [step for step in steps if step.stage is LoadStage.WEIGHTS]
        assert weights[-1].done == weights[-1].total > 1_000_000

    @pytest.mark.parametrize("stage", STAGES)
    def test_cancel_is_seen_in_every_stage(self, stage: LoadStage) -> None:
        cancel, folder = threading.Event(), open_model(MODEL)

        def on_progress(step: LoadProgress) -> None:
            if step.stage is stage:
                cancel.set()

        with pytest.raises(Cancelled):
            Engine.load(folder, CPU, on_progress=on_progress, cancel=cancel)

    @pytest.mark.parametrize("ends", ["well", "badly"])
    def test_files_are_closed_however_it_ends(self, ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = open_model(MODEL)
        closed: list[bool] = []
        close = folder.tensors.close
        monkeypatch.setattr(folder.tensors, "close", lambda: (closed.append(True), close()))
        if ends == "well":
            Engine.load(folder, CPU).close()
        else:
            with pytest.raises(SettingError):
                Engine.load(folder, EngineConfig(device="cuda"))
        assert closed

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"device": "cuda"}, "cuda.*cpu"),
            ({"context": 4097}, "4,097 tokens.*4,096"),
            ({"context": 0}, "context is 0"),
            ({"slots": 0}, "slots is 0"),
            ({"vram_budget": -1}, "vram_budget is -1"),
            ({"window": -1}, "window is -1"),
            ({"state_ram_budget": -1}, "state_ram_budget is -1"),
            ({"state_disk_budget": -1}, "state_disk_budget is -1"),
            ({"weight_group": 0}, "weight_group is 0.*32 or 256"),
            ({"weight_group": 64}, "weight_group is 64.*32 or 256"),
            ({"threads": 0}, "threads is 0"),
            ({"threads": 10**6}, "threads is 1000000"),
        ],
    )
    def test_settings_that_are_not_available_are_named(self, settings: dict[str, Any], words: str) -> None:
        with pytest.raises(SettingError, match=words):
            Engine.load(open_model(MODEL), EngineConfig(**settings))

    def test_running_on_the_cpu_unasked_is_told(self, load: Load) -> None:
        def codes(**settings: Any) -> list[str]:
            return [notice.code for notice in load(**settings).summary.notices]

        assert codes(device="auto") == ["card-driver-missing"]
        assert codes(device="cpu") == []
        assert codes(device="cpu", activations="int8") == ["activations-unused"]
        assert codes(device="cpu", activations="int8", weights="q8") == []
        assert codes(device="cpu", vram_budget=2**30) == ["vram-budget-unused"]
        assert codes(device="cpu", window=3) == ["window-unused"]

    def test_summary_says_what_was_loaded(self, load: Load) -> None:
        summary = load(context=100).summary
        assert (summary.path, summary.kind, summary.family) == (MODEL, "safetensors", "Qwen2")
        assert summary.architecture == "Qwen2ForCausalLM"
        assert (summary.layers, summary.context_length, summary.device) == (4, 100, "cpu")
        assert summary.parameters == 723_072
        assert summary.weight_bytes == 4 * 723_072

    def test_weights_are_packed_to_8_bits_by_themselves_and_that_is_told(self, load: Load) -> None:
        summary = load(weights="auto").summary
        assert summary.weights == "q8"
        assert summary.matrices == MatrixCounts(q8=4 * 4 + 1)
        assert summary.device_description.endswith("8-bit weights")
        assert [notice.code for notice in summary.notices] == ["weights-packed"]

    def test_weights_are_packed_to_4_bits_where_8_do_not_fit(
        self, load: Load, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sizes = inspect_model(MODEL).weight_bytes
        monkeypatch.setattr(loading, "available_bytes", lambda: RESERVE_BYTES + sizes.q8 - 1)
        summary = load(weights="auto").summary
        assert summary.weights == "q4"
        assert summary.matrices == MatrixCounts(q4=4 * 4 + 1)
        assert summary.weight_bytes < sizes.q8
        assert summary.device_description.endswith("4-bit weights")
        assert [notice.code for notice in summary.notices] == ["weights-packed-to-fit"]

    @pytest.mark.parametrize("group", [32, 256])
    @pytest.mark.parametrize("weights", ["q8", "q4"])
    def test_the_card_foretells_the_size_of_packed_weights(
        self, load: Load, weights: str, group: WeightGroup
    ) -> None:
        summary = load(weights=weights, weight_group=group).summary
        report = inspect_model(MODEL, EngineConfig(weight_group=group))
        assert summary.weight_bytes == getattr(report.weight_bytes, weights)
        told = [notice.code for notice in summary.notices]
        assert told == ([] if group == 32 else ["matrices-in-small-groups"])

    def test_a_group_for_weights_that_are_not_packed_is_told(self, load: Load) -> None:
        assert [notice.code for notice in load(weight_group=256).summary.notices] == ["weight-group-unused"]

    @pytest.mark.parametrize(("weights", "form"), [("q8", "as 8-bit strips"), ("q4", "as 4-bit strips")])
    def test_too_little_memory_is_told_before_a_weight_is_read(
        self, weights: str, form: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        needed = getattr(inspect_model(MODEL).weight_bytes, weights)
        monkeypatch.setattr(memory, "available_bytes", lambda: RESERVE_BYTES + needed - 1)
        folder = open_model(MODEL)

        def read(name: str) -> None:
            raise AssertionError("nothing was to be read")

        monkeypatch.setattr(folder.tensors, "read", read)
        with pytest.raises(OutOfMemoryError, match=form):
            Engine.load(folder, EngineConfig(weights=weights))  # type: ignore[arg-type]

    def test_a_failed_load_leaves_a_loaded_model_working(self, load: Load, tmp_path: Path) -> None:
        engine = load()
        before = answer(engine)
        with pytest.raises(EngineError):
            Engine.load(open_model(tmp_path), CPU)
        assert answer(engine) == before

    def test_close_lets_go_of_weights_and_caches_and_may_come_twice(self) -> None:
        engine = Engine.load(open_model(MODEL), CPU)
        answer(engine, conversation="kept")
        backend = weakref.ref(engine._backend)
        engine.close()
        engine.close()
        gc.collect()
        assert backend() is None

    @pytest.mark.parametrize(
        ("number", "error"),
        [
            (b"\xc0\x7f", (ModelFileError, r"norm\.weight.*not finite")),  # NaN as bfloat16
            (b"\x7f\x7f", (ComputeFaultError, "not numbers")),  # the largest, which overflows
        ],
    )
    def test_weights_that_are_no_numbers_or_yield_none_fail_the_load(
        self, number: bytes, error: tuple[type[EngineError], str], tmp_path: Path
    ) -> None:
        folder = copy_model("tiny-qwen2", tmp_path / "model")

        def change(tensors: Tensors) -> None:
            norm = tensors["model.norm.weight"]
            tensors["model.norm.weight"] = replace(norm, data=number * (len(norm.data) // 2))

        edit_tensors(folder, change)
        kind, message = error
        with pytest.raises(kind, match=message):
            Engine.load(open_model(folder), CPU)

    def test_a_model_that_always_says_the_same_loads_with_a_warning(self, tmp_path: Path, load: Load) -> None:
        folder = copy_model("tiny-qwen2", tmp_path / "model")
        weights = folder / "model.safetensors"
        data = weights.read_bytes()
        header_end = 8 + int.from_bytes(data[:8], "little")
        weights.write_bytes(data[:header_end] + bytes(len(data) - header_end))
        assert "self-check-repeats" in [notice.code for notice in load(folder).summary.notices]
