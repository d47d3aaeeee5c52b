"""`bench` on the CPU: what it prints, and what it says where it can't."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench_configs import CONFIGS, configuration
from model_files import TINY_MODELS

from engine.__main__ import main
from engine.bench.bandwidth import read_bandwidth
from engine.bench.clocks import read_clocks
from engine.bench.conversation import Conversation
from engine.bench.load_times import LoadTimes
from engine.bench.measurements import Measurements
from engine.bench.plan import make_plan
from engine.bench.random_model import RandomLoad, load_random
from engine.bench.traffic import traffic_of
from engine.config import EngineConfig
from engine.errors import OutOfMemoryError
from engine.kv_geometry import PAGE, KvGeometry
from engine.progress import LoadProgress, LoadStage, no_progress

QUICK = ("--device", "cpu", "--prompt", 20, "--tokens", 3, "--repeats", 1, "--depths", "4,30")
KEYS = {"prefill", "decode", "bandwidth_bytes_per_second", "load_seconds", "h2d_per_token", "d2h_per_token"}

Bench = Callable[..., tuple[int, str, str]]


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Bench:
    def run(*arguments: object) -> tuple[int, str, str]:
        try:
            code = main(["bench", *map(str, arguments)])
        except SystemExit as ended:  # by argparse
            code = int(str(ended.code))
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


@pytest.fixture(autouse=True)
def _little_memory_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.bench.bandwidth._RAM_BYTES", 2**22)


def random_load(name: str, **settings: Any) -> RandomLoad:
    config = EngineConfig(**{"device": "cpu", "weights": "q4", **settings})
    return load_random(configuration(CONFIGS[name]), config, on_progress=no_progress, cancel=None)


def test_a_model_folder_is_measured(bench: Bench) -> None:
    code, out, _ = bench(TINY_MODELS / "tiny-qwen3", *QUICK, "--json")
    assert code == 0
    found = json.loads(out)
    assert found.keys() >= KEYS
    assert [(each["tokens"], each["depth"]) for each in found["prefill"]] == [(20, 0), (20, 30)]
    assert [each["depth"] for each in found["decode"]] == [4, 30]
    for each in found["decode"]:
        assert each["milliseconds_per_token"] == pytest.approx(1000 / each["tokens_per_second"])
        share = each["bytes_per_token"] / found["bandwidth_bytes_per_second"]
        assert each["roofline_fraction"] == pytest.approx(1000 * share / each["milliseconds_per_token"])
    assert found["decode"][0]["bytes_per_token"] < found["decode"][1]["bytes_per_token"]
    assert found["device"] == "cpu"
    assert (found["h2d_per_token"], found["d2h_per_token"]) == (0, 0)
    assert sum(found["load_stages"].values()) == pytest.approx(found["load_seconds"])
    assert not found["random_weights"]


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_random_weights_of_every_family_are_measured(
    name: str, bench: Bench, config_file: Callable[..., Path]
) -> None:
    code, out, _ = bench(config_file(name), "--random-weights", "--weights", "q4", *QUICK, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["random_weights"]
    assert (found["model"], found["weights"]) == (name, "q4")


def test_a_person_can_read_it(bench: Bench, config_file: Callable[..., Path]) -> None:
    code, out, _ = bench(
        config_file("llama"), "--random-weights", *QUICK, "--interleave", 2, "--reused", 40, "--turn", 5
    )
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("llama: q8 weights, float activations, int8 cache")
    for beginning in ("decode at depth 30: ", "2 conversations by turns: ", "a turn of 5 tokens behind 40: "):
        assert any(line.startswith(beginning) for line in lines)


@pytest.mark.parametrize("weights", ["native", "q8", "q4"])
def test_random_logits_are_finite_and_the_same_in_every_run(weights: str) -> None:
    found = []
    for _ in range(2):
        backend = random_load("qwen3_moe", weights=weights).backend
        cache = backend.new_cache("int8")
        found.append(backend.forward([3, 10, 17], cache, all_logits=True))
        cache.close()
    assert bool(found[0].isfinite().all())
    assert 0.1 < float(found[0].std()) < 10
    assert found[0].equal(found[1])


def test_bytes_of_a_token_are_those_of_a_hand_count() -> None:
    """Qwen3, 4-bit codes with a float32 scale for 32 of them. H 64, 4 heads over 2 of 16, I 96, V 320."""
    load = random_load("qwen3")
    qkv, output, gate_up, down, head = (
        rows * (columns // 2 + columns // 32 * 4)
        for rows, columns in [(128, 64), (64, 64), (192, 64), (64, 96), (320, 64)]
    )
    norms = 4 * (64 + 64 + 16 + 16)
    weights = 2 * (qkv + output + gate_up + down + norms) + head + 4 * 64 + 4 * 64
    traffic = traffic_of(load.backend, "int8")
    assert traffic.at(0) == weights
    assert traffic.at(100) == weights + 100 * 2 * (2 * 32 + 2 * 2 * 4)


def test_of_experts_only_those_count_that_a_token_takes() -> None:
    """2 of 6 in each of 2 layers, and the router, 6 rows of bfloat16."""
    dense = traffic_of(random_load("qwen3").backend, "int8")
    mixed = traffic_of(random_load("qwen3_moe").backend, "int8")
    row, down_row = 64 // 2 + 2 * 4, 96 // 2 + 3 * 4
    feed_forward = 192 * row + 64 * down_row
    experts = 2 * (64 * row + 64 * (32 // 2 + 4)) + 6 * 64 * 2
    assert dense.weights - mixed.weights == 2 * (feed_forward - experts)


def test_a_token_reads_no_more_of_the_cache_than_its_window() -> None:
    load = random_load("mistral")
    traffic = traffic_of(load.backend, "int8")
    assert traffic.cache(128) == traffic.cache(5000) > traffic.cache(127)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--depths", "16,-3"), "depths is -3"),
        (("--depths", "16;32"), "whole numbers"),
        (("--depths", "100000"), "don't fit into the context of 512"),
        (("--prompt", "0"), "prompt is 0"),
        (("--context", "100", "--depths", "90"), "don't fit into the context of 100"),
        (("--context", "0"), "context is 0"),
        (("--phases",), "phases of a token can't be measured: the model runs on the CPU"),
        (("--device", "cuda"), "not available"),
    ],
)
def test_what_can_t_be_measured_is_told_in_one_line(
    arguments: tuple[str, ...], words: str, bench: Bench, config_file: Callable[..., Path]
) -> None:
    code, out, err = bench(config_file("llama"), "--random-weights", "--device", "cpu", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert words in err
    assert err.count("\n") == 1


def test_a_configuration_without_weights_is_refused_with_what_helps(
    bench: Bench, config_file: Callable[..., Path]
) -> None:
    code, _, err = bench(config_file("llama"), *QUICK)
    assert code == 2
    assert "--random-weights" in err


def test_random_weights_that_do_not_fit_are_refused_before_they_are_made(
    bench: Bench, config_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.cpu.memory.available_bytes", lambda: 300 * 2**20)
    path = config_file("llama", hidden_size=8192, intermediate_size=32768, head_dim=128)
    code, _, err = bench(path, "--random-weights", "--weights", "q4", *QUICK)
    assert code == 2
    assert "The weights need" in err


def test_a_cache_that_can_t_be_had_says_what_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = random_load("llama").backend
    pool = backend.new_pool(KvGeometry.of(backend.spec, "int8"), 3)
    conversation = Conversation(backend, pool)
    with pytest.raises(OutOfMemoryError, match=rf"there is room for {3 * PAGE} tokens beside the weights"):
        conversation.reserve(4 * PAGE)


@pytest.mark.parametrize("kv", ["int8", "native"])
def test_pages_of_random_numbers_take_the_place_of_tokens_that_would_take_long(
    kv: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.bench.measurements._LONGEST_FILLING", 0.0)
    backend = random_load("qwen3").backend
    plan = make_plan(context=512, depths=(100,), prompt=8, tokens=2, repeats=1)
    measurements = Measurements(backend, KvGeometry.of(backend.spec, kv), plan, say=lambda _: None)
    measurements.prefill()
    [figure] = measurements.decode()
    assert figure.filled_by == "random pages"
    conversation = measurements.conversation()
    conversation.fill_by_pages(100)
    assert conversation.length == 100
    assert 0 <= conversation.step(3) < backend.spec.vocab_size


def test_pages_go_back_to_their_pool() -> None:
    backend = random_load("qwen3").backend
    plan = make_plan(context=512, depths=(10, 70), prompt=8, tokens=2, repeats=2, conversations=3, reused=80)
    measurements = Measurements(backend, KvGeometry.of(backend.spec, "int8"), plan, say=lambda _: None)
    measurements.prefill()
    measurements.decode()
    assert measurements.interleaved()["conversations"] == 3
    assert measurements.reused()["turn"] == 32
    assert backend.memory_use().cache_pages == 0


def test_memory_is_read_at_some_rate_or_it_is_said_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = random_load("llama").backend
    rate = read_bandwidth(backend)
    assert rate is not None
    assert rate > 1e6
    monkeypatch.setattr("engine.bench.bandwidth.available_bytes", lambda: 0)
    assert read_bandwidth(backend) is None


def test_stages_add_up_to_the_load() -> None:
    heard: list[LoadProgress] = []
    times = LoadTimes(heard.append)
    for stage in (LoadStage.RUNTIME, LoadStage.OPEN, LoadStage.WEIGHTS, LoadStage.WEIGHTS, LoadStage.CHECK):
        times(LoadProgress(stage))
    times.finish()
    assert len(heard) == 5
    assert list(times.stages) == ["open", "runtime", "weights", "check"]
    assert sum(times.stages.values()) == pytest.approx(times.total)


def test_clocks_of_a_card_that_there_is_not_are_unknown() -> None:
    assert read_clocks("no card has this name") is None
