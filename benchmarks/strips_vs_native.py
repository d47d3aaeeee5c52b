"""What packing the weights costs and gains: native, 8-bit and 4-bit weights of one model, side by side.

    python benchmarks/strips_vs_native.py MODEL [--text FILE] [--plain] [--windows N] [--threads N]

Quality is the mean negative log-likelihood, in nats a token, of windows of 512 tokens of a text, each read by
itself. Without --text that is the first 60,000 characters of what Python's `pydoc_data.topics` holds, values
in the order of their keys, joined by blank lines. Speed is measured in turns, token by token, so what else
the machine does meets all alike: reading a prompt of 512 tokens, and greedy decoding behind it. Medians are
printed, and the best fifth beside them, which is nearer to what a quiet machine gives. `--plain` adds 8 and 4
bits by plain rounding, in quality alone. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from engine.calibration_text import calibration_text
from engine.checkpoints.model_folder import open_model
from engine.config import WeightFormat
from engine.runtime import default_threads, prepare_runtime
from engine.tokenizers.tokenizer import load_tokenizer

if TYPE_CHECKING:  # torch is imported as the program does it: by prepare_runtime
    import torch

    from engine.cpu.backend import CpuBackend
    from engine.weights.strips import Bits, Group, Strip

WINDOW = 512  # tokens
TEXT_CHARACTERS = 60_000
FORMATS: tuple[WeightFormat, ...] = ("native", "q8", "q4")


@dataclass
class Candidate:
    name: str
    backend: CpuBackend
    load_seconds: float
    prefill: list[float] = field(default_factory=list)  # seconds
    steps: list[float] = field(default_factory=list)

    def as_json(self, nll: float, native_nll: float) -> dict[str, object]:
        found: dict[str, object] = {
            "weight_bytes": self.backend.weight_bytes,
            "load_seconds": self.load_seconds,
            "nll": nll,
            "loss": nll - native_nll,
        }
        if self.steps:
            found |= {
                "prefill_tokens_per_second": WINDOW / quantile(self.prefill, 0.5),
                "prefill_tokens_per_second_best": WINDOW / quantile(self.prefill, 0.2),
                "decode_tokens_per_second": 1 / quantile(self.steps, 0.5),
                "decode_tokens_per_second_best": 1 / quantile(self.steps, 0.2),
            }
        return found


def quantile(values: Sequence[float], fraction: float) -> float:
    return sorted(values)[int(fraction * (len(values) - 1))]


def topics_text() -> str:
    from pydoc_data.topics import topics

    return "\n\n".join(topics[key] for key in sorted(topics))[:TEXT_CHARACTERS]


def load(path: Path, weights: WeightFormat, name: str = "") -> tuple[Candidate, list[int]]:
    """The model in that form, and the ids of the calibration text."""
    from engine.cpu.backend import CpuBackend

    folder = open_model(path)
    ids = load_tokenizer(folder.tokenizer).encode(calibration_text(), parse_special=False)
    began = time.perf_counter()
    try:
        backend = CpuBackend.load(
            folder.spec, folder.parameters, folder.tensors, weights=weights, calibration_ids=ids
        )
    finally:
        folder.tensors.close()
    return Candidate(name or weights, backend, time.perf_counter() - began), ids


@contextmanager
def plain_rounding() -> Iterator[None]:
    """As long as it is entered, the largest weight of each group decides its scale: what Q8_0 and Q4_0 do."""
    import torch

    from engine.cpu import strip_maker
    from engine.weights.strips import Strip, pack

    def rounded(weight: torch.Tensor, _statistics: object, *, bits: Bits, group: Group, **_: object) -> Strip:
        groups = weight.float().reshape(len(weight), -1, group)
        peak = groups.gather(2, groups.abs().argmax(2, keepdim=True))
        scales = peak.abs() / 127 if bits == 8 else peak / -8
        scales = torch.where(scales == 0, 1.0, scales).half().float()
        smallest, largest = (-127, 127) if bits == 8 else (-8, 7)
        codes = (groups / scales).round().clamp(smallest, largest).to(torch.int8).view(len(weight), -1)
        return Strip(bits, group, pack(codes) if bits == 4 else codes, scales.squeeze(2).contiguous())

    calibrated = strip_maker.calibrated_strip
    strip_maker.calibrated_strip = rounded
    try:
        yield
    finally:
        strip_maker.calibrated_strip = calibrated


def mean_nll(backend: CpuBackend, ids: Sequence[int], windows: int) -> tuple[float, int]:
    """Nats a token, and how many tokens were predicted."""
    import torch

    total, count = 0.0, 0
    for first in range(0, min(len(ids), windows * WINDOW) - 1, WINDOW):
        window = list(ids[first : first + WINDOW])
        logits = backend.forward(window, backend.new_cache(), all_logits=True)[:-1]
        found = logits.double().log_softmax(-1).gather(1, torch.tensor(window[1:])[:, None])
        total, count = total - float(found.sum()), count + len(window) - 1
    return total / count, count


def measure_speed(candidates: Sequence[Candidate], *, new: int, keep: bool) -> None:
    """One prompt and `new` tokens behind it from each, in turns."""
    vocab_size = candidates[0].backend.spec.vocab_size
    prompt = random.Random(0).choices(range(vocab_size), k=WINDOW)
    caches = [candidate.backend.new_cache() for candidate in candidates]
    following = [prompt for _ in candidates]
    for step in range(new + 1):
        for index, candidate in enumerate(candidates):
            began = time.perf_counter()
            chosen = int(candidate.backend.forward(following[index], caches[index]).argmax())
            seconds = time.perf_counter() - began
            following[index] = [chosen]
            if keep:
                (candidate.steps if step else candidate.prefill).append(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, help="a UTF-8 text")
    parser.add_argument("--windows", type=int, default=1000, help="of 512 tokens, at most")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--new", type=int, default=64, help="tokens decoded after a prompt")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--plain", action="store_true", help="plain rounding beside the search")
    options = parser.parse_args()
    prepare_runtime(options.threads)

    candidates = [load(options.model, weights)[0] for weights in FORMATS]
    folder = open_model(options.model)
    text = topics_text() if options.text is None else options.text.read_text(encoding="utf-8")
    ids = load_tokenizer(folder.tokenizer).encode(text, parse_special=False)
    folder.tensors.close()
    if options.repeats:
        measure_speed(candidates, new=4, keep=False)  # warm up
        for _ in range(options.repeats):
            measure_speed(candidates, new=options.new, keep=True)
    if options.plain:
        with plain_rounding():
            candidates += [load(options.model, weights, f"{weights} plain")[0] for weights in ("q8", "q4")]
    results: dict[str, dict[str, object]] = {}
    native, tokens = 0.0, 0
    for candidate in candidates:
        nll, tokens = mean_nll(candidate.backend, ids, options.windows)
        native = nll if candidate.name == "native" else native
        results[candidate.name] = candidate.as_json(nll, native)
        print(candidate.name, candidate.backend.description, results[candidate.name], flush=True)
    print(
        json.dumps(
            {
                "model": options.model.name,
                "threads": options.threads,
                "tokens": tokens,
                "torch": version("torch"),
                "results": results,
            }
        )
    )


if __name__ == "__main__":
    main()
