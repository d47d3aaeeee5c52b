"""The kernels of a model on one card, compiled and loaded before the first token. Nothing is added later."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.cuda.driver import CardDriver, CardInfo, Kernel, KernelCompiler
from engine.cuda.many_rows import KERNELS as MANY_ROWS
from engine.cuda.row_forms import INTEGER_FORMS

SOURCES = Path(__file__).parent / "kernels"

EMBEDDINGS = [f"embed_{kind}" for kind in ("float32", "float16", "bfloat16", "codes8", "codes4")]

_NUMBER_PRODUCTS = ("float32", "float16", "bfloat16", "codes8_float", "codes4_float")
_FEW_PRODUCTS = [
    f"product_codes{bits}_{form}_{count}{sink}"
    for bits in (4, 8)
    for form in INTEGER_FORMS
    for count, sinks in (
        (
            "one",
            ("", "_wide", "_choosing", "_gated", "_gated_wide", "_gated_values", "_gated_values_choosing"),
        ),
        ("few", ("", "_gated", "_gated_values")),
    )
    for sink in sinks
]

# Threads of a block, as each kernel's text has it.
THREADS = {
    "rms_norm": 256,
    "swiglu": 256,
    **dict.fromkeys(
        (f"rotate_and_keep_{rows}{width}" for rows in ("codes", "numbers") for width in ("", "_wide")), 256
    ),
    "attend_codes": 256,
    "attend_numbers": 256,
    "combine_splits": 256,
    **dict.fromkeys((f"attend_token_{width}" for width in (128, 512)), 256),
    **dict.fromkeys((f"attend_rows_{width}" for width in (128, 256, 512)), 256),
    **dict.fromkeys((f"attend_short_{width}" for width in (128, 256, 512)), 256),
    "join_short": 128,
    "route": 256,
    **dict.fromkeys((f"router_{kind}" for kind in ("float32", "float16", "bfloat16")), 256),
    "mix_experts": 256,
    "fill_memory": 256,
    "read_memory": 512,
    **dict.fromkeys(EMBEDDINGS, 256),
    "scan_logits": 256,
    "choose_token": 512,
    "relay_codes": 256,
    "relay_scales": 256,
    **{f"product_{kind}_{rows}": 256 for kind in _NUMBER_PRODUCTS for rows in ("one", "many")},
    **dict.fromkeys(_FEW_PRODUCTS, 512),
    **MANY_ROWS,
}

# They don't wait by themselves (`wait_for_previous`) for what was launched before. Others may begin early.
_WAITED_FOR = {
    "attend_codes",
    "attend_numbers",
    "combine_splits",
    "fill_memory",
    "read_memory",
    "relay_codes",
    "relay_scales",
}
OVERLAPPING = frozenset(THREADS) - _WAITED_FOR


_BY_BITS = ("product_one.cu", "product_few.cu", "product_many.cu", "product_short.cu")
_OTHERS = (
    "attend_rows.cu",
    "attend_short.cu",
    "attend_token.cu",
    "attention.cu",
    "embed.cu",
    "experts.cu",
    "grouping.cu",
    "norm.cu",
    "product.cu",
    "quantise.cu",
    "random.cu",
    "relay.cu",
    "rotary.cu",
    "router.cu",
    "sample.cu",
)


def kernel_sources() -> dict[str, str]:
    """The text of every file, by name."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(SOURCES.glob("*.cu*"))}


@dataclass(frozen=True)
class Unit:
    """What is compiled as one. text: of the file that includes others. names: of its kernels."""

    text: str
    names: tuple[str, ...]


def units() -> list[Unit]:
    """Of which all kernels are; none takes much longer than the others."""
    found = []
    for bits in (4, 8):
        of_bits = [name for name in THREADS if name.startswith(f"product_codes{bits}_int")]
        few = [name for name in of_bits if name in _FEW_PRODUCTS]
        many = [name for name in of_bits if name not in _FEW_PRODUCTS]
        found += [_unit(_BY_BITS[:2], few, bits), _unit(_BY_BITS[2:], many, bits)]
    taken = {name for unit in found for name in unit.names}
    return [*found, _unit(_OTHERS, [name for name in THREADS if name not in taken], 0)]


def _unit(files: Sequence[str], names: Sequence[str], bits: int) -> Unit:
    lines = [f"#define ONLY_BITS {bits}", *(f'#include "{file}"' for file in files)]
    return Unit("\n".join([*lines, ""]), tuple(names))


def compiled_units(compiler: KernelCompiler, card: CardInfo) -> list[bytes]:
    """Code of each of `units`, made beside each other. Raises CardFaultError."""
    sources, main = kernel_sources(), "unit.cu"
    with ThreadPoolExecutor() as pool:
        return list(
            pool.map(lambda unit: compiler.compile({**sources, main: unit.text}, main, card=card), units())
        )


class KernelSet:
    """Launches by name. `num_launches` counts them."""

    def __init__(self, driver: CardDriver, compiler: KernelCompiler) -> None:
        """Compiles everything, or finds it compiled. Raises CardFaultError."""
        self._driver = driver
        self._kernels: dict[str, Kernel] = {}
        for unit, code in zip(units(), compiled_units(compiler, driver.info), strict=True):
            self._kernels |= driver.load(code, list(unit.names))
        self.num_launches = 0
        self._overlaps = False

    @property
    def card(self) -> CardInfo:
        return self._driver.info

    def launch(
        self,
        name: str,
        arguments: ctypes.Structure,
        *,
        grid: tuple[int, int, int],
        shared_bytes: int = 0,
    ) -> None:
        """shared_bytes: of shared memory, beside what the kernel's text names."""
        self._driver.launch(
            self._kernels[name],
            arguments,
            grid=grid,
            block=THREADS[name],
            shared_bytes=shared_bytes,
            overlaps=self._overlaps and name in OVERLAPPING,
        )
        self.num_launches += 1

    @contextmanager
    def overlapping(self, allowed: bool = True) -> Iterator[None]:
        """Where it is allowed, kernels of OVERLAPPING may meanwhile begin before the one launched before them
        has ended. What they read without waiting for it (weights, older rows of pages) must be there before
        the first of these launches.
        """
        before, self._overlaps = self._overlaps, allowed
        try:
            yield
        finally:
            self._overlaps = before
