"""What warps do as one, copies on their way, and counters between blocks, on the emulated card."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from kernel_bench import KernelBench

from engine.cuda.driver import CardFaultError

TILES = """
struct Tiles { signed char a[16][32]; signed char b[8][32]; int32 c[16][8]; };
KERNEL(multiply, 32) {
    const Tiles& tiles = ((const Tiles*)args.input)[blockIdx.x];
    int32 (*out)[8] = (int32(*)[8])args.output + 16 * blockIdx.x;
    int row = lane_index() / 4, part = lane_index() % 4;
    uint32 a[4], b[2];
    int32 c[4];
    for (int i = 0; i < 4; ++i) {
        a[i] = *(const uint32*)&tiles.a[row + i % 2 * 8][4 * part + i / 2 * 16];
        c[i] = tiles.c[row + i / 2 * 8][2 * part + i % 2];
    }
    for (int i = 0; i < 2; ++i) b[i] = *(const uint32*)&tiles.b[row][4 * part + 16 * i];
    mma_s8(c, a, b);
    for (int i = 0; i < 4; ++i) out[row + i / 2 * 8][2 * part + i % 2] = c[i];
}
"""

TILE = np.dtype([("a", np.int8, (16, 32)), ("b", np.int8, (8, 32)), ("c", np.int32, (16, 8))])


@pytest.mark.parametrize("seed", [0, 3])
def test_products_of_tiles_are_exact_and_wrap(make_bench: Callable[..., KernelBench], seed: int) -> None:
    random = np.random.default_rng(1)
    tiles = np.zeros(5, TILE)
    tiles["a"], tiles["b"] = random.integers(-128, 128, (5, 16, 32)), random.integers(-128, 128, (5, 8, 32))
    tiles["c"] = random.integers(-(2**31), 2**31, (5, 16, 8))
    tiles["a"][0] = tiles["b"][0] = -128
    tiles["c"][0] = 2**31 - 1
    result = make_bench(order_seed=seed).run(
        TILES, "multiply", tiles, output=np.zeros((5, 16, 8), np.int32), grid=(5, 1, 1)
    )
    products = tiles["a"].astype(np.int64) @ tiles["b"].astype(np.int64).transpose(0, 2, 1)
    assert np.array_equal(result, (products + tiles["c"]).astype(np.int32))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("if (lane_index() < 31) mma_s8(c, a, b);", "mma_s8 needs all lanes, and 7fffffff have come"),
        ("if (lane_index() < 8)\nmma_s8(c, a, b);\nelse\nmma_s8(c, a, b);", "lane 8 at mma_s8, test.cu:9"),
        ("if (lane_index() < 8) mma_s8(c, a, b); else __syncwarp();", "and lane 8 at __syncwarp"),
    ],
)
def test_lanes_that_do_not_multiply_tiles_together_are_told(
    body: str, reason: str, bench: KernelBench
) -> None:
    text = (
        "KERNEL(wrong, 32) { uint32 a[4] = {}, b[2] = {}; int32 c[4] = {};\n"
        + body
        + "\n((int*)args.output)[threadIdx.x] = c[0]; }"
    )
    with pytest.raises(CardFaultError) as told:
        bench.run(text, "wrong", np.zeros(1, np.int32), output=np.zeros(32, np.int32))
    assert reason in str(told.value)


COPIES = """
KERNEL(stage, 64) {
    __shared__ uint4 kept[4][64];
    const uint4* from = (const uint4*)args.input;
    for (int i = 0; i < 4; ++i) {
        copy_async16(&kept[i][threadIdx.x], from + 64 * i + threadIdx.x);
        commit_copies();
    }
    WAIT
    __syncthreads();
    for (int i = 0; i < 4; ++i) ((uint4*)args.output)[64 * i + threadIdx.x] = kept[i][threadIdx.x ^ 17];
}
"""


@pytest.mark.parametrize("left", [0, 1, 3])
def test_copies_arrive_no_sooner_than_they_are_waited_for(left: int, bench: KernelBench) -> None:
    values = np.arange(1024, dtype=np.int32).reshape(4, 64, 4)
    found = bench.run(
        COPIES.replace("WAIT", f"wait_copies<{left}>();"),
        "stage",
        values,
        output=np.zeros_like(values),
        block=64,
    )
    expected = values[:, np.arange(64) ^ 17]
    assert np.array_equal(found[: 4 - left], expected[: 4 - left])
    assert (found[4 - left :] == -1).all()  # poison


def test_copies_that_no_group_holds_are_not_waited_for(bench: KernelBench) -> None:
    text = """
    KERNEL(forget, 32) {
        __shared__ uint4 kept[32];
        copy_async16(&kept[threadIdx.x], (const uint4*)args.input + threadIdx.x);
        wait_copies<0>();
        ((uint4*)args.output)[threadIdx.x] = kept[threadIdx.x];
    }
    """
    values = np.arange(128, dtype=np.int32)
    assert (bench.run(text, "forget", values, output=np.zeros_like(values)) == -1).all()


@pytest.mark.parametrize("address", ["(char*)kept + 8", "(char*)kept"])
def test_a_copy_at_an_odd_address_is_told(address: str, bench: KernelBench) -> None:
    text = f"""
    KERNEL(wrong, 32) {{
        __shared__ uint4 kept[32];
        copy_async16({address}, (const char*)args.input + 4);
    }}
    """
    with pytest.raises(CardFaultError, match="misaligned address"):
        bench.run(text, "wrong", np.zeros(64, np.int32), output=np.zeros(1, np.int32), block=1)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_the_last_block_to_arrive_sees_what_all_have_written(
    make_bench: Callable[..., KernelBench], seed: int
) -> None:
    text = """
    KERNEL(total, 64) {
        __shared__ unsigned arrived;
        int32* out = (int32*)args.output;
        unsigned* counter = (unsigned*)out;
        out[2 + 64 * blockIdx.x + threadIdx.x] = 1000 * blockIdx.x + threadIdx.x;
        wait_for_previous();
        let_next_start();
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) arrived = atomicInc(counter, gridDim.x - 1);
        __syncthreads();
        if (arrived != gridDim.x - 1) return;
        __threadfence();
        int32 sum = 0;
        for (int i = 0; i < gridDim.x; ++i) sum += out[2 + 64 * i + (threadIdx.x ^ 1)];
        atomicAdd(&out[1], sum);
    }
    """
    result = make_bench(order_seed=seed).run(
        text, "total", np.zeros(1), output=np.zeros(2 + 64 * 9, np.int32), grid=(9, 1, 1), block=64
    )
    assert result[0] == 0  # ready for the next launch
    assert result[1] == sum(1000 * block + thread for block in range(9) for thread in range(64))


def test_bytes_are_picked_from_two_words(bench: KernelBench) -> None:
    text = """
    KERNEL(pick, 32) {
        const uint32* words = (const uint32*)args.input + 3 * threadIdx.x;
        ((uint32*)args.output)[threadIdx.x] = __byte_perm(words[0], words[1], words[2]);
    }
    """
    random = np.random.default_rng(5)
    values = random.integers(0, 2**32, (32, 3), dtype=np.uint32)
    values[:, 2] &= 0x7777
    result = bench.run(text, "pick", values, output=np.zeros(32, np.uint32))
    both = values[:, :2].copy().view(np.uint8)
    which = (values[:, 2:] >> np.arange(0, 16, 4, dtype=np.uint32) & 7).astype(np.int64)
    assert np.array_equal(result, np.take_along_axis(both, which, 1).copy().view(np.uint32)[:, 0])
