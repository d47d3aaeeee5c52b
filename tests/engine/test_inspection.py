"""What the model card and `inspect` say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from gguf_files import write_gguf
from model_files import TINY_MODELS, WEIGHTS, copy_model, set_config

from engine.checkpoints.model_folder import open_model
from engine.config import EngineConfig
from engine.cuda.availability import NoCard
from engine.cuda.driver import CardInfo
from engine.inspection import USUAL_CONTEXT, Fit, inspect_model
from engine.resolution import resolve_config


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


# The card

CARD = CardInfo("A card", (9, 0), total_bytes=1_000_000, multiprocessors=132, driver="580")


@pytest.fixture
def with_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.inspection.find_card", lambda: CARD)


@pytest.mark.usefixtures("with_card")
def test_what_fits_into_the_card_is_what_a_load_would_put_there() -> None:
    folder = TINY_MODELS / "tiny-qwen3"
    config = EngineConfig(context=64)
    report = inspect_model(folder, config)
    assert report.card == CARD
    assert report.as_json()["card"] == "A card"
    sizes = report.weight_bytes
    for total in (sizes.q4, sizes.q8, sizes.native, 2 * sizes.native):
        for budget in (None, sizes.q8, 2 * sizes.q8, 4 * sizes.native):
            card = replace(CARD, total_bytes=total)
            fit = _fits_of(card, folder, EngineConfig(context=64, vram_budget=budget))
            assert fit.available_bytes == min(total, budget or total)
            resolved, _ = resolve_config(
                EngineConfig(vram_budget=budget),
                open_model(folder).spec,
                sizes=sizes,
                available=2**40,
                card=card,
            )
            assert resolved.weights == ("q8" if fit.q8 else "q4")


def test_a_long_conversation_counts_on_the_card_too() -> None:
    folder = TINY_MODELS / "tiny-qwen3"
    report = inspect_model(folder)
    card = replace(CARD, total_bytes=4 * report.weight_bytes.q8)
    assert _fits_of(card, folder, EngineConfig(context=1)).q8
    assert not _fits_of(card, folder, EngineConfig(context=report.context_length)).q8


def test_the_card_s_whole_units_count() -> None:
    """64 pages of tiny-qwen3 are 2.8 MB: of a card, 4 MB are taken for them."""
    folder = TINY_MODELS / "tiny-qwen3"
    report = inspect_model(folder)
    pages = 64 * 64 * report.kv_bytes_per_token
    assert 2 * 2**20 < pages < 4 * 2**20
    for num_bytes, fits in ((pages, False), (4 * 2**20 - 1, False), (4 * 2**20, True)):
        card = replace(CARD, total_bytes=num_bytes + report.weight_bytes.native)
        assert _fits_of(card, folder, EngineConfig(context=64 * 64)).native == fits


def test_no_card_is_looked_for_where_the_cpu_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def find() -> CardInfo:
        raise AssertionError("nobody asked for a card")

    monkeypatch.setattr("engine.inspection.find_card", find)
    report = inspect_model(TINY_MODELS / "tiny-qwen3", EngineConfig(device="cpu"))
    assert report.card is None
    assert set(report.fits) == {"ram"}


def test_why_there_is_no_card_stands_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = NoCard("card-driver-missing", "there is no NVIDIA driver on this computer")
    monkeypatch.setattr("engine.inspection.find_card", lambda: reason)
    report = inspect_model(TINY_MODELS / "tiny-qwen3")
    assert report.card == reason
    assert report.as_json()["card"] is None
    assert report.problems == ()
    assert set(report.fits) == {"ram"}
    asked_for = inspect_model(TINY_MODELS / "tiny-qwen3", EngineConfig(device="cuda"))
    [problem] = asked_for.problems
    assert problem.code == "card-driver-missing"
    assert "there is no NVIDIA driver" in problem.message


def _fits_of(card: CardInfo, folder: Path, config: EngineConfig) -> Fit:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.inspection.find_card", lambda: card)
        return inspect_model(folder, config).fits["vram"]
