"""What the model card and `inspect` say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gguf_files import write_gguf
from model_files import TINY_MODELS, WEIGHTS, copy_model, set_config

from engine.config import EngineConfig
from engine.inspection import USUAL_CONTEXT, inspect_model


def test_the_report_of_a_good_folder() -> None:
    report = inspect_model(TINY_MODELS / "tiny-llama-rope3")
    assert (report.name, report.kind) == ("tiny-llama-rope3", "safetensors")
    assert (report.architecture, report.family) == ("LlamaForCausalLM", "Llama")
    assert (report.parameters, report.layers, report.context_length) == (722_048, 4, 4096)
    assert report.file_bytes == (TINY_MODELS / "tiny-llama-rope3" / WEIGHTS).stat().st_size
    assert report.weight_bytes.native == 2 * 722_048
    assert report.kv_bytes_per_token == 4 * (2 * 64 + 8 * 2)
    assert report.kv_bytes_per_token_native == 4 * 2 * 64 * 4
    assert report.problems == ()
    assert report.notices == ()


def test_the_report_as_json_holds_what_the_command_line_promises() -> None:
    report = json.loads(json.dumps(inspect_model(TINY_MODELS / "tiny-qwen3vl").as_json()))
    assert {
        "architecture",
        "parameters",
        "layers",
        "context_length",
        "kv_bytes_per_token",
        "fits",
        "problems",
    } <= set(report)
    assert set(report["weight_bytes"]) == {"native", "q8", "q4"}
    assert report["problems"] == []
    assert report["notices"][0]["code"] == "tensors-left-out"
    assert set(report["fits"]["ram"]) == {"available_bytes", "context", "native", "q8", "q4"}


def test_all_problems_are_found_at_once(tmp_path: Path) -> None:
    folder = set_config(
        copy_model("tiny-qwen3", tmp_path / "model"),
        rope_scaling={"type": "dynamic", "factor": 2},
        quantization_config={"quant_method": "hqq"},
        eos_token_id="end",
    )
    (folder / "tokenizer.json").unlink()
    (folder / WEIGHTS).write_bytes(b"cut")
    text = " ".join(problem.message for problem in inspect_model(folder).problems)
    for found in ("'dynamic'", "hqq", "eos_token_id", "tokenizer.json", "3 bytes"):
        assert found in text
    assert len(inspect_model(folder).problems) == 5


def test_sizes_are_told_although_something_else_is_wrong(tmp_path: Path) -> None:
    folder = copy_model("tiny-qwen3", tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    report = inspect_model(folder)
    good = inspect_model(TINY_MODELS / "tiny-qwen3")
    assert len(report.problems) == 1
    assert (report.parameters, report.weight_bytes, report.fits["ram"].native) == (
        good.parameters,
        good.weight_bytes,
        True,
    )


def test_a_config_alone_tells_the_sizes(tmp_path: Path) -> None:
    folder = copy_model("tiny-qwen3", tmp_path / "model")
    (folder / WEIGHTS).unlink()
    report = inspect_model(folder)
    assert report.parameters == 340_992
    assert ["no weights" in problem.message for problem in report.problems] == [True]


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    folder = set_config(
        copy_model("tiny-qwen3", tmp_path / "m"), model_type="rwkv", architectures=["RwkvModel"]
    )
    report = inspect_model(folder)
    assert report.architecture == "RwkvModel"
    assert (report.layers, report.fits) == (0, {})


@pytest.mark.parametrize(("asked", "counted"), [(None, USUAL_CONTEXT), (512, 512), (10**9, 4096)])
def test_what_fits_counts_the_context_that_is_asked_for(asked: int | None, counted: int) -> None:
    report = inspect_model(TINY_MODELS / "tiny-qwen3", EngineConfig(context=asked))
    assert report.fits["ram"].context == counted


def test_what_does_not_fit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """340,992 numbers: 681,984 bytes as stored, 450,048 as 8-bit strips, 280,064 as 4-bit ones."""
    import engine.inspection as inspection

    room = inspection.RESERVE_BYTES + USUAL_CONTEXT * 5 * (2 * 64 + 8 * 2)
    for free, expected in (
        (681_984, (True, True, True)),
        (681_983, (False, True, True)),
        (450_047, (False, False, True)),
        (280_063, (False, False, False)),
    ):
        monkeypatch.setattr(inspection, "available_bytes", lambda free=free: room + free)
        fit = inspect_model(TINY_MODELS / "tiny-qwen3").fits["ram"]
        assert (fit.native, fit.q8, fit.q4) == expected


def test_a_gguf_file_is_described_like_its_folder(tmp_path: Path) -> None:
    report = inspect_model(write_gguf("tiny-qwen3", tmp_path / "tiny.gguf", kind="Q8_0"))
    folder = inspect_model(TINY_MODELS / "tiny-qwen3")
    assert report.problems == ()
    assert (report.kind, report.architecture, report.family) == ("gguf", folder.architecture, folder.family)
    assert (report.parameters, report.kv_bytes_per_token) == (folder.parameters, folder.kv_bytes_per_token)
    assert report.weight_bytes.native == 2 * folder.weight_bytes.native  # float32 once it is loaded
    assert report.file_bytes == (tmp_path / "tiny.gguf").stat().st_size
