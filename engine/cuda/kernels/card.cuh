// What every kernel starts from: sizes of numbers, the form of a kernel, and the few instructions that C++ has no word
// for. The compiler at run time brings no headers of its own, and none are needed.
//
// KESTREL_EMULATED is defined where the same text is compiled for the processor, with stand-ins for all that belongs to
// a card; see the tests.
//
// Results must have the same bits however many tokens run at once. So the compiler may not join products and sums by
// itself (--fmad=false): where one instruction for both is wanted, it is asked for by fmaf.
#pragma once

typedef signed char int8;
typedef unsigned char uint8;
typedef short int16;
typedef unsigned short uint16;
typedef int int32;
typedef unsigned int uint32;
typedef long long int64;
typedef unsigned long long uint64;

// See `open_gate`.
typedef uint64 Gate;

#ifndef KESTREL_EMULATED

// A kernel takes one structure, which the host fills field by field.
#define KESTREL_KERNEL(name, threads, Arguments) \
    extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ Arguments args)

// With registers for so many blocks at once on a processor.
#define KESTREL_KERNEL_SHARING(name, threads, blocks, Arguments) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ Arguments args)

#define KESTREL_DEVICE __device__ __forceinline__

KESTREL_DEVICE float half_to_float(uint16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// Sum of four products of signed bytes, added to `sum`. Exact.
KESTREL_DEVICE int32 dot4(uint32 a, uint32 b, int32 sum) { return __dp4a((int32)a, (int32)b, sum); }

// 16 bytes that are read once and needn't stay in the cache.
KESTREL_DEVICE uint4 load_streaming(const void* address) {
    uint4 value;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(address));
    return value;
}

// The compiler has to keep the number, and can't work it out anew where it is needed.
KESTREL_DEVICE void keep_in_register(uint32& number) { asm volatile("" : "+r"(number)); }

// C += A B, by all lanes of a warp together. A: 16 rows of 32 signed bytes; B: 32 rows of 8; exact, sums wrap. Lane
// 4 r + q has of A's rows r (a[0], a[2]) and r + 8 (a[1], a[3]) bytes 4 q and after (a[0], a[1]) and 16 + 4 q and after
// (a[2], a[3]), of B's column r the same bytes (b[0], b[1]), and of C columns 2 q and 2 q + 1 in row r (c[0], c[1]) and
// in row r + 8 (c[2], c[3]).
KESTREL_DEVICE void mma_s8(int32* c, const uint32* a, const uint32* b) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// 16 bytes of global memory to shared memory, some time before `wait_copies` returns for the group that they are in.
// Both addresses are multiples of 16. Other threads see the bytes behind a barrier after that.
KESTREL_DEVICE void copy_async16(void* shared, const void* global) {
    uint32 target = (uint32)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(target), "l"(global) : "memory");
}

// A place in shared memory, as the instruction takes it: to be found once rather than for every copy.
typedef uint32 SharedPlace;
KESTREL_DEVICE SharedPlace shared_place(void* shared) { return (uint32)__cvta_generic_to_shared(shared); }
KESTREL_DEVICE void copy_async16_to(SharedPlace shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(shared), "l"(global) : "memory");
}

// The same number, of which the compiler doesn't know how it came about: so it keeps it rather than make it again.
KESTREL_DEVICE SharedPlace kept(SharedPlace place) {
    asm volatile("" : "+r"(place));
    return place;
}

// The same for a place in global memory.
template <typename T>
KESTREL_DEVICE T* kept(T* address) {
    asm volatile("" : "+l"(address));
    return address;
}

KESTREL_DEVICE uint4 load_shared16(SharedPlace place) {
    uint4 value;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(place)
                 : "memory");
    return value;
}

KESTREL_DEVICE uint32 load_shared4(SharedPlace place) {
    uint32 value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(place) : "memory");
    return value;
}

KESTREL_DEVICE void store_shared4(SharedPlace place, uint32 value) {
    asm volatile("st.shared.u32 [%0], %1;" : : "r"(place), "r"(value) : "memory");
}

// This thread's copies since the last time are a group.
KESTREL_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" : : : "memory"); }

// Waits until no more than the last N of this thread's groups may be on their way.
template <int N>
KESTREL_DEVICE void wait_copies() {
    asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
}

// A gate in shared memory opens in turns: when so many have arrived as it was made for, its turn 0 is over, then 1, and
// so on. Who waits sees what those who arrived had written before. It has to be made behind a barrier of the block.
KESTREL_DEVICE void open_gate(Gate* gate, uint32 arrivals) {
    uint32 at = (uint32)__cvta_generic_to_shared(gate);
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" : : "r"(at), "r"(arrivals) : "memory");
}
KESTREL_DEVICE void arrive_at(SharedPlace gate) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" : : "r"(gate) : "memory");
}
KESTREL_DEVICE void arrive(Gate* gate) { arrive_at(shared_place(gate)); }
// For the end of a turn. It must not be two turns behind.
KESTREL_DEVICE void wait_at_place(SharedPlace gate, uint32 turn) {
    uint32 over = 0;
    while (!over)
        asm volatile("{ .reg .pred over; mbarrier.test_wait.parity.shared.b64 over, [%1], %2; selp.u32 %0, 1, 0, over; }"
                     : "=r"(over)
                     : "r"(gate), "r"(turn % 2)
                     : "memory");
}
KESTREL_DEVICE void wait_at(Gate* gate, uint32 turn) { wait_at_place(shared_place(gate), turn); }

// Until all that the kernels before have written is there. Where the launch doesn't say that a kernel may begin while
// the one before still runs, and on cards that can't do that, it is so from the start.
KESTREL_DEVICE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}

// The next kernel may begin, up to its own `wait_for_previous`, once every block has come here or ended. A kernel comes
// here behind its own `wait_for_previous`: so whatever was written two kernels before may be read without waiting. Those
// that come here earlier say so; what is launched behind them may read without waiting only what no kernel of a step
// writes, as weights, or what kernels before the last one that came here behind its wait have written.
KESTREL_DEVICE void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}

// 2 to the power of it, to some 22 bits; what would be denormal is 0.
KESTREL_DEVICE float power_of_two(float exponent) {
    float value;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(exponent));
    return value;
}

// 1 / number, to the last bit but one, in one instruction.
KESTREL_DEVICE float reciprocal(float number) {
    float value;
    asm("rcp.approx.f32 %0, %1;" : "=f"(value) : "f"(number));
    return value;
}

// What other blocks have written in the meantime: not from this processor's own cache.
KESTREL_DEVICE float load_written(const float* address) { return __ldcg(address); }

KESTREL_DEVICE float2 load_written8(const void* address) { return __ldcg((const float2*)address); }

KESTREL_DEVICE float4 load_written16(const void* address) { return __ldcg((const float4*)address); }

// One more, up to `last`, then from 0 again; returns what was there. What the block has written before its last barrier
// is there for whoever counts after it, and what those before have written is there behind it.
KESTREL_DEVICE uint32 count_arrival(uint32* count, uint32 last) {
    uint32 before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(count), "r"(last) : "memory");
    return before;
}

// Until whoever counts last has counted, for one who has before. What all those have written is there behind it. Who
// hasn't begun may need the room of a block that waits: so fewer of these may do so than the card has processors.
KESTREL_DEVICE void wait_until_all(const uint32* count) {
    uint32 there = 1;
    while (there != 0) asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(there) : "l"(count) : "memory");
}

// 16, 8 and 4 bytes of global memory, or an address there, where the compiler can't know that they are there.
KESTREL_DEVICE uint4 load_global16(const void* address) {
    uint4 value;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(address));
    return value;
}

KESTREL_DEVICE float2 load_global8(const void* address) {
    float2 value;
    asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "l"(address));
    return value;
}

KESTREL_DEVICE uint64 load_global_address(const void* address) {
    uint64 value;
    asm volatile("ld.global.u64 %0, [%1];" : "=l"(value) : "l"(address));
    return value;
}

KESTREL_DEVICE float load_global4(const void* address) {
    float value;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(address));
    return value;
}

// 128 bytes of global memory, so that they are near when they are loaded. (Of a load from which nothing comes nothing
// stays.)
KESTREL_DEVICE void prefetch_line(const void* address) {
    asm volatile("prefetch.global.L1 [%0];" : : "l"(address));
}

// So many bytes of global memory, a multiple of 16 as their address, so that they are in the second cache when they are
// asked for. Cards before 9.0 don't.
KESTREL_DEVICE void bring_near(const void* address, uint32 bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" : : "l"(address), "r"(bytes) : "memory");
#endif
}

// The block's shared memory whose size the launch says; its address is a multiple of 16.
KESTREL_DEVICE unsigned char* dynamic_shared() {
    extern __shared__ __align__(16) unsigned char dynamic_shared_bytes[];
    return dynamic_shared_bytes;
}

#endif

// Whether a processor has 160 KB of shared memory or more; others have 100.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 870 || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200))
static const bool ROOMY = true;
#else
static const bool ROOMY = false;
#endif

KESTREL_DEVICE float bfloat16_to_float(uint16 bits) { return __uint_as_float((uint32)bits << 16); }

static const int WARP = 32;
static const uint32 ALL_LANES = 0xffffffffu;

KESTREL_DEVICE int lane_index() { return threadIdx.x % WARP; }
KESTREL_DEVICE int warp_index() { return threadIdx.x / WARP; }

// The sum over a warp, or so many neighbours in it, the same bits in every lane: sums of two do not depend on their
// order.
template <int LANES = WARP>
KESTREL_DEVICE float warp_sum(float value) {
    for (int distance = LANES / 2; distance > 0; distance /= 2)
        value += __shfl_xor_sync(ALL_LANES, value, distance);
    return value;
}

KESTREL_DEVICE float warp_max(float value) {
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, distance));
    return value;
}

KESTREL_DEVICE uint32 warp_max_bits(uint32 value) { return __reduce_max_sync(ALL_LANES, value); }
