"""The kernels of a model on one card, compiled and loaded before the first token. Nothing is added later."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.cuda.driver import CardDriver, Kernel, KernelCompiler

SOURCES = Path(__file__).parent / "kernels"
MAIN = "all.cu"

ACTIVATION_FORMS = ("float", "int8", "int8x2")

PRODUCTS = (
    *(f"product_codes{bits}_{form}" for bits in (4, 8) for form in ACTIVATION_FORMS),
    *(f"product_{dtype}" for dtype in ("float32", "float16", "bfloat16")),
)
EMBEDDINGS = [f"embed_{kind}" for kind in ("float32", "float16", "bfloat16", "codes8", "codes4")]
PRODUCT_NAMES = [f"{product}_{rows}" for product in PRODUCTS for rows in ("one", "many")]

# Threads of a block, as each kernel's text has it.
THREADS = {
    "rms_norm": 256,
    "swiglu": 256,
    "rotate_and_keep_codes": 32,
    "rotate_and_keep_numbers": 32,
    "attend_codes": 256,
    "attend_numbers": 256,
    "combine_splits": 256,
    **dict.fromkeys((f"attend_token_{width}" for width in (128, 512)), 256),
    **dict.fromkeys((f"attend_rows_{width}" for width in (128, 256, 512)), 256),
    "route": 32,
    "mix_experts": 256,
    "fill_memory": 256,
    "read_memory": 512,
    **dict.fromkeys(EMBEDDINGS, 256),
    "scan_logits": 256,
    "choose_token": 512,
    **dict.fromkeys(PRODUCT_NAMES, 256),
}

# They may begin while the launch before still runs: they wait for it themselves (`wait_for_previous`).
OVERLAPPING = frozenset(
    [
        *(f"rotate_and_keep_{form}" for form in ("codes", "numbers")),
        *(f"attend_token_{width}" for width in (128, 512)),
        *(f"attend_rows_{width}" for width in (128, 256, 512)),
    ]
)


def kernel_sources() -> dict[str, str]:
    """The text of every file, by name."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(SOURCES.glob("*.cu*"))}


class KernelSet:
    """Launches by name. `num_launches` counts them."""

    def __init__(self, driver: CardDriver, compiler: KernelCompiler) -> None:
        """Compiles everything, or finds it compiled. Raises CardFaultError."""
        code = compiler.compile(kernel_sources(), MAIN, card=driver.info)
        self._driver = driver
        self._kernels: dict[str, Kernel] = driver.load(code, list(THREADS))
        self.num_launches = 0
        self._overlaps = False

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
