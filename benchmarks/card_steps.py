"""A prompt and a few tokens of one model on a card, for a tool that looks for faults. Needs an NVIDIA card.

    export PYTHONPATH=.
    compute-sanitizer --tool memcheck python benchmarks/card_steps.py MODEL
    compute-sanitizer --tool racecheck python benchmarks/card_steps.py MODEL --prompt 33 --tokens 3

The prompt comes whole and in pieces of 17 and 33 tokens, a short one also in single tokens; its logits have
to have the same bits. Then `--tokens` tokens are written.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from card_vs_cpu import logits_of

from engine.checkpoints.model_folder import open_model
from engine.code_cache import CodeCache
from engine.cpu.backend import CpuBackend
from engine.cuda.availability import NoCard, find_card, open_card
from engine.cuda.backend import CudaBackend
from engine.cuda.nvrtc_compiler import NvrtcCompiler
from engine.default_folders import code_folder
from engine.runtime import prepare_runtime

PIECES = (17, 33)
LONGEST_IN_SINGLES = 40  # tokens


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--weights", default="q4", choices=["native", "q8", "q4"])
    parser.add_argument("--activations", default="int8x2", choices=["float", "int8", "int8x2"])
    parser.add_argument("--kv", default="int8", choices=["native", "int8"])
    parser.add_argument("--prompt", type=int, default=70)
    parser.add_argument("--tokens", type=int, default=6)
    options = parser.parse_args()
    card = find_card()
    if isinstance(card, NoCard):
        raise SystemExit(f"There is no card: {card.reason}.")
    prepare_runtime(2)  # threads: several such runs go on at a time
    compiler = NvrtcCompiler(cache=CodeCache(code_folder()))
    folder = open_model(options.model)
    try:
        cpu = CpuBackend.load(
            folder.spec,
            folder.parameters,
            folder.tensors,
            weights=options.weights,
            activations=options.activations,
        )
    finally:
        folder.tensors.close()
    backend = CudaBackend(cpu, open_card(), compiler, activations=options.activations)
    try:
        take_steps(backend, options.kv, options.prompt, options.tokens)
    finally:
        backend.close()
    print("done")


def take_steps(backend: CudaBackend, kv: Any, prompt: int, tokens: int) -> None:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, backend.spec.vocab_size, (prompt,), generator=generator).tolist()
    whole = logits_of(backend, ids, kv, prompt)
    for piece in (1, *PIECES) if prompt <= LONGEST_IN_SINGLES else PIECES:
        if not torch.equal(logits_of(backend, ids, kv, piece), whole):
            raise SystemExit(f"In pieces of {piece} the prompt has other bits.")
    with closing(backend.new_cache(kv)) as cache:
        logits = backend.forward(ids, cache)
        for _ in range(tokens):
            logits = backend.forward([int(logits.argmax())], cache)


if __name__ == "__main__":
    main()
