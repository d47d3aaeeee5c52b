"""Packed weights beside llama.cpp: the same GGUF file, the same threads, in turns in one run.

    python benchmarks/strips_vs_llama_cpp.py LLAMA_BENCH MODEL.gguf [--threads 2] [--rounds 5] [--new 64]

LLAMA_BENCH is a llama-bench program that was built for the CPU of this machine. Each round has it read 512
random tokens (its `pp512`) and decode 64 behind nothing (`tg64`), and has this engine do the same with 4-bit
and 8-bit weights made of the same file; what else the machine does meets all alike. llama-bench warms up
before each of its figures, and so do both of ours before the first round. Medians are compared; the best
round stands in brackets beside each, which is nearer to what a quiet machine gives.

Ours must decode at 0.8 of llama.cpp's speed or better with 4 bits, and read at 0.6; the program says whether
it does, and ends with 1 where it doesn't. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.calibration_text import calibration_text
from engine.checkpoints.model_folder import open_model
from engine.config import WeightFormat
from engine.runtime import default_threads, prepare_runtime
from engine.tokenizers.tokenizer import load_tokenizer

if TYPE_CHECKING:  # torch is imported as the program does it: by prepare_runtime
    from engine.cpu.backend import CpuBackend

PROMPT = 512  # tokens
FORMATS: tuple[WeightFormat, ...] = ("q4", "q8")
LEAST = {"decode": 0.8, "prefill": 0.6}  # of llama.cpp's speed, with 4 bits


@dataclass
class Speeds:
    """Tokens a second, one figure a round."""

    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)

    def medians(self) -> dict[str, float]:
        return {"prefill": statistics.median(self.prefill), "decode": statistics.median(self.decode)}

    def best(self) -> dict[str, float]:
        return {"prefill": max(self.prefill), "decode": max(self.decode)}


def load(path: Path, weights: WeightFormat) -> CpuBackend:
    from engine.cpu.backend import CpuBackend

    folder = open_model(path)
    try:
        ids = load_tokenizer(folder.tokenizer).encode(calibration_text(), parse_special=False)
        return CpuBackend.load(
            folder.spec, folder.parameters, folder.tensors, weights=weights, calibration_ids=ids
        )
    finally:
        folder.tensors.close()


def measure_ours(backend: CpuBackend, new: int, speeds: Speeds) -> None:
    prompt = random.Random(0).choices(range(backend.spec.vocab_size), k=PROMPT)
    began = time.perf_counter()
    following = int(backend.forward(prompt, backend.new_cache()).argmax())
    speeds.prefill.append(PROMPT / (time.perf_counter() - began))
    cache = backend.new_cache()
    began = time.perf_counter()
    for _ in range(new):
        following = int(backend.forward([following], cache).argmax())
    speeds.decode.append(new / (time.perf_counter() - began))


def measure_theirs(command: Sequence[str], speeds: Speeds) -> list[dict[str, Any]]:
    """What llama-bench reports of its two tests, whose speeds are added."""
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"{command[0]} ended with {run.returncode}:\n{run.stderr[-2000:]}")
    tests: list[dict[str, Any]] = json.loads(run.stdout)
    prefill, decode = tests
    speeds.prefill.append(prefill["avg_ts"])
    speeds.decode.append(decode["avg_ts"])
    return tests


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("llama_bench", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new", type=int, default=64, help="tokens decoded")
    options = parser.parse_args()
    prepare_runtime(options.threads)

    command = [str(options.llama_bench), "-m", str(options.model), "-p", str(PROMPT), "-n", str(options.new)]
    command += ["-t", str(options.threads), "-ngl", "0", "-r", "1", "-o", "json"]
    backends: dict[WeightFormat, CpuBackend] = {weights: load(options.model, weights) for weights in FORMATS}
    for backend in backends.values():
        measure_ours(backend, options.new, Speeds())  # warm up
    theirs = Speeds()
    ours: dict[WeightFormat, Speeds] = {weights: Speeds() for weights in FORMATS}
    tests: list[dict[str, Any]] = []
    for round_ in range(options.rounds):
        tests = measure_theirs(command, theirs)
        for weights, backend in backends.items():
            measure_ours(backend, options.new, ours[weights])
        decoded = theirs.decode[-1], ours["q4"].decode[-1]
        print(
            "round {}: {:.1f} tokens decoded a second by llama.cpp, {:.1f} with 4 bits".format(
                round_, *decoded
            )
        )

    medians = {"llama.cpp": theirs.medians()}
    best = {"llama.cpp": theirs.best()}
    ratios: dict[str, dict[str, float]] = {}
    for weights in FORMATS:
        found = medians[weights] = ours[weights].medians()
        best[weights] = ours[weights].best()
        ratios[weights] = {kind: found[kind] / medians["llama.cpp"][kind] for kind in LEAST}
    print(table(str(tests[0]["model_type"]), medians, best=best, ratios=ratios))
    enough = all(ratios["q4"][kind] >= least for kind, least in LEAST.items())
    print("4 bits are", "fast enough" if enough else "too slow", f"(at least {LEAST} of llama.cpp)")
    result = {
        "model": options.model.name,
        "llama_cpp_type": tests[0]["model_type"],
        "llama_cpp_build": tests[0]["build_commit"],
        "processor": tests[0]["cpu_info"],
        "threads": options.threads,
        "rounds": options.rounds,
        "tokens_per_second": medians,
        "best_tokens_per_second": best,
        "ratios": ratios,
        "enough": enough,
        "torch": version("torch"),
    }
    print(json.dumps(result))
    return 0 if enough else 1


def table(
    model_type: str,
    medians: dict[str, dict[str, float]],
    *,
    best: dict[str, dict[str, float]],
    ratios: dict[str, dict[str, float]],
) -> str:
    lines = ["| | decode | of llama.cpp | prefill of 512 | of llama.cpp |", "| --- | --- | --- | --- | --- |"]
    for name, speeds in medians.items():
        cells = [f"llama.cpp, {model_type}" if name == "llama.cpp" else name]
        for kind in ("decode", "prefill"):
            ratio = f"{ratios[name][kind]:.2f}" if name in ratios else ""
            cells += [f"{speeds[kind]:,.0f} ({best[name][kind]:,.0f}) tok/s", ratio]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
