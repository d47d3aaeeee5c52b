"""Packed weights as an older x86 processor would run them: the same machine, held to fewer instructions.

    python benchmarks/older_processors.py MODEL [--threads 2] [--repeats 5] [--new 64]

Each level of instructions is a process of its own, with all that computes held to it: the kernels are
compiled for LLVM's processor of that name, torch's loops and oneDNN's products by their own variables.
Such a run can't have the clock, the caches or the memory of an older processor. Reading a prompt of 512
tokens and decoding behind nothing are timed; medians. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROMPT = 512  # tokens
LEVELS: dict[str, dict[str, str]] = {
    "native": {},
    "x86-64-v3": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "x86-64": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
}
NAMES = {"native": "this processor", "x86-64-v3": "AVX2", "x86-64": "SSE2 (oneDNN SSE4.1)"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--new", type=int, default=64, help="tokens decoded")
    parser.add_argument("--level", choices=LEVELS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.level is not None:
        print(json.dumps(measure(options)))
        return
    results: dict[str, Any] = {}
    print("| | q4 decode | q4 prefill | q8 decode | q8 prefill |\n| --- | --- | --- | --- | --- |")
    for level, variables in LEVELS.items():
        command = [sys.executable, *sys.argv, "--level", level]
        run = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
        if run.returncode:
            raise SystemExit(run.stderr)
        found = results[level] = json.loads(run.stdout)
        speeds = [found[weights][kind] for weights in ("q4", "q8") for kind in ("decode", "prefill")]
        print(
            "| " + " | ".join([NAMES[level], *(f"{speed:,.0f} tok/s" for speed in speeds)]) + " |", flush=True
        )
    print(json.dumps({"model": options.model.name, "threads": options.threads, "tokens_per_second": results}))


def measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Tokens a second of this process, which is held to `options.level`."""
    from engine.runtime import prepare_runtime

    prepare_runtime(options.threads)
    from engine.cpu import compiler

    if compiler.compiled("") is None:  # initialises LLVM
        raise SystemExit("LLVM can't be had here")
    if options.level != "native":
        # Before any kernels are compiled: they look it up when they are imported.
        vars(compiler)["compiled"] = lambda text: compiler.compiled_for(text, options.level)
    from engine.cpu.backend import CpuBackend

    return {weights: speeds(options, weights, CpuBackend) for weights in ("q4", "q8")}


def speeds(options: argparse.Namespace, weights: Any, backend_type: Any) -> dict[str, float]:
    from engine.checkpoints.model_folder import open_model

    folder = open_model(options.model)
    backend = backend_type.load(folder.spec, folder.parameters, folder.tensors, weights=weights)
    folder.tensors.close()
    prompt = random.Random(0).choices(range(folder.spec.vocab_size), k=PROMPT)
    prefill, decode = [], []
    for _ in range(options.repeats + 1):
        began = time.perf_counter()
        following = int(backend.forward(prompt, backend.new_cache()).argmax())
        prefill.append(PROMPT / (time.perf_counter() - began))
        cache = backend.new_cache()
        began = time.perf_counter()
        for _ in range(options.new):
            following = int(backend.forward([following], cache).argmax())
        decode.append(options.new / (time.perf_counter() - began))
    return {"prefill": statistics.median(prefill[1:]), "decode": statistics.median(decode[1:])}


if __name__ == "__main__":
    main()
