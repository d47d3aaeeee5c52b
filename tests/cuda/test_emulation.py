"""Emulated kernels give what a card gives, and their mistakes are told, not passed over."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kernel_bench import SUMS, KernelBench, numbers

from engine.cuda.driver import CardFaultError


def halves(values: np.ndarray, distance: int) -> np.ndarray:
    """A sum over the last axis as a warp builds it: each with the one at a distance, then at half of it."""
    while distance:
        values = values[..., :distance] + values[..., distance : 2 * distance]
        distance //= 2
    return values[..., 0]


# --- what a card computes ---


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sums_over_blocks_have_the_expected_bits(make_bench: Callable[..., KernelBench], seed: int) -> None:
    bench = make_bench(order_seed=seed)
    values = numbers(5 * 256)
    result = bench.run(SUMS, "block_sums", values, output=np.zeros(5, np.float32), grid=(5, 1, 1), block=256)
    expected = halves(halves(values.reshape(5, 8, 32), 16), 4)
    assert result.tobytes() == expected.tobytes()


def test_products_of_four_bytes_are_exact(bench: KernelBench) -> None:
    text = """
    KERNEL(products, 32) {
        const uint32* words = (const uint32*)args.input + 3 * threadIdx.x;
        ((int32*)args.output)[threadIdx.x] = dot4(words[0], words[1], (int32)words[2]);
    }
    """
    values = np.random.default_rng(3).integers(-128, 128, (32, 12)).astype(np.int8)
    values[0] = -128
    values[1, :8] = [-128] * 4 + [127] * 4
    result = bench.run(text, "products", values, output=np.zeros(32, np.int32))
    sums = values[:, 8:].copy().view(np.int32)[:, 0].astype(np.int64)
    expected = (values[:, :4].astype(np.int64) * values[:, 4:8]).sum(axis=1) + sums
    assert result.tolist() == expected.astype(np.int32).tolist()


def test_every_half_becomes_its_float_and_is_found_again(bench: KernelBench) -> None:
    text = """
    KERNEL(widen, 256) {
        int index = blockIdx.x * 256 + threadIdx.x;
        float value = half_to_float(((const uint16*)args.input)[index]);
        ((float*)args.output)[index] = value;
    }
    """
    patterns = np.arange(65536, dtype=np.uint16)
    result = bench.run(
        text, "widen", patterns, output=np.zeros(65536, np.float32), grid=(256, 1, 1), block=256
    )
    expected = patterns.view(np.float16).astype(np.float32)
    numbers = ~np.isnan(expected)
    assert np.array_equal(np.isnan(result), ~numbers)
    assert result[numbers].tobytes() == expected[numbers].tobytes()


def test_floats_become_halves_to_the_nearest_with_ties_to_even(bench: KernelBench) -> None:
    text = """
    KERNEL(narrow, 256) {
        int64 index = blockIdx.x * 256 + threadIdx.x;
        if (index < args.count)
            ((uint16*)args.output)[index] = float_to_half(((const float*)args.input)[index]);
    }
    """
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    between = (halves[:-1] + halves[1:]) / 2
    values = np.concatenate([halves, between, np.nextafter(between, 0), np.nextafter(between, 9e9)])
    values = np.concatenate([values, [65519.996, 65520.0, 1e9, np.inf, 1e-30]]).astype(np.float32)
    values = np.concatenate([values, -values])
    grid = (-(-values.size // 256), 1, 1)
    result = bench.run(text, "narrow", values, output=np.zeros(values.size, np.uint16), grid=grid, block=256)
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
    assert result.tobytes() == expected.tobytes()


def test_shuffles_and_votes_follow_the_lanes(bench: KernelBench) -> None:
    text = """
    KERNEL(exchange, 32) {
        int lane = threadIdx.x;
        int* out = (int*)args.output;
        out[lane] = __shfl_sync(ALL_LANES, lane * 10, 35);
        out[32 + lane] = __shfl_xor_sync(ALL_LANES, lane, 5);
        out[64 + lane] = __shfl_up_sync(ALL_LANES, lane, 3);
        out[96 + lane] = __shfl_down_sync(ALL_LANES, lane, 2, 8);
        out[128 + lane] = (int)__ballot_sync(ALL_LANES, lane % 3 == 0);
        out[160 + lane] = __any_sync(ALL_LANES, lane == 40) * 2 + __all_sync(ALL_LANES, lane < 32);
        out[192 + lane] = lane < 16 ? __shfl_sync(0xffffu, lane, 7) : -1;
    }
    """
    result = bench.run(text, "exchange", np.zeros(1, np.int32), output=np.zeros(224, np.int32))
    lanes = range(32)
    assert result.reshape(7, 32).tolist() == [
        [30] * 32,
        [lane ^ 5 for lane in lanes],
        [lane - 3 if lane >= 3 else lane for lane in lanes],
        [lane + 2 if lane % 8 < 6 else lane for lane in lanes],
        [sum(1 << lane for lane in lanes if lane % 3 == 0)] * 32,
        [1] * 32,
        [7] * 16 + [-1] * 16,
    ]


def test_dynamic_shared_memory_has_its_size_and_alignment(bench: KernelBench) -> None:
    text = """
    KERNEL(turn_round, 64) {
        float4* all = (float4*)dynamic_shared();
        all[threadIdx.x] = ((const float4*)args.input)[threadIdx.x];
        __syncthreads();
        ((float4*)args.output)[threadIdx.x] = all[63 - threadIdx.x];
    }
    """
    values = numbers(256)
    result = bench.run(
        text, "turn_round", values, output=np.zeros(256, np.float32), block=64, shared_bytes=1024
    )
    assert result.tobytes() == values.reshape(64, 4)[::-1].tobytes()


def test_threads_that_returned_hold_up_no_barrier(bench: KernelBench) -> None:
    text = """
    KERNEL(halve, 128) {
        __shared__ int kept[128];
        int thread = threadIdx.x;
        kept[thread] = thread;
        for (int living = 64; living > 0; living /= 2) {
            __syncthreads();
            if (thread >= living) return;
            kept[thread] += kept[thread + living];
        }
        ((int*)args.output)[0] = kept[0];
    }
    """
    result = bench.run(text, "halve", np.zeros(1, np.int32), output=np.zeros(1, np.int32), block=128)
    assert result[0] == sum(range(128))


def test_lanes_that_returned_hold_up_no_warp(bench: KernelBench) -> None:
    text = """
    KERNEL(first_lanes, 48) {
        if (threadIdx.x % 32 >= 4) return;
        __syncwarp();
        int sum = __shfl_xor_sync(ALL_LANES, (int)threadIdx.x, 1);
        ((int*)args.output)[threadIdx.x] = sum;
    }
    """
    result = bench.run(text, "first_lanes", np.zeros(1, np.int32), output=np.full(48, -9, np.int32), block=48)
    expected = np.full(48, -9)
    expected[[0, 1, 2, 3, 32, 33, 34, 35]] = [1, 0, 3, 2, 33, 32, 35, 34]
    assert result.tolist() == expected.tolist()


@pytest.mark.parametrize("seed", [0, 5])
def test_atomic_sums_lose_nothing(make_bench: Callable[..., KernelBench], seed: int) -> None:
    text = """
    KERNEL(count, 128) {
        atomicAdd((int*)args.output, 1);
        atomicAdd((unsigned*)args.output + 1, threadIdx.x);
        atomicAdd((float*)args.output + 2, 0.5f);
        atomicMax((int*)args.output + 3, (int)(blockIdx.x * 128 + threadIdx.x));
    }
    """
    output = np.zeros(4, np.int32)
    result = make_bench(order_seed=seed).run(
        text, "count", np.zeros(1, np.int32), output=output, grid=(50, 1, 1), block=128
    )
    assert result[[0, 1, 3]].tolist() == [6400, 50 * sum(range(128)), 6399]
    assert result[2:3].view(np.float32)[0] == 3200.0


@pytest.mark.parametrize("seed", [0, 11])
def test_every_block_of_a_grid_runs_once_with_its_own_numbers(
    make_bench: Callable[..., KernelBench], seed: int
) -> None:
    text = """
    KERNEL(axes, 32) {
        if (threadIdx.x != 0) return;
        int64 index = ((int64)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        int* out = (int*)args.output + index * 4;
        out[0] += 1; out[1] += blockIdx.x; out[2] += blockIdx.y; out[3] += blockIdx.z;
    }
    """
    output = np.zeros((3, 5, 7, 4), np.int32)
    result = make_bench(order_seed=seed).run(
        text, "axes", np.zeros(1, np.int32), output=output, grid=(7, 5, 3)
    )
    z, y, x = np.indices((3, 5, 7))
    assert np.array_equal(result, np.stack([np.ones_like(x), x, y, z], axis=-1))


def test_a_block_of_any_size_up_to_1024_runs(bench: KernelBench) -> None:
    text = """
    KERNEL(number, 1024) {
        __syncthreads();
        ((int*)args.output)[threadIdx.x] = warp_index() * 100 + lane_index() + blockDim.x * 10000;
    }
    """
    for block in (1, 31, 32, 33, 255, 1024):
        result = bench.run(
            text, "number", np.zeros(1, np.int32), output=np.zeros(block, np.int32), block=block
        )
        assert result.tolist() == [i // 32 * 100 + i % 32 + block * 10000 for i in range(block)]


# --- mistakes of kernels ---


def fault(bench: KernelBench, body: str, *, block: int = 64, count: int = 64, **options: Any) -> str:
    """What is said of a kernel with this body, in line 6 of its file."""
    text = "KERNEL(wrong, 256) {\n" + body + "\n}"
    values = np.arange(count, dtype=np.int32)
    with pytest.raises(CardFaultError) as told:
        bench.run(text, "wrong", values, output=values.copy(), block=block, **options)
    return str(told.value)


def test_a_missing_barrier_is_seen_in_another_order(make_bench: Callable[..., KernelBench]) -> None:
    text = """
    KERNEL(neighbours, 64) {
        __shared__ float kept[64];
        int thread = threadIdx.x;
        kept[thread] = ((const float*)args.input)[thread];
        BARRIER
        ((float*)args.output)[thread] = kept[thread ^ 33];
    }
    """
    values = numbers(64)
    expected = values[np.arange(64) ^ 33].tobytes()

    def results(barrier: str) -> list[np.ndarray]:
        return [
            make_bench(order_seed=seed).run(
                text.replace("BARRIER", barrier),
                "neighbours",
                values,
                output=np.zeros(64, np.float32),
                block=64,
            )
            for seed in range(4)
        ]

    assert all(result.tobytes() == expected for result in results("__syncthreads();"))
    wrong = results("")
    assert all(np.isnan(result).any() for result in wrong)  # read before it was written: poison
    assert len({result.tobytes() for result in wrong}) > 1


def test_memory_is_poison_before_it_is_written(bench: KernelBench) -> None:
    text = """
    KERNEL(leave_behind, 32) {
        __shared__ float kept[32];
        float* more = (float*)dynamic_shared();
        ((float*)args.output)[blockIdx.x * 32 + threadIdx.x] = kept[threadIdx.x] + more[threadIdx.x];
        kept[threadIdx.x] = more[threadIdx.x] = 1.0f;
    }
    """
    output = np.zeros(320, np.float32)
    result = bench.run(text, "leave_behind", output, output=output, grid=(10, 1, 1), shared_bytes=128)
    assert np.isnan(result).all()
    address = bench.card.allocate(10)
    fresh = np.zeros(10, np.uint8)
    bench.card.download(fresh, address)
    bench.card.free(address)
    assert np.isnan(fresh[:8].view(np.float32)).all()


@pytest.mark.parametrize(
    ("index", "side"), [("args.count", "behind"), ("-1", "before"), ("args.count + 200", "behind")]
)
def test_writing_beside_an_allocation_is_told_with_kernel_and_allocation(
    bench: KernelBench, index: str, side: str
) -> None:
    told = fault(bench, f"((int*)args.output)[{index}] = 1;")
    assert "kernel wrong: it wrote" in told
    assert f"{side} the allocation of 256 bytes" in told


def test_writing_to_freed_memory_is_told(bench: KernelBench) -> None:
    old = bench.place(np.zeros(1000, np.int32))
    bench.card.free(old)
    assert "memory that was freed" in fault(bench, f"*(int*){old}ull = 1;")


def test_reading_freed_memory_gives_poison(bench: KernelBench) -> None:
    old = bench.place(np.zeros(32, np.float32))
    bench.card.free(old)
    text = f"KERNEL(late, 32) {{ ((float*)args.output)[threadIdx.x] = ((float*){old}ull)[threadIdx.x]; }}"
    result = bench.run(text, "late", np.zeros(1, np.float32), output=np.zeros(32, np.float32))
    assert np.isnan(result).all()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("((int*)dynamic_shared())[threadIdx.x] = 1;", "wrote behind its shared memory"),
        ("((int*)dynamic_shared())[(int)threadIdx.x - 1] = 1;", "wrote before its shared memory"),
        ("dynamic_shared()[threadIdx.x * 1000] = 1;", "thread 2: it reaches far beyond its shared memory"),
        ("dynamic_shared()[-300000] = 1;", "reaches far beyond its shared memory"),
    ],
)
def test_writing_beside_dynamic_shared_memory_is_told(bench: KernelBench, body: str, reason: str) -> None:
    assert reason in fault(bench, body, shared_bytes=252)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "__shared__ int kept[8]; kept[threadIdx.x] = 1; __syncthreads();",
            "index 8 is outside of the array",
        ),
        ("*(int*)((char*)args.output + 1) = 1;", "misaligned address"),
        ("*(int*)args.output = 1 / (int)(args.count - 64);", "by zero"),
        ("*(int*)args.output = 1 << (args.count - 24);", "shift by 40 bits"),
        ("*(signed char*)args.output = (signed char)(args.count * 4.0f);", "doesn't fit"),
    ],
)
def test_mistakes_that_a_card_passes_over_are_told_with_their_line(
    bench: KernelBench, body: str, reason: str
) -> None:
    told = fault(bench, body)
    assert "kernel wrong, block (0, 0, 0), thread " in told
    assert "test.cu:6" in told
    assert reason in told


@pytest.mark.parametrize(
    "body",
    [
        "*(uint4*)((int*)args.output + 1) = ((uint4*)args.input)[threadIdx.x];",
        "*(float2*)args.output = load_written8((float*)args.input + 1);",
        "*(float4*)args.output = load_written16((float*)args.input + 2);",
    ],
)
def test_a_vector_at_an_odd_address_is_told(body: str, bench: KernelBench) -> None:
    assert "misaligned address" in fault(bench, body, block=1)


def test_shared_memory_that_nobody_writes_is_poison(bench: KernelBench) -> None:
    text = """
    KERNEL(forgot, 32) {
        __shared__ float never[32];
        ((float*)args.output)[threadIdx.x] = never[threadIdx.x];
    }
    """
    output = np.zeros(32, np.float32)
    assert np.isnan(bench.run(text, "forgot", output, output=output)).all()


def test_a_bad_address_is_told_and_does_not_end_the_process(bench: KernelBench) -> None:
    told = fault(bench, "if (threadIdx.x == 5) *(int*)16ull = 1;")
    assert "kernel wrong, block (0, 0, 0), thread 5: bad address 0x10" in told
    assert shutil.which("addr2line") is None or "[test.cu:6]" in told


def test_a_stack_that_is_used_up_is_told(bench: KernelBench) -> None:
    body = """
        volatile char large[100000];
        for (int i = 99999; i >= 0; i -= 512) large[i] = (char)args.count;
        *(int*)args.output = large[threadIdx.x];
    """
    assert "local memory is used up" in fault(bench, body)


def test_threads_that_wait_for_ever_are_told(bench: KernelBench) -> None:
    told = fault(bench, "if (threadIdx.x < 3) __syncwarp(); else if (threadIdx.x < 32) __syncthreads();")
    assert "threads wait for ever: thread 0 and after at __syncwarp, test.cu:6 (lanes ffffffff)" in told
    assert "thread 3 and after at __syncthreads, test.cu:6" in told


def test_a_kernel_that_never_ends_is_told(make_bench: Callable[..., KernelBench]) -> None:
    told = fault(
        make_bench(time_limit_s=1),
        "while (*(volatile int*)args.input == 0 && blockIdx.x == 2) {}",
        grid=(4, 1, 1),
    )
    assert "kernel wrong, block (2, 0, 0), thread 0: it runs for too long" in told


def test_barriers_at_two_places_are_told(bench: KernelBench) -> None:
    told = fault(bench, "if (threadIdx.x < 32)\n__syncthreads();\nelse\n__syncthreads();")
    assert "different barriers: thread 0 at test.cu:7, thread 32 at test.cu:9" in told


def test_lanes_that_disagree_are_told(bench: KernelBench) -> None:
    told = fault(bench, "__shfl_sync(threadIdx.x < 4 ? 0xffffffffu : 0xfffffffeu, 1, 0);", block=32)
    assert "lane 1 waits for the lanes ffffffff at test.cu:6, and one of them for fffffffe" in told


def test_a_lane_that_does_not_name_itself_is_told(bench: KernelBench) -> None:
    told = fault(bench, "__shfl_sync(0x3u, 1, 0);")
    assert "thread 2: __shfl_sync names the lanes 00000003 without its own, at test.cu:6" in told


def test_what_a_launch_cannot_be_is_refused(make_bench: Callable[..., KernelBench]) -> None:
    body = "((int*)args.output)[0] = 1;"
    assert "257 threads in a block, of at most 256" in fault(make_bench(), body, block=257)
    assert "0 threads" in fault(make_bench(), body, block=0)
    assert "grid of (1, 65536, 1)" in fault(make_bench(), body, grid=(1, 65536, 1))
    assert "grid of (0, 1, 1)" in fault(make_bench(), body, grid=(0, 1, 1))
    assert "of shared memory" in fault(make_bench(), body, shared_bytes=200_000)


@pytest.mark.parametrize(
    ("capability", "most"), [((8, 0), 163), ((8, 6), 99), ((8, 9), 99), ((9, 0), 227), ((12, 0), 99)]
)
def test_a_block_has_as_much_shared_memory_as_on_such_a_card_and_no_more(
    capability: tuple[int, int], most: int, make_bench: Callable[..., KernelBench]
) -> None:
    text = "KERNEL(last, 32) { *(int*)args.output = dynamic_shared()[args.count - 1] = 7; }"
    room, output = np.zeros(1024 * most, np.uint8), np.zeros(1, np.int32)
    bench = make_bench(compute_capability=capability)
    found = bench.run(text, "last", room, output=output, shared_bytes=room.size)
    assert found[0] == 7
    with pytest.raises(CardFaultError, match=f"of shared memory, of at most {room.size}"):
        bench.run(text, "last", room, output=output, shared_bytes=room.size + 1)


@pytest.mark.parametrize("capability", [(8, 6), (9, 0)])
def test_kernels_are_told_for_which_card_they_are(
    capability: tuple[int, int], make_bench: Callable[..., KernelBench]
) -> None:
    text = "KERNEL(tell, 32) { *(int*)args.output = __CUDA_ARCH__; }"
    bench, output = make_bench(compute_capability=capability), np.zeros(1, np.int32)
    major, minor = capability
    assert bench.run(text, "tell", output, output=output)[0] == 100 * major + 10 * minor


def test_after_a_fault_the_card_answers_nothing_else(bench: KernelBench) -> None:
    first = fault(bench, "*(int*)16ull = 1;")
    for call in (bench.card.free_bytes, bench.card.synchronize, lambda: bench.card.allocate(1)):
        with pytest.raises(CardFaultError) as again:
            call()
        assert str(again.value) == first
    bench.card.close()


def test_text_that_does_not_compile_is_told_with_the_first_complaint(bench: KernelBench) -> None:
    with pytest.raises(CardFaultError, match="no_such_name"):
        bench.compile("KERNEL(broken, 32) { no_such_name(1); }")


def test_a_kernel_that_is_absent_is_told(bench: KernelBench) -> None:
    with pytest.raises(CardFaultError, match="no kernel absent"):
        bench.card.load(bench.compile(SUMS), ["absent"])
