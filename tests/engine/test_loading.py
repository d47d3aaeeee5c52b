from __future__ import annotations

from collections.abc import Sequence

import pytest
from model_files import TINY_MODELS

from engine import loading
from engine.checkpoints.model_folder import open_model
from engine.config import EngineConfig, WeightFormat
from engine.cpu import code_ir, kv_ir, strip_ir, swiglu_ir
from engine.engine import Engine

MODEL = TINY_MODELS / "tiny-qwen2"
ALWAYS = {swiglu_ir.kernel_text(), kv_ir.kernel_text("int8")}


@pytest.mark.parametrize(
    ("weights", "more"),
    [
        ("native", set()),
        ("q8", {strip_ir.kernel_text()}),
        ("q4", {strip_ir.kernel_text(), code_ir.kernel_text()}),
    ],
)
def test_what_a_load_is_going_to_ask_for_is_compiled_while_torch_comes_in(
    weights: WeightFormat, more: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def begin_compiling(texts: Sequence[str]) -> None:
        begun.extend(texts)

    monkeypatch.setattr(loading, "begin_compiling", begin_compiling)
    Engine.load(open_model(MODEL), EngineConfig(weights=weights, kv="int8")).close()
    assert set(begun) == ALWAYS | more
    assert len(begun) == len(ALWAYS | more)
