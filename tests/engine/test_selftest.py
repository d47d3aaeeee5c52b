"""The self-test finds no difference where there is none, and finds those that there are."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from model_files import TINY_MODELS

from engine.backend import Sequence
from engine.checkpoints.model_folder import open_model
from engine.config import WeightFormat
from engine.cpu.backend import CpuBackend
from engine.cpu.page_pool import CpuPagePool
from engine.errors import EngineError
from engine.kv_geometry import PAGE, KvFormat, KvGeometry
from engine.selftest import PIECES, TEXT_TOKENS, Check, SelfTest
from engine.states.pages import PageLedger

SOME_CUTS = (1, PAGE - 1, PAGE + 12, 2 * PAGE)
FAMILIES = sorted(path.name for path in TINY_MODELS.iterdir() if path.is_dir())


def load(name: str, weights: WeightFormat = "native") -> CpuBackend:
    folder = open_model(TINY_MODELS / name)
    backend = CpuBackend.load(folder.spec, folder.parameters, folder.tensors, weights=weights)
    folder.tensors.close()
    return backend


def checks(
    backend: CpuBackend, folder: Path, kv: KvFormat = "int8", *, dump: bool = False
) -> Iterator[Check]:
    ids = random.Random(1).choices(range(backend.spec.vocab_size), k=TEXT_TOKENS)
    geometry = KvGeometry.of(backend.spec, kv)
    return SelfTest(backend, geometry, ids, folder=folder, cuts=SOME_CUTS, dump=dump).run()


def failed(found: Iterator[Check]) -> set[str]:
    """The kinds of shortcut that differ, without where the text was cut."""
    return {check.name.partition(" at ")[0] for check in found if not check.ok}


@pytest.mark.slow
@pytest.mark.parametrize("kv", ["native", "int8"])
@pytest.mark.parametrize("weights", ["native", "q8", "q4"])
@pytest.mark.parametrize("name", FAMILIES)
def test_no_shortcut_changes_a_bit(name: str, weights: WeightFormat, kv: KvFormat, tmp_path: Path) -> None:
    found = list(checks(load(name, weights), tmp_path, kv))
    assert [check for check in found if not check.ok] == []
    assert len(found) == len(PIECES) + 11 * len(SOME_CUTS) + 3
    assert all(check.diff == 0 for check in found[:-1])  # the last one is decoding


@pytest.mark.slow
def test_no_shortcut_changes_a_bit_at_any_place_around_a_border(tmp_path: Path) -> None:
    backend = load("tiny-mistral-sw", "q4")  # windows, too
    ids = random.Random(2).choices(range(backend.spec.vocab_size), k=PAGE + 40)
    cuts = range(PAGE - 12, PAGE + 13)
    geometry = KvGeometry.of(backend.spec, "int8")
    found = list(SelfTest(backend, geometry, ids, folder=tmp_path, cuts=cuts).run())
    assert [check for check in found if not check.ok] == []
    assert len(found) == len(PIECES) + 11 * len(cuts) + 3


def test_a_page_that_is_not_copied_as_it_is_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = CpuPagePool.copy

    def careless(self: CpuPagePool, source: int, target: int) -> None:
        real(self, source, target)
        data = self.read(target)
        data[:64] = 0
        self.write(target, data)

    monkeypatch.setattr(CpuPagePool, "copy", careless)
    assert "copied prefix" in failed(checks(load("tiny-qwen3"), tmp_path))


def test_a_write_into_a_shared_page_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PageLedger, "_is_shared", lambda self, sequence, index: False)
    assert {"fork", "original of a fork"} <= failed(checks(load("tiny-qwen3"), tmp_path))


def test_a_row_too_many_is_found_and_its_layer_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(self: PageLedger, sequence: Sequence, length: int) -> None:
        real(self, sequence, length)
        if sequence.length > 60:  # one stale row counts as the next one's
            page = sequence.pages[-1]
            data = self.pool.read(page)
            data[self.pool.geometry.layer_offsets[2] :] ^= 1
            self.pool.write(page, data)

    real = PageLedger.truncate
    monkeypatch.setattr(PageLedger, "truncate", short)
    found = [each for each in checks(load("tiny-qwen3"), tmp_path, dump=True) if not each.ok]
    assert "rewind" in failed(iter(found))
    assert {each.apart for each in found} == {"keys or values of layer 2"}


def test_reading_everything_again_is_no_shortcut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.states.store.best_prefix", lambda own, others, prompt: (None, 0))
    found = failed(checks(load("tiny-qwen3"), tmp_path))
    assert {"copied prefix", "rewind", "fork", "next start"} <= found
    assert not any(name.startswith(("pieces", "two by turns", "decoding")) for name in found)


def test_a_short_text_is_tested_as_far_as_it_goes(tmp_path: Path) -> None:
    backend = load("tiny-qwen2")
    geometry = KvGeometry.of(backend.spec, "int8")
    found = list(SelfTest(backend, geometry, [5, 6], folder=tmp_path).run())
    assert all(check.ok for check in found)
    assert "copied prefix at 1" in [check.name for check in found]


def test_results_are_told_as_numbers() -> None:
    check = Check("fork at 3", 1.5, 1.75, ok=False, apart="keys or values of layer 0")
    assert check.as_json() == {
        "name": "fork at 3",
        "a_nll": 1.5,
        "b_nll": 1.75,
        "diff": 0.25,
        "ok": False,
        "apart": "keys or values of layer 0",
    }


def test_a_full_disk_is_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.states.kv_folder.LEAST_FREE_BYTES", 2**62)
    found = checks(load("tiny-qwen2"), tmp_path)
    with pytest.raises(EngineError, match=r"disk of .* is full.* Free some space there"):
        assert all(check.ok for check in found)
