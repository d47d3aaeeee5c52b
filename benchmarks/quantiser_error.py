"""What the quantiser's search gains over plain rounding, and what it costs.

    python benchmarks/quantiser_error.py [--rows 512] [--columns 4096] [--threads N] [--model MODEL [--only]]

For matrices of several kinds, code widths and group sizes: the relative error |W - strip| / |W| (Frobenius)
of plain rounding (the largest weight of a group at the largest code) and of the search, without importances
and, in the norm that they weight, with some that are spread as activations are (log-normal, a few inputs a
thousand times as important). Both sides have float16 scales. Then the speed of each kind of strip on a
bfloat16 matrix.

With --model, the relative squared error over all matrices of that model too: a folder, a GGUF file, or any
safetensors file; weights that never were quantised say most. There plain rounding to 4 bits comes in two
kinds, with the largest weight at 7 or -7 and at -8 (as GGUF's Q4_0 has it), and the error is weighted, too,
by importances of the same kind as above. --only leaves out the rest. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from engine.checkpoints.model_folder import open_model
from engine.runtime import default_threads, prepare_runtime
from engine.weights.quantise import quantise
from engine.weights.safetensors_source import SafetensorsSource
from engine.weights.strips import LARGEST_CODE, SMALLEST_CODE, Bits, Group, Strip, dequantise, fits, pack

if TYPE_CHECKING:  # torch is imported as the program does it: by prepare_runtime
    import torch

    from engine.weights.source import TensorSource

KINDS: tuple[tuple[Bits, Group], ...] = ((4, 32), (4, 256), (8, 32), (8, 256))
DISTRIBUTIONS = ("gaussian", "laplace", "student-t", "outlier-channels")
REPEATS = 3


def sample(distribution: str, rows: int, columns: int) -> torch.Tensor:
    """float32 (rows, columns), always the same."""
    import torch

    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(rows, columns, generator=generator)
    match distribution:
        case "gaussian":
            return weight
        case "laplace":
            uniform = torch.rand(rows, columns, generator=generator) - 0.5
            return -uniform.sign() * (1 - 2 * uniform.abs()).clamp_min(1e-7).log()
        case "student-t":  # of 4 degrees: a normal number over the root of a mean of squares
            squares = torch.randn(4, rows, columns, generator=generator).square().mean(0)
            return weight / squares.sqrt()
        case _:  # one input in a hundred has weights twenty times as large
            return weight * torch.where(torch.rand(columns, generator=generator) < 0.01, 20.0, 1.0)


def importances(columns: int) -> torch.Tensor:
    import torch

    return torch.exp(2 * torch.randn(columns, generator=torch.Generator().manual_seed(1)))


def plain(weight: torch.Tensor, bits: Bits, group: Group, *, at: int | None = None) -> Strip:
    """The largest weight of each group becomes the code `at`, or its negative where that is in range."""
    import torch

    at = LARGEST_CODE[bits] if at is None else at
    grouped = weight.view(len(weight), -1, group)
    peaks = grouped.gather(2, grouped.abs().argmax(2, keepdim=True))
    scales = ((peaks if at < -LARGEST_CODE[bits] else peaks.abs()) / at).half().float()
    scales = torch.where(scales == 0, 1.0, scales)
    smallest = SMALLEST_CODE[bits] if at < -LARGEST_CODE[bits] else -LARGEST_CODE[bits]
    codes = (grouped / scales).round().clamp(smallest, LARGEST_CODE[bits])
    codes = codes.to(torch.int8).view_as(weight)
    return Strip(bits, group, codes if bits == 8 else pack(codes), scales.squeeze(2).contiguous())


def squares(numbers: torch.Tensor, importance: torch.Tensor | None) -> float:
    """The sum of squares, weighted by column."""
    by_column = numbers.double().square().sum(0)
    return float(by_column.sum() if importance is None else (by_column * importance).sum())


def relative_error(strip: Strip, weight: torch.Tensor, importance: torch.Tensor | None = None) -> float:
    error = squares(weight - dequantise(strip), importance)
    return math.sqrt(error / squares(weight, importance))


def compare(rows: int, columns: int) -> Iterator[dict[str, object]]:
    importance = importances(columns)
    for distribution in DISTRIBUTIONS:
        weight = sample(distribution, rows, columns)
        for bits, group in KINDS:
            rounded = plain(weight, bits, group)
            searched = quantise(weight, bits=bits, group=group)
            weighted = quantise(weight, bits=bits, group=group, importance=importance)
            yield {
                "distribution": distribution,
                "bits": bits,
                "group": group,
                "plain": relative_error(rounded, weight),
                "search": relative_error(searched, weight),
                "weighted_plain": relative_error(rounded, weight, importance),
                "weighted_search_unaware": relative_error(searched, weight, importance),
                "weighted_search": relative_error(weighted, weight, importance),
            }


def speeds(columns: int) -> Iterator[dict[str, object]]:
    """Best of some runs on a matrix of 8 million bfloat16 weights; MB are those of the matrix as stored. The
    time of all cores together says more when other programs run, too.
    """
    weight = sample("gaussian", 2**23 // columns, columns).bfloat16()
    importance = importances(columns)
    for bits, group in KINDS:
        for weights in (None, importance):
            seconds, busy = [], []
            for _ in range(REPEATS):
                began, began_busy = time.perf_counter(), time.process_time()
                quantise(weight, bits=bits, group=group, importance=weights)
                seconds.append(time.perf_counter() - began)
                busy.append(time.process_time() - began_busy)
            yield {
                "bits": bits,
                "group": group,
                "weighted": weights is not None,
                "million_weights_per_second": weight.numel() / min(seconds) / 1e6,
                "megabytes_per_second": weight.nbytes / min(seconds) / 1e6,
                "cpu_nanoseconds_per_weight": min(busy) / weight.numel() * 1e9,
            }


def matrices(path: Path) -> Iterator[torch.Tensor]:
    """All matrices but embeddings, as float32."""
    if path.suffix == ".safetensors":
        source: TensorSource = SafetensorsSource([path])
    else:
        source = open_model(path).tensors
    try:
        for name, info in source.tensors().items():
            if len(info.shape) == 2 and "embed" not in name and min(info.shape) >= 32:
                yield source.read(name).float()
    finally:
        source.close()


def candidates(weight: torch.Tensor, bits: Bits, group: Group) -> dict[str, Strip]:
    found = {"plain": plain(weight, bits, group)}
    if bits == 4:
        found["plain_at_-8"] = plain(weight, bits, group, at=-8)
    importance = importances(weight.shape[1])
    found["search"] = quantise(weight, bits=bits, group=group)
    found["weighted_search"] = quantise(weight, bits=bits, group=group, importance=importance)
    return found


def model_errors(path: Path) -> Iterator[dict[str, object]]:
    """|W - strip|^2 / |W|^2 over all matrices of a model but the embeddings, taken as one, without and with
    importances.
    """
    sums: dict[tuple[Bits, Group], dict[str, float]] = {kind: defaultdict(float) for kind in KINDS}
    for weight in matrices(path):
        for kind, total in sums.items():
            if not fits(weight.shape[1], kind[1]):
                continue
            norms = {"": None, " by importance": importances(weight.shape[1])}
            for name, strip in candidates(weight, *kind).items():
                error = weight - dequantise(strip)
                for norm, importance in norms.items():
                    total[name + norm] += squares(error, importance)
            for norm, importance in norms.items():
                total["all" + norm] += squares(weight, importance)
            total["matrices"] += 1
    for (bits, group), total in sums.items():
        if count := int(total.pop("matrices", 0)):
            whole = {norm: total.pop("all" + norm) for norm in ("", " by importance")}
            yield {
                "bits": bits,
                "group": group,
                "matrices": count,
                **{
                    name: value / whole[" by importance" if name.endswith("importance") else ""]
                    for name, value in total.items()
                },
            }


def show(rows: Iterator[dict[str, object]]) -> list[dict[str, object]]:
    """Prints each row as it is measured."""
    shown = []
    for row in rows:
        print(
            "  ".join(
                f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
                for name, value in row.items()
            )
        )
        shown.append(row)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--columns", type=int, default=4096, help="a multiple of 256")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--model", type=Path)
    parser.add_argument("--only", action="store_true", help="nothing but the model")
    options = parser.parse_args()
    prepare_runtime(options.threads)
    result: dict[str, object] = {"threads": options.threads, "rows": options.rows, "columns": options.columns}
    if not options.only:
        result["errors"] = show(compare(options.rows, options.columns))
        result["speeds"] = show(speeds(options.columns))
    if options.model is not None:
        result["model"] = options.model.name
        result["model_errors"] = show(model_errors(options.model))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
