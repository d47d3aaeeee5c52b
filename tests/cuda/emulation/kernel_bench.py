"""Kernels that are written in a test, run on arrays."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
from emulated_card import EmulatedCard, EmulatedCompiler

import engine.cuda
from engine.cuda.driver import Address, as_bytes

KERNELS = Path(engine.cuda.__file__).parent / "kernels"


class Pointers(ctypes.Structure):
    """What every kernel here takes."""

    _fields_ = (("input", ctypes.c_uint64), ("output", ctypes.c_uint64), ("count", ctypes.c_int64))


PRELUDE = """
#include "card.cuh"
struct Pointers { const void* input; void* output; int64 count; };
#define KERNEL(name, threads) KESTREL_KERNEL(name, threads, Pointers)
"""

SUMS = """
KERNEL(block_sums, 256) {
    __shared__ float parts[8];
    int64 index = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    float sum = warp_sum(((const float*)args.input)[index]);
    if (lane_index() == 0) parts[warp_index()] = sum;
    __syncthreads();
    if (threadIdx.x >= 8) return;
    sum = parts[threadIdx.x];
    for (int distance = 4; distance > 0; distance /= 2) sum += __shfl_down_sync(0xff, sum, distance);
    if (threadIdx.x == 0) ((float*)args.output)[blockIdx.x] = sum;
}
"""


def sources_of(text: str) -> dict[str, str]:
    """The files of a program whose main one, test.cu, has this text from its fifth line on."""
    return {"card.cuh": (KERNELS / "card.cuh").read_text(encoding="utf-8"), "test.cu": PRELUDE + text}


class KernelBench:
    """Runs kernels, written in a test, on arrays."""

    def __init__(self, card: EmulatedCard, compiler: EmulatedCompiler) -> None:
        self.card = card
        self._compiler = compiler

    def compile(self, text: str) -> bytes:
        return self._compiler.compile(sources_of(text), "test.cu", card=self.card.info)

    def place(self, values: np.ndarray) -> Address:
        address = self.card.allocate(values.nbytes)
        self.card.upload(address, as_bytes(values))
        return address

    def run(
        self,
        text: str,
        name: str,
        values: np.ndarray,
        *,
        output: np.ndarray,
        grid: tuple[int, int, int] = (1, 1, 1),
        block: int = 32,
        shared_bytes: int = 0,
    ) -> np.ndarray:
        """`output`, filled by the kernel. It begins as what it is here."""
        kernel = self.card.load(self.compile(text), [name])[name]
        source, target = self.place(values), self.place(output)
        arguments = Pointers(source, target, values.size)
        try:
            self.card.launch(kernel, arguments, grid=grid, block=block, shared_bytes=shared_bytes)
            result = np.empty_like(output)
            self.card.download(as_bytes(result), target)
            return result
        finally:
            if not self.card.failed:
                self.card.free(source)
                self.card.free(target)


def numbers(count: int, *, seed: int = 7) -> np.ndarray:
    """Of very different sizes: a sum of them has other bits in another order."""
    random = np.random.default_rng(seed)
    return (random.standard_normal(count) * 10.0 ** random.integers(-4, 5, count)).astype(np.float32)
