"""`bench` on the stand-in card: real kernels and real counts; times stand for nothing."""

from __future__ import annotations

import ctypes
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench_configs import CONFIGS
from emulated_card import EmulatedCard, EmulatedCompiler
from model_files import TINY_MODELS

from engine.__main__ import main
from engine.bench import bandwidth, phases
from engine.bench.phases import noted_launches
from engine.cuda.arguments import Fill
from engine.cuda.drawing import DrawSlot
from engine.cuda.kernel_set import KernelSet

QUICK = ("--prompt", 9, "--tokens", 2, "--repeats", 1, "--depths", "3,20", "--context", 128)

Bench = Callable[..., tuple[int, str, str]]


@pytest.fixture
def bench(
    card: EmulatedCard,
    card_compiler: EmulatedCompiler,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Bench:
    """`bench(path, *arguments)`: exit code, standard output, standard error."""
    for place in ("engine.card_loading", "engine.cuda.availability"):
        monkeypatch.setattr(f"{place}.find_card", lambda: card.info)
    for place in ("engine.cuda.availability", "engine.bench.random_model"):
        monkeypatch.setattr(f"{place}.open_card", lambda: card)
    for place in ("engine.cuda.nvrtc_compiler", "engine.bench.random_model"):
        monkeypatch.setattr(f"{place}.NvrtcCompiler", lambda cache: card_compiler)
    monkeypatch.setattr(bandwidth, "_MOST_CARD_BYTES", 2**20)  # the processor reads for it
    monkeypatch.setattr(bandwidth, "_PASSES", 1)
    monkeypatch.setattr(bandwidth, "_BLOCKS_A_PROCESSOR", (1,))
    monkeypatch.setattr(phases, "_LAUNCHES_AT_ONCE", 4)
    monkeypatch.setattr(phases, "_MOST_REPLAYS", 1)

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main(["bench", *map(str, arguments), "--device", "cuda"])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def config_file(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str, **changes: Any) -> Path:
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({**CONFIGS[name], **changes}), encoding="utf-8")
        return path

    return write


def figures(outcome: tuple[int, str, str]) -> Any:
    code, out, err = outcome
    assert code == 0, err
    return json.loads(out)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_random_weights_of_every_family_are_measured(
    name: str, bench: Bench, config_file: Callable[..., Path]
) -> None:
    found = figures(bench(config_file(name), "--random-weights", "--weights", "q4", *QUICK, "--json"))
    assert found["device"] == "cuda"
    assert found["device_description"].startswith("Emulated card")
    assert [each["depth"] for each in found["decode"]] == [3, 20]
    assert found["bandwidth_bytes_per_second"] > 0
    assert all(each["roofline_fraction"] > 0 for each in found["decode"])
    assert found["h2d_per_token"] <= 1
    assert found["d2h_per_token"] <= 1
    assert {"before", "after"} == found["clocks"].keys()


def test_bytes_of_a_token_are_those_of_a_hand_count(bench: Bench, config_file: Callable[..., Path]) -> None:
    """Qwen3, 4-bit codes with a scale of 2 bytes for 32 of them. H 64, 4 heads over 2 of 16, I 96, V 320."""
    found = figures(bench(config_file("qwen3"), "--random-weights", "--weights", "q4", *QUICK, "--json"))
    qkv, output, gate_up, down, head = (
        rows * (columns // 2 + columns // 32 * 2)
        for rows, columns in [(128, 64), (64, 64), (192, 64), (64, 96), (320, 64)]
    )
    norms = 4 * (64 + 64 + 16 + 16)
    weights = 2 * (qkv + output + gate_up + down + norms) + head + 4 * 64 + 4 * 64
    of_a_cached_token = 2 * (2 * 32 + 2 * 2 * 4)
    assert [each["bytes_per_token"] for each in found["decode"]] == [
        weights + depth * of_a_cached_token for depth in (3, 20)
    ]


def test_phases_are_all_that_a_token_is_made_of(bench: Bench, config_file: Callable[..., Path]) -> None:
    """Each launch once, each matrix's bytes once, and those of the cache."""
    path = config_file("qwen3_moe", num_hidden_layers=3)
    found = figures(bench(path, "--random-weights", "--weights", "q8", *QUICK, "--phases", "--json"))
    assert [each["depth"] for each in found["phases"]] == [3, 20]
    for each, decode in zip(found["phases"], found["decode"], strict=True):
        parts = each["phases"]
        assert sum(part["launches"] for part in parts) == each["launches"]
        assert all(part["microseconds"] > 0 for part in parts)
        counts = Counter()
        for part in parts:
            counts[part["name"]] += part["launches"]
        matrices = ("qkv", "output", "router", "experts gate_up", "experts down")
        assert {name: counts[name] for name in matrices} == dict.fromkeys(matrices, 3)
        assert (counts["head"], counts["cache"]) == (1, 3)
        num_bytes = sum(part["launches"] * part["bytes"] for part in parts)
        vectors = 4 * (7 * 64 + 64) + 3 * 4 * (16 + 16)  # norms, and a row of the embedding: of no matrix
        assert num_bytes == pytest.approx(decode["bytes_per_token"] - vectors, abs=len(parts) * 3)


def test_a_real_model_is_measured_on_the_card(bench: Bench) -> None:
    found = figures(
        bench(TINY_MODELS / "tiny-qwen2", "--weights", "q8", *QUICK, "--phases", "--json", "--interleave", 2)
    )
    assert not found["random_weights"]
    assert found["interleaved"]["conversations"] == 2
    assert {"runtime", "weights", "upload", "check"} <= found["load_stages"].keys()


@pytest.mark.parametrize(("conversations", "most"), [(0, 2), (3, 4)])
def test_conversations_by_turns_are_measured_as_answers_have_them(
    conversations: int,
    most: int,
    bench: Bench,
    config_file: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While a token is waited for, the step behind it is on the card, and so are those of the others."""
    take, slots, in_flight = DrawSlot.take, set[DrawSlot](), []

    def counted_take(slot: DrawSlot) -> int | None:
        slots.add(slot)
        in_flight.append(sum(each.in_flight for each in slots))
        return take(slot)

    monkeypatch.setattr(DrawSlot, "take", counted_take)
    path = config_file("llama", num_hidden_layers=1)
    figures(bench(path, "--random-weights", *QUICK, "--interleave", conversations, "--json"))
    assert max(in_flight) == most


def test_a_person_can_read_the_phases(bench: Bench, config_file: Callable[..., Path]) -> None:
    code, out, _ = bench(config_file("llama"), "--random-weights", *QUICK, "--phases", "--reused", 40)
    assert code == 0
    assert "phases at depth 20: " in out
    assert "a turn of 32 tokens behind 40: first token" in out


def test_a_card_that_others_have_taken_is_told_in_a_sentence(
    bench: Bench, card: EmulatedCard, config_file: Callable[..., Path]
) -> None:
    card.total_bytes = 40 * 2**20
    card.foreign_bytes = card.total_bytes * 8 // 10
    path = config_file("llama", num_hidden_layers=8, hidden_size=512, intermediate_size=2048, head_dim=64)
    code, out, err = bench(path, "--random-weights", "--weights", "q8", *QUICK)
    assert (code, out) == (2, "")
    assert err.startswith("error: Random weights of this shape take ")
    assert err.count("\n") == 1


def test_a_cache_that_the_card_has_no_room_for_says_what_would_fit(
    bench: Bench, card: EmulatedCard, config_file: Callable[..., Path]
) -> None:
    path = config_file("llama", max_position_embeddings=400_000, num_key_value_heads=4, head_dim=256)
    card.total_bytes = 100 * 2**20
    code, out, err = bench(path, "--random-weights", "--weights", "q4", *QUICK[:6], "--depths", 300_000)
    assert (code, out) == (2, "")
    assert "and there is room for " in err
    assert err.count("\n") == 1


def test_a_window_of_layers_has_no_phases_that_could_be_measured(bench: Bench) -> None:
    code, _, err = bench(TINY_MODELS / "tiny-qwen2", "--weights", "q8", *QUICK, "--phases", "--window", 1)
    assert code == 2
    assert "The phases of a token can't be measured: not all layers" in err


def test_launches_are_noted_as_they_were_and_no_longer_than_asked(
    card: EmulatedCard, card_compiler: EmulatedCompiler
) -> None:
    kernels = KernelSet(card, card_compiler)
    target = card.allocate(64)
    arguments = Fill(target=target, count=64, pattern=7)
    with noted_launches(kernels) as launches:
        kernels.launch("fill_memory", arguments, grid=(1, 1, 1))
        arguments.pattern = 9
    kernels.launch("fill_memory", arguments, grid=(2, 1, 1))
    [launch] = launches
    assert (launch.kernel, launch.options["grid"]) == ("fill_memory", (1, 1, 1))
    assert isinstance(launch.arguments, Fill)
    assert launch.arguments.pattern == 7
    assert ctypes.addressof(launch.arguments) != ctypes.addressof(arguments)
    launch.again(kernels)
    assert kernels.num_launches == 3
    card.free(target)
