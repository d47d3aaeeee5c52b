"""Microseconds a token by clocks around many of them, to compare two states of the kernels within a minute.

    PYTHONPATH=. python benchmarks/token_means.py CONFIG... --weights q4 --depths 16 8192 --prompt 2048

The weights are random, in the shapes of each configuration. What is told is the best of `--rounds` means of
`--tokens` tokens, and the last token, which stays the same while the bits do; of prompts likewise. `python -m
engine bench` tells more, and takes longer.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from engine.bench.configuration import read_configuration
from engine.bench.measurements import Measurements
from engine.bench.plan import make_plan
from engine.bench.random_model import load_random
from engine.config import EngineConfig
from engine.kv_geometry import KvGeometry


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("configs", type=Path, nargs="+")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--weights", default="q4", choices=["q8", "q4"])
    parser.add_argument("--activations", default="int8x2", choices=["float", "int8", "int8x2"])
    parser.add_argument("--context", type=int, default=16384)
    parser.add_argument("--depths", type=int, nargs="*", default=[16, 8192])
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=0, help="tokens; 0: none")
    given = parser.parse_args()
    for path in given.configs:
        print(
            f"{path.stem} {given.weights} {given.activations}: {' | '.join(measured(path, given))}",
            flush=True,
        )


def measured(path: Path, given: argparse.Namespace) -> list[str]:
    config = EngineConfig(
        device=given.device, weights=given.weights, activations=given.activations, context=given.context
    )
    cancel = threading.Event()
    load = load_random(read_configuration(path), config, on_progress=lambda _: None, cancel=cancel)
    try:
        plan = make_plan(
            context=given.context,
            depths=None,
            prompt=max(given.prompt, 1),
            tokens=given.tokens,
            repeats=given.rounds,
            conversations=0,
            reused=0,
            turn=1,
            phases=False,
        )
        geometry = KvGeometry.of(load.backend.spec, load.config.kv)
        measurements = Measurements(load.backend, geometry, plan, say=lambda _: None, cancel=cancel)
        words = [decode(measurements, depth, given) for depth in given.depths]
        if given.prompt:
            words.append(prefill(measurements, given))
        return words
    finally:
        load.backend.close()


def decode(measurements: Measurements, depth: int, given: argparse.Namespace) -> str:
    with closing(measurements.conversation()) as conversation:
        conversation.fill_by_pages(depth)
        conversation.reserve(depth + given.tokens + 1)
        [first] = conversation.random_ids(1)
        last = 0

        def once() -> None:
            nonlocal last
            conversation.rewind(depth)
            last = conversation.write(first, given.tokens)

        each = best(once, given.rounds) / given.tokens
    return f"depth {depth:,}: {1e6 * each:,.1f} us a token, {1 / each:,.1f} tok/s, last token {last}"


def prefill(measurements: Measurements, given: argparse.Namespace) -> str:
    with closing(measurements.conversation()) as conversation:
        ids = conversation.random_ids(given.prompt)

        def once() -> None:
            conversation.rewind(0)
            conversation.read(ids)

        return f"prompt of {given.prompt:,}: {given.prompt / best(once, given.rounds):,.0f} tok/s"


def best(once: Callable[[], None], rounds: int) -> float:
    """Seconds."""
    seconds = []
    for _ in range(rounds + 1):  # the first is for what happens only once
        start = time.perf_counter()
        once()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


if __name__ == "__main__":
    main()
