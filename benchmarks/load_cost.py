"""What a load takes: seconds and memory, for the first load of a model and for those after it. Linux only.

    python benchmarks/load_cost.py MODEL [--weights q8 q4] [--repeats 5] [--threads 2]

Every load is a process of its own, and packed weights are kept in a cache folder of the benchmark's own, so
the first load has to make them and the others find them. Files are in the system's cache from the first load
on. Three clocks:

- load: from the first call (open the model) to an engine that has passed its self-check. Bringing torch into
  the process is a part of it, as it is for the first model that the program loads;
- first token: until a prompt of five words has been read and one token been chosen behind it;
- process: from before the interpreter is started to behind its end.

Memory is the peak of the resident set (VmHWM) less what the process has with torch, the compiler of kernels
and the model's tokenizer in it and no weights. It stands beside the bound that the design sets: the weights
as they are held, and the largest tensor as float32. Medians of all loads but the first; of memory the
largest. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

_MEASURE = "--measure"  # for the processes that this program starts
_PROMPT = "The capital of France is"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--weights", nargs="+", default=["q8", "q4"], choices=["native", "q8", "q4"])
    parser.add_argument("--repeats", type=int, default=5, help="loads after the first")
    parser.add_argument("--threads", type=int)
    parser.add_argument(_MEASURE, choices=["load", "bare"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure == "bare":
        print(json.dumps(measure_bare(options.model)))
        return
    if options.measure == "load":
        print(json.dumps(measure_load(options.model, options.weights[0], options.threads)))
        return
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as cache:
        bare = measured("bare", options, "native", cache)["peak_bytes"]
        for weights in options.weights:
            loads = [measured("load", options, weights, cache) for _ in range(options.repeats + 1)]
            for load in loads:
                load["peak_bytes"] -= bare
            results[weights] = {"first": loads[0], "later": summary(loads[1:])}
            print(f"{weights} first:", results[weights]["first"])
            print(f"{weights} later:", results[weights]["later"], flush=True)
    print(table(results))
    print(
        json.dumps(
            {
                "model": options.model.name,
                "repeats": options.repeats,
                "bare_bytes": bare,
                "torch": version("torch"),
                "results": results,
            }
        )
    )


def measured(what: str, options: argparse.Namespace, weights: str, cache: str) -> dict[str, float]:
    """What a process of its own has found, and how long it took."""
    command = [sys.executable, __file__, str(options.model), "--weights", weights, _MEASURE, what]
    if options.threads is not None:
        command += ["--threads", str(options.threads)]
    environment = {**os.environ, "XDG_CACHE_HOME": cache}
    began = time.perf_counter()
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if run.returncode:
        raise SystemExit(run.stderr)
    found: dict[str, float] = json.loads(run.stdout)
    return {**found, "process_seconds": seconds}


def measure_load(path: Path, weights: Any, threads: int | None) -> dict[str, float]:
    """One load in this process, which has not done anything else."""
    from engine.checkpoints.model_folder import open_model
    from engine.config import EngineConfig
    from engine.engine import Engine
    from engine.generation import GenerationRequest, SamplingParams

    began = time.perf_counter()
    folder = open_model(path)
    largest = max(4 * info.num_elements for info in folder.tensors.tensors().values())
    engine = Engine.load(folder, EngineConfig(weights=weights, threads=threads))
    loaded = time.perf_counter()
    request = GenerationRequest(
        tuple(engine.encode(_PROMPT)), SamplingParams(temperature=0), max_new_tokens=1
    )
    for _ in engine.generate(request):
        pass
    answered = time.perf_counter()
    return {
        "load_seconds": loaded - began,
        "first_token_seconds": answered - began,
        "peak_bytes": peak_bytes(),
        "weight_bytes": engine.summary.weight_bytes,
        "largest_tensor_bytes": largest,
    }


def peak_bytes() -> int:
    """The most that was resident of this process since it began."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def measure_bare(path: Path) -> dict[str, float]:
    """What this process takes with torch, kernels and the model's tokenizer, and no weights."""
    from engine.checkpoints.model_folder import open_model
    from engine.runtime import prepare_runtime
    from engine.tokenizers.tokenizer import load_tokenizer

    folder = open_model(path)
    tokenizer = load_tokenizer(folder.tokenizer)
    prepare_runtime(1)
    from engine.cpu.backend import CpuBackend
    from engine.cpu.strip_kernels import strip_kernels

    strip_kernels()
    del tokenizer, CpuBackend
    return {"peak_bytes": peak_bytes()}


def summary(loads: Sequence[dict[str, float]]) -> dict[str, float]:
    largest = {"peak_bytes", "weight_bytes", "largest_tensor_bytes"}
    return {
        name: (max if name in largest else statistics.median)([load[name] for load in loads])
        for name in loads[0]
    }


def table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    lines = [
        "| | load | first token | process | peak memory | weights + largest tensor |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for weights, found in results.items():
        for which, load in found.items():
            seconds = [f"{load[f'{clock}_seconds']:.2f} s" for clock in ("load", "first_token", "process")]
            bound = (load["weight_bytes"], load["largest_tensor_bytes"])
            sizes = [
                f"{load['peak_bytes'] / 1e6:,.0f} MB",
                " + ".join(f"{size / 1e6:,.0f}" for size in bound),
            ]
            lines.append("| " + " | ".join([f"{weights}, {which}", *seconds, *sizes]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
