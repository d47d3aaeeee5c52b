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

#ifndef KESTREL_EMULATED

// A kernel takes one structure, which the host fills field by field.
#define KESTREL_KERNEL(name, threads, Arguments) \
    extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ Arguments args)

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

// The block's shared memory whose size the launch says; its address is a multiple of 16.
KESTREL_DEVICE unsigned char* dynamic_shared() {
    extern __shared__ __align__(16) unsigned char dynamic_shared_bytes[];
    return dynamic_shared_bytes;
}

#endif

KESTREL_DEVICE float bfloat16_to_float(uint16 bits) { return __uint_as_float((uint32)bits << 16); }

static const int WARP = 32;
static const uint32 ALL_LANES = 0xffffffffu;

KESTREL_DEVICE int lane_index() { return threadIdx.x % WARP; }
KESTREL_DEVICE int warp_index() { return threadIdx.x / WARP; }

// The sum over a warp, the same bits in every lane: sums of two do not depend on their order.
KESTREL_DEVICE float warp_sum(float value) {
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        value += __shfl_xor_sync(ALL_LANES, value, distance);
    return value;
}

KESTREL_DEVICE float warp_max(float value) {
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, distance));
    return value;
}
