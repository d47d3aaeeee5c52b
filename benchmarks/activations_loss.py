"""What the rounding of activations costs (`--activations`): mean negative log-likelihood, in nats a token, of
the text and windows of `strips_vs_native.py`, computed on the CPU, which rounds as a card does.

    python benchmarks/activations_loss.py MODEL [--windows N] [--threads N]

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import get_args

from strips_vs_native import mean_nll, topics_text

from engine.calibration_text import calibration_text
from engine.checkpoints.model_folder import open_model
from engine.config import Activations, WeightFormat
from engine.runtime import default_threads, prepare_runtime
from engine.tokenizers.tokenizer import load_tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--windows", type=int, default=1000, help="of 512 tokens, at most")
    parser.add_argument("--threads", type=int, default=default_threads())
    options = parser.parse_args()
    prepare_runtime(options.threads)
    formats: tuple[WeightFormat, ...] = ("q8", "q4")
    results: dict[str, dict[str, float]] = {}
    print("| | nats a token | more than with float |")
    print("| --- | --- | --- |")
    for weights in formats:
        found: dict[str, float] = {}
        for activations in get_args(Activations):
            found[activations] = nll(options.model, weights, activations, options.windows)
            more = found[activations] / found["float"] - 1
            print(f"| {weights}, {activations} | {found[activations]:.5f} | {more:+.4%} |", flush=True)
        results[weights] = found
    print(json.dumps({"model": options.model.name, "results": results}))


def nll(path: Path, weights: WeightFormat, activations: Activations, windows: int) -> float:
    from engine.cpu.backend import CpuBackend

    folder = open_model(path)
    try:
        tokenizer = load_tokenizer(folder.tokenizer)
        backend = CpuBackend.load(
            folder.spec,
            folder.parameters,
            folder.tensors,
            weights=weights,
            activations=activations,
            calibration_ids=tokenizer.encode(calibration_text(), parse_special=False),
        )
    finally:
        folder.tensors.close()
    return mean_nll(backend, tokenizer.encode(topics_text(), parse_special=False), windows)[0]


if __name__ == "__main__":
    main()
