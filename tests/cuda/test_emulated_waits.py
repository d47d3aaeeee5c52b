"""Blocks that wait for other blocks of their launch, on the emulated card."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from kernel_bench import KernelBench

from engine.cuda.driver import CardFaultError

MakeBench = Callable[..., KernelBench]

# Blocks count their arrivals in output[0]; the last args.count of them wait for the very last one. Then their
# threads add up what the threads of all blocks have left; what they keep in shared memory is still their own.
JOIN = """
KERNEL(join, 64) {
    __shared__ int own_numbers[64];
    __shared__ uint32 arrived;
    uint32* arrivals = (uint32*)args.output;
    int* left = (int*)args.output + 1;
    int* sums = left + 64 * gridDim.x + 64 * blockIdx.x;
    int* own = (int*)dynamic_shared();
    int number = 64 * blockIdx.x + threadIdx.x;
    own_numbers[threadIdx.x] = own[63 - threadIdx.x] = left[number] = number;
    __syncthreads();
    if (threadIdx.x == 0) {
        arrived = count_arrival(arrivals, gridDim.x - 1);
        if (arrived + args.count >= gridDim.x && arrived + 1 < gridDim.x) wait_until_all(arrivals);
    }
    __syncthreads();
    if (arrived + args.count < gridDim.x) return;
    int sum = own_numbers[threadIdx.x] - own[63 - threadIdx.x];
    for (int i = 0; i < gridDim.x; ++i) sum += left[64 * i + threadIdx.x];
    sums[threadIdx.x] = sum;
}
"""


def run_join(bench: KernelBench, *, blocks: int, joining: int) -> np.ndarray:
    """(blocks, 64): what each block has found."""
    output = np.full(1 + 128 * blocks, -1, np.int32)
    output[0] = 0
    result = bench.run(
        JOIN,
        "join",
        np.zeros(joining, np.int32),
        output=output,
        grid=(blocks, 1, 1),
        block=64,
        shared_bytes=256,
    )
    assert result[0] == 0
    return result[1 + 64 * blocks :].reshape(blocks, 64)


@pytest.mark.parametrize(("blocks", "joining"), [(1, 1), (2, 2), (5, 3), (30, 8), (30, 30)])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_blocks_wait_for_the_last_one(seed: int, blocks: int, joining: int, make_bench: MakeBench) -> None:
    found = run_join(make_bench(order_seed=seed, multiprocessors=64), blocks=blocks, joining=joining)
    expected = np.arange(64 * blocks).reshape(blocks, 64).sum(axis=0)
    joined = [row for row in found if row[0] != -1]
    assert len(joined) == joining
    assert all(np.array_equal(row, expected) for row in joined)


@pytest.mark.parametrize("seed", range(20))
def test_more_blocks_than_a_card_has_room_for_may_not_wait(seed: int, make_bench: MakeBench) -> None:
    """Whichever of them the processor's cores have begun."""
    small = make_bench(multiprocessors=8, order_seed=seed)
    assert (run_join(small, blocks=20, joining=8) != -1).any()
    assert (run_join(small, blocks=8, joining=8) != -1).all()
    with pytest.raises(
        CardFaultError, match="8 blocks wait for others, and a card of 8 processors may have no"
    ):
        run_join(small, blocks=20, joining=9)


def fault(bench: KernelBench, body: str, *, blocks: int) -> str:
    """What is said of a kernel with this body, in line 6 of its file. output[0] is 1."""
    with pytest.raises(CardFaultError) as told:
        bench.run(
            "KERNEL(wrong, 64) {\n" + body + "\n}",
            "wrong",
            np.zeros(1, np.int32),
            output=np.ones(2, np.int32),
            grid=(blocks, 1, 1),
            block=64,
        )
    return str(told.value)


@pytest.mark.parametrize("blocks", [1, 2, 7])
@pytest.mark.parametrize("seed", [0, 1])
def test_blocks_that_wait_for_what_never_comes_are_told(
    seed: int, blocks: int, make_bench: MakeBench
) -> None:
    body = "if (threadIdx.x == 3) wait_until_all((uint32*)args.output); __syncthreads();"
    told = fault(make_bench(order_seed=seed), body, blocks=blocks)
    assert "kernel wrong, block (" in told
    assert "threads wait for ever: thread 0 and after at __syncthreads, test.cu:6" in told
    assert "thread 3 and after at wait_until_all, test.cu:6;" in told


def test_a_block_that_never_ends_ends_those_that_wait_for_it(make_bench: MakeBench) -> None:
    body = """
        if (blockIdx.x < 3) wait_until_all((uint32*)args.output);
        while (*(volatile int*)args.input == 0) {}
    """
    told = fault(make_bench(time_limit_s=1), body, blocks=4)
    assert "kernel wrong, block (3, 0, 0), thread 0: it runs for too long" in told


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_fault_ends_blocks_that_wait(seed: int, make_bench: MakeBench) -> None:
    body = "if (blockIdx.x == 5) *(int*)16ull = 1; else wait_until_all((uint32*)args.output);"
    told = fault(make_bench(order_seed=seed), body, blocks=7)
    assert "kernel wrong, block (5, 0, 0), thread " in told
    assert "bad address 0x10" in told


def test_a_counter_at_a_bad_address_is_told(bench: KernelBench) -> None:
    assert "bad address 0x10" in fault(bench, "wait_until_all((uint32*)16ull);", blocks=2)


def test_blocks_let_each_other_go_on_one_after_the_other(make_bench: MakeBench) -> None:
    """Each waits for the block behind it, though it began before it."""
    text = """
    KERNEL(chain, 32) {
        uint32* doors = (uint32*)args.output;
        if (threadIdx.x > 0) return;
        if (blockIdx.x + 1 < gridDim.x) wait_until_all(doors + blockIdx.x + 1);
        atomicExch(doors + blockIdx.x, 0u);
    }
    """
    for seed in range(3):
        bench = make_bench(order_seed=seed, multiprocessors=16)
        output = np.ones(12, np.uint32)
        assert not bench.run(text, "chain", output, output=output, grid=(12, 1, 1)).any()
