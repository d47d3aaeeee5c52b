"""Loads that find the strips of an earlier one: the same model, bit for bit, and never a damaged one."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from model_files import TINY_MODELS

from engine.__main__ import main
from engine.checkpoints.model_folder import open_model
from engine.config import EngineConfig
from engine.cpu import strip_maker
from engine.default_folders import strips_folder
from engine.engine import Engine
from engine.generation import Finished, GenerationRequest
from engine.weights import part_file

IDS = list(range(3, 60))
MODELS = ["tiny-qwen3", "tiny-qwen3moe-mix"]  # tied, dense; untied, with experts and a router


@pytest.fixture
def quantised(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the quantiser was called for."""
    calls: list[str] = []
    real = strip_maker.calibrated_strip

    def counting(weight: torch.Tensor, *statistics, **options):  # type: ignore[no-untyped-def]
        calls.append(str(tuple(weight.shape)))
        return real(weight, *statistics, **options)

    monkeypatch.setattr(strip_maker, "calibrated_strip", counting)
    return calls


def load(name: str, weights: str) -> Engine:
    """A load whose strips are on disk, or given up."""
    engine = Engine.load(open_model(TINY_MODELS / name), EngineConfig(weights=weights))  # type: ignore[arg-type]
    assert engine._shelf is None or engine._shelf.wait() is None
    return engine


def codes(engine: Engine) -> list[str]:
    notices = (*engine.summary.notices, *engine.late_notices())
    return [notice.code for notice in notices if notice.code.startswith("strips-")]


def kept_file() -> Path:
    [path] = strips_folder().glob("*.safetensors")
    return path


@pytest.mark.parametrize("weights", ["q8", "q4"])
@pytest.mark.parametrize("name", MODELS)
def test_second_load_makes_nothing_and_is_the_same_model(
    name: str, weights: str, quantised: list[str]
) -> None:
    first = load(name, weights)
    made = len(quantised)
    assert made > 0
    second = load(name, weights)
    assert len(quantised) == made
    assert second.summary.matrices == first.summary.matrices
    assert second.score(IDS) == first.score(IDS)
    assert codes(first) == codes(second) == []


def test_each_precision_is_kept_by_itself(quantised: list[str]) -> None:
    load("tiny-qwen3", "q8")
    made = len(quantised)
    load("tiny-qwen3", "q4")
    assert len(quantised) == 2 * made
    load("tiny-qwen3", "native")
    assert len(list(strips_folder().glob("*.safetensors"))) == 2


@pytest.mark.parametrize("place", [0.2, 0.5, 0.99], ids="{:.0%}".format)
def test_damaged_file_is_told_and_made_again(place: float, quantised: list[str]) -> None:
    sound = load("tiny-qwen3", "q8").score(IDS)
    made = len(quantised)
    path = kept_file()
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1
    path.write_bytes(content)
    again = load("tiny-qwen3", "q8")
    assert codes(again) == ["strips-unusable"]
    assert again.score(IDS) == sound
    assert len(quantised) == 2 * made
    assert codes(load("tiny-qwen3", "q8")) == []
    assert len(quantised) == 2 * made


def test_folder_that_can_not_be_written_is_told_and_the_model_loads() -> None:
    strips_folder().parent.mkdir(parents=True, exist_ok=True)
    strips_folder().write_text("a file where the folder should be")
    engine = load("tiny-qwen3", "q8")
    assert "strips-not-kept" in codes(engine)
    assert engine.score(IDS).n == len(IDS) - 1


class FullDisk:
    """The `os` module of a disk that is found to be full when it is waited for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_disk_that_is_full_behind_the_load_is_told_with_the_next_answer_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = threading.Event()

    class LateFullDisk(FullDisk):
        def fsync(self, descriptor: int) -> None:
            assert gate.wait(60)
            super().fsync(descriptor)

    monkeypatch.setattr(part_file, "os", LateFullDisk())
    engine = Engine.load(open_model(TINY_MODELS / "tiny-qwen3"), EngineConfig(weights="q8"))
    assert codes(engine) == []
    request = GenerationRequest(prompt_ids=tuple(IDS), max_new_tokens=2)

    def told() -> list[str]:
        *_, finished = engine.generate(request)
        assert isinstance(finished, Finished)
        return [notice.code for notice in finished.notices]

    assert told() == [], "it answers while the disk is waited for"
    gate.set()
    assert engine._shelf is not None
    engine._shelf.wait()
    assert told() == ["strips-not-kept"]
    assert told() == []
    assert list(strips_folder().iterdir()) == []


@pytest.mark.parametrize("command", ["generate", "score"])
def test_command_line_tells_of_a_disk_that_is_full_behind_the_load(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(part_file, "os", FullDisk())
    ids = tmp_path / "ids.json"
    ids.write_text("[[3, 4, 5]]")
    arguments = [command, str(TINY_MODELS / "tiny-qwen3"), "--weights", "q8", "--ids", str(ids)]
    arguments += ["--max-new", "1"] if command == "generate" else []
    assert main([*arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert "strips-not-kept" in [notice["code"] for notice in printed["notices"]]
    assert main(arguments) == 0
    assert "is full" in capsys.readouterr().err


def test_load_right_after_the_first_one_waits_for_its_strips(
    quantised: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = threading.Event()

    class SlowDisk(FullDisk):
        def fsync(self, descriptor: int) -> None:
            synced.wait(0.2)

    monkeypatch.setattr(part_file, "os", SlowDisk())
    model, config = TINY_MODELS / "tiny-qwen3", EngineConfig(weights="q8")
    first = Engine.load(open_model(model), config)
    made = len(quantised)
    first.close()
    Engine.load(open_model(model), config)
    assert len(quantised) == made


def test_model_whose_file_changed_is_packed_again(tmp_path: Path, quantised: list[str]) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in (TINY_MODELS / "tiny-qwen3").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    engine = Engine.load(open_model(folder), EngineConfig(weights="q8"))
    first = engine.score(IDS)
    assert engine.late_notices(wait=True) == ()
    made = len(quantised)
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1000:] = bytes(1000)
    weights.write_bytes(content)
    second = Engine.load(open_model(folder), EngineConfig(weights="q8")).score(IDS)
    assert len(quantised) == 2 * made
    assert second != first
