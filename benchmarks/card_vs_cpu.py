"""A card beside the CPU of the same machine: the same weights, the same words. Needs an NVIDIA card.

    python benchmarks/card_vs_cpu.py MODEL [MODEL ...]
        [--weights q8 q4] [--activations int8x2] [--kv int8 native]

For each model, kind of weights and kind of cache, both compute with the same forms of them:

- difference: of all logits of a prompt of 390 tokens, ‖card - CPU‖ / ‖CPU‖. Where the vocabulary has them the
  prompt is ids of a text, else random ids;
- layers: the largest such difference of one layer's keys and values, of that prompt with a cache as float32,
  and the first layer whose is beyond 2e-3, if any;
- same bits: whether the card gives each row of that prompt the same bits when it comes in pieces of 1, 63,
  64, 65 and 130 tokens;
- greedy: how many of 64 tokens behind the first 70 are the same, up to the first that isn't. A key or value
  on the border between two codes of an int8 cache may fall to either side, and some tokens later a word may
  differ; a native cache, of float32, has no borders;
- nll: of the prompt, relative difference;
- prefill and decode: tokens a second on the card, of the prompt and of the 64 tokens. Medians of 3.

A table, and one JSON object on the last line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from engine.backend import Backend
from engine.calibration_text import calibration_text
from engine.checkpoints.model_folder import ModelFolder, open_model
from engine.code_cache import CodeCache
from engine.cpu.backend import CpuBackend
from engine.cuda.availability import NoCard, find_card, open_card
from engine.cuda.backend import CudaBackend
from engine.cuda.nvrtc_compiler import NvrtcCompiler
from engine.default_folders import code_folder
from engine.kv_geometry import PAGE
from engine.runtime import default_threads, prepare_runtime
from engine.tokenizers.tokenizer import load_tokenizer

PROMPT, BEGINNING, NEW = 390, 70, 64  # tokens
PIECES = (1, 63, 64, 65, 130)
LAYER_BOUND = 2e-3
SMALL_VOCABULARY = 2000  # of a model with random weights: to it a text is no text
REPEATS = 3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--weights", nargs="+", default=["q8", "q4"], choices=["native", "q8", "q4"])
    parser.add_argument("--activations", default="int8x2", choices=["float", "int8", "int8x2"])
    parser.add_argument("--kv", nargs="+", default=["int8"], choices=["native", "int8"])
    options = parser.parse_args()
    card = find_card()
    if isinstance(card, NoCard):
        raise SystemExit(f"There is no card: {card.reason}.")
    prepare_runtime(default_threads())
    print(f"{card.name}, driver {card.driver}\n")
    print("| model | weights | cache | difference | layers | same bits | greedy | nll | prefill | decode |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    results = []
    for path in options.models:
        for weights in options.weights:
            for result in compare(path, weights, options.activations, options.kv):
                results.append({"model": path.name, "weights": weights, **result})
                print(row_of(results[-1]), flush=True)
    print(json.dumps({"card": card.name, "driver": card.driver, "results": results}))


def compare(path: Path, weights: Any, activations: Any, caches: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """For each kind of cache."""
    folder = open_model(path)
    try:
        text = calibration_ids(folder) if folder.spec.vocab_size > SMALL_VOCABULARY else ()
        cpu = CpuBackend.load(
            folder.spec,
            folder.parameters,
            folder.tensors,
            weights=weights,
            activations=activations,
            calibration_ids=calibration_ids(folder) if weights == "q4" else (),
        )
    finally:
        folder.tensors.close()
    card = CudaBackend(
        cpu, open_card(), NvrtcCompiler(cache=CodeCache(code_folder())), activations=activations
    )
    try:
        ids = prompt_of(cpu.spec.vocab_size, text)
        layers = layers_apart(card, cpu, ids)
        for kv in caches:
            yield {"kv": kv, **layers, **measured(card, cpu, kv, ids)}
    finally:
        card.close()


def calibration_ids(folder: ModelFolder) -> list[int]:
    found = load_tokenizer(folder.tokenizer).encode(calibration_text(), parse_special=False)
    return [token for token in found if token < folder.spec.vocab_size]


def prompt_of(vocab_size: int, text: Sequence[int]) -> list[int]:
    if len(text) >= PROMPT:
        return list(text[:PROMPT])
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, vocab_size, (PROMPT,), generator=generator).tolist()


def measured(card: CudaBackend, cpu: CpuBackend, kv: Any, ids: Sequence[int]) -> dict[str, Any]:
    whole, reference = logits_of(card, ids, kv, PROMPT), logits_of(cpu, ids, kv, PROMPT)
    new, decode = greedy(card, ids[:BEGINNING], kv)
    expected, _ = greedy(cpu, ids[:BEGINNING], kv)
    nll, reference_nll = nll_of(whole, ids), nll_of(reference, ids)
    return {
        "difference": float((whole - reference).norm() / reference.norm()),
        "same_bits": all(torch.equal(logits_of(card, ids, kv, piece), whole) for piece in PIECES),
        "greedy": next((i for i in range(NEW) if new[i] != expected[i]), NEW),
        "nll": abs(nll - reference_nll) / reference_nll,
        "prefill_tokens_per_second": statistics.median(prefill_speed(card, ids, kv) for _ in range(REPEATS)),
        "decode_tokens_per_second": decode,
    }


def logits_of(backend: Backend, ids: Sequence[int], kv: Any, piece: int) -> torch.Tensor:
    with closing(backend.new_cache(kv)) as cache:
        parts = [
            backend.forward(ids[at : at + piece], cache, all_logits=True) for at in range(0, len(ids), piece)
        ]
    return torch.cat(parts)


def layers_apart(card: CudaBackend, cpu: CpuBackend, ids: Sequence[int]) -> dict[str, Any]:
    """Of each layer's keys and values: what goes into them is all that the layers before have made."""
    rows = []
    for backend in (card, cpu):
        with closing(backend.new_cache("native")) as cache:
            backend.forward(ids, cache)
            rows.append(rows_of_layers(cache))
    apart = [
        float((found - expected).norm() / expected.norm()) for found, expected in zip(*rows, strict=True)
    ]
    beyond = (layer for layer, difference in enumerate(apart) if not difference <= LAYER_BOUND)
    return {"layers": max(apart), "first_layer_apart": next(beyond, None)}


def rows_of_layers(cache: Any) -> list[torch.Tensor]:
    """float32, of each layer: keys and values of the cache's tokens."""
    geometry, length = cache.pool.geometry, cache.length
    pages = [cache.pool.read(page) for page in cache.sequence.pages]
    borders = [*geometry.layer_offsets, geometry.page_bytes]
    found = []
    for (heads, width), (start, end) in zip(geometry.layers, pairwise(borders), strict=True):
        parts = [page[start:end].view(torch.float32).view(2, heads, PAGE, width) for page in pages]
        found.append(torch.cat(parts, 2)[:, :, :length])
    return found


def nll_of(logits: torch.Tensor, ids: Sequence[int]) -> float:
    following = torch.tensor(ids[1:])
    chosen = logits[:-1].gather(1, following[:, None])[:, 0] - logits[:-1].logsumexp(-1)
    return -float(chosen.double().sum())


def greedy(backend: Backend, ids: Sequence[int], kv: Any) -> tuple[list[int], float]:
    """The tokens, and how many come a second."""
    speeds = []
    for _ in range(REPEATS):
        new: list[int] = []
        with closing(backend.new_cache(kv)) as cache:
            logits = backend.forward(ids, cache)
            began = time.perf_counter()
            for _ in range(NEW):
                new.append(int(logits.argmax()))
                logits = backend.forward(new[-1:], cache)
            speeds.append(NEW / (time.perf_counter() - began))
    return new, statistics.median(speeds)


def prefill_speed(backend: Backend, ids: Sequence[int], kv: Any) -> float:
    with closing(backend.new_cache(kv)) as cache:
        began = time.perf_counter()
        backend.forward(ids, cache)
        return len(ids) / (time.perf_counter() - began)


def row_of(result: dict[str, Any]) -> str:
    cells = [
        result["model"],
        result["weights"],
        result["kv"],
        f"{result['difference']:.1e}",
        f"{result['layers']:.1e}"
        + (f" (layer {result['first_layer_apart']})" if result["first_layer_apart"] is not None else ""),
        "yes" if result["same_bits"] else "NO",
        f"{result['greedy']} of {NEW}",
        f"{result['nll']:.1e}",
        f"{result['prefill_tokens_per_second']:,.0f} tok/s",
        f"{result['decode_tokens_per_second']:,.0f} tok/s",
    ]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
