// A card's types of several numbers and its instructions, for the processor. Results have a card's bits where the card's
// are exact or correctly rounded; expf and its like are the processor's own.
#pragma once

#include <math.h>
#include <string.h>

#include "machine.h"

static const int warpSize = 32;

// --- several numbers --------------------------------------------------------------------------------------------------

#define KESTREL_VECTORS(number, name, bytes)                                                                   \
    struct __attribute__((aligned(2 * bytes))) name##2 { number x, y; };                                       \
    struct name##3 { number x, y, z; };                                                                        \
    struct __attribute__((aligned(4 * bytes > 16 ? 16 : 4 * bytes))) name##4 { number x, y, z, w; };           \
    inline name##2 make_##name##2(number x, number y) { return {x, y}; }                                       \
    inline name##3 make_##name##3(number x, number y, number z) { return {x, y, z}; }                          \
    inline name##4 make_##name##4(number x, number y, number z, number w) { return {x, y, z, w}; }

KESTREL_VECTORS(signed char, char, 1)
KESTREL_VECTORS(unsigned char, uchar, 1)
KESTREL_VECTORS(short, short, 2)
KESTREL_VECTORS(unsigned short, ushort, 2)
KESTREL_VECTORS(int, int, 4)
KESTREL_VECTORS(unsigned int, uint, 4)
KESTREL_VECTORS(float, float, 4)
KESTREL_VECTORS(long long, longlong, 8)
KESTREL_VECTORS(unsigned long long, ulonglong, 8)
KESTREL_VECTORS(double, double, 8)

// --- barriers and warps -----------------------------------------------------------------------------------------------

#define KESTREL_PLACE \
    const char *file = __builtin_FILE(), int line = __builtin_LINE()

// The compiler keeps nothing of memory in registers across it.
inline void kestrel_fence() { asm volatile("" ::: "memory"); }

inline void __syncthreads(KESTREL_PLACE) {
    kestrel_fence();
    kestrel_machine::wait_for_block({file, line});
    kestrel_fence();
}

inline unsigned long long kestrel_exchange(
    kestrel_machine::Operation operation, unsigned mask, unsigned long long value, unsigned source, const char* file,
    int line
) {
    kestrel_fence();
    unsigned long long result = kestrel_machine::wait_for_lanes(operation, mask, value, source, {file, line});
    kestrel_fence();
    return result;
}

inline unsigned kestrel_lane() { return kestrel_machine::view()->current->lane; }

inline void __syncwarp(unsigned mask = 0xffffffffu, KESTREL_PLACE) {
    kestrel_exchange(kestrel_machine::SYNCWARP, mask, 0, kestrel_lane(), file, line);
}

template <typename T>
inline T kestrel_shuffle(
    kestrel_machine::Operation operation, unsigned mask, T value, unsigned source, const char* file, int line
) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 32 or 64 bits");
    unsigned long long bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = kestrel_exchange(operation, mask, bits, source, file, line);
    memcpy(&value, &bits, sizeof value);
    return value;
}

// `width`: lanes of a segment, a power of two. Past the segment's end a lane gets its own value, but with __shfl_sync,
// where the number goes round.
template <typename T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, KESTREL_PLACE) {
    unsigned segment = kestrel_lane() & ~(width - 1u);
    return kestrel_shuffle(kestrel_machine::SHUFFLE, mask, value, segment | (source & (width - 1u)), file, line);
}

template <typename T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, KESTREL_PLACE) {
    unsigned lane = kestrel_lane(), source = (lane ^ (unsigned)bits) & 31;
    if (source >= (lane & ~(width - 1u)) + width) source = lane;
    return kestrel_shuffle(kestrel_machine::SHUFFLE_XOR, mask, value, source, file, line);
}

template <typename T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32, KESTREL_PLACE) {
    unsigned lane = kestrel_lane(), source = (lane & (width - 1u)) < distance ? lane : lane - distance;
    return kestrel_shuffle(kestrel_machine::SHUFFLE_UP, mask, value, source, file, line);
}

template <typename T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32, KESTREL_PLACE) {
    unsigned lane = kestrel_lane(), source = (lane & (width - 1u)) + distance >= (unsigned)width ? lane : lane + distance;
    return kestrel_shuffle(kestrel_machine::SHUFFLE_DOWN, mask, value, source, file, line);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, KESTREL_PLACE) {
    return (unsigned)kestrel_exchange(kestrel_machine::BALLOT, mask, predicate != 0, 0, file, line);
}
inline int __any_sync(unsigned mask, int predicate, KESTREL_PLACE) {
    return (int)kestrel_exchange(kestrel_machine::ANY, mask, predicate != 0, 0, file, line);
}
inline int __all_sync(unsigned mask, int predicate, KESTREL_PLACE) {
    return (int)kestrel_exchange(kestrel_machine::ALL, mask, predicate != 0, 0, file, line);
}

inline unsigned __reduce_max_sync(unsigned mask, unsigned value, KESTREL_PLACE) {
    for (int bits = 16; bits > 0; bits /= 2) {
        unsigned other = __shfl_xor_sync(mask, value, bits, 32, file, line);
        value = other > value ? other : value;
    }
    return value;
}

inline int __reduce_add_sync(unsigned mask, int value, KESTREL_PLACE) {
    for (int bits = 16; bits > 0; bits /= 2) value += __shfl_xor_sync(mask, value, bits, 32, file, line);
    return value;
}

struct KestrelTile {  // what one lane has of a product of tiles
    int* c;
    const unsigned *a, *b;
};

// Lane 4 r + q has bytes 4 q and after, and 16 + 4 q and after, of rows r and r + 8 of A and of column r of B.
inline void kestrel_multiply_tiles(void* const lanes[32]) {
    signed char a[16][32], b[8][32];
    for (int lane = 0; lane < 32; ++lane) {
        const KestrelTile& tile = *(const KestrelTile*)lanes[lane];
        int row = lane / 4, column = lane % 4 * 4;
        for (int half = 0; half < 2; ++half) {
            memcpy(&a[row][16 * half + column], &tile.a[2 * half], 4);
            memcpy(&a[row + 8][16 * half + column], &tile.a[2 * half + 1], 4);
            memcpy(&b[row][16 * half + column], &tile.b[half], 4);
        }
    }
    for (int lane = 0; lane < 32; ++lane) {
        const KestrelTile& tile = *(const KestrelTile*)lanes[lane];
        for (int i = 0; i < 4; ++i) {
            const signed char *row = a[lane / 4 + i / 2 * 8], *column = b[lane % 4 * 2 + i % 2];
            int sum = 0;
            for (int k = 0; k < 32; ++k) sum += row[k] * column[k];
            tile.c[i] = (int)((unsigned)tile.c[i] + (unsigned)sum);  // it wraps
        }
    }
}

inline void mma_s8(int* c, const unsigned* a, const unsigned* b, KESTREL_PLACE) {
    KestrelTile mine = {c, a, b};
    kestrel_fence();
    kestrel_machine::do_together(kestrel_machine::MMA_S8, kestrel_multiply_tiles, &mine, {file, line});
    kestrel_fence();
}

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// --- memory -----------------------------------------------------------------------------------------------------------

inline unsigned char* dynamic_shared() { return kestrel_machine::view()->dynamic; }

template <typename T>
inline T __ldg(const T* address) { return *address; }

inline float load_written(const float* address) { return *(const volatile float*)address; }

inline float2 load_written8(const void* address) {
    const volatile float2* numbers = (const volatile float2*)address;
    return {numbers->x, numbers->y};
}

inline float4 load_written16(const void* address) {
    const volatile float4* numbers = (const volatile float4*)address;
    return {numbers->x, numbers->y, numbers->z, numbers->w};
}

inline float reciprocal(float number) { return 1.0f / number; }

inline void prefetch_line(const void* address) { *(const volatile unsigned char*)address; }
inline void bring_near(const void* address, unsigned bytes) {
    for (unsigned at = 0; at < bytes; at += 16) load_written16((const unsigned char*)address + at);
}

inline uint4 load_global16(const void* address) { return *(const uint4*)address; }
inline unsigned long long load_global_address(const void* address) { return *(const unsigned long long*)address; }
inline float load_global4(const void* address) { return *(const float*)address; }
inline float2 load_global8(const void* address) { return *(const float2*)address; }

inline uint4 load_streaming(const void* address) { return *(const uint4*)address; }

inline void copy_async16(void* shared, const void* global) {
    *(volatile uint4*)shared;  // of addresses that can't be, here and not later
    kestrel_machine::start_copy(shared, global);
}
inline void keep_in_register(unsigned&) {}

typedef unsigned char* SharedPlace;
inline SharedPlace shared_place(void* shared) { return (SharedPlace)shared; }
inline void copy_async16_to(SharedPlace shared, const void* global) { copy_async16(shared, global); }
inline SharedPlace kept(SharedPlace place) { return place; }
template <typename T>
inline T* kept(T* address) {
    return address;
}
inline uint4 load_shared16(SharedPlace place) { return *(const uint4*)place; }
inline unsigned load_shared4(SharedPlace place) { return *(const unsigned*)place; }
inline void store_shared4(SharedPlace place, unsigned value) { *(unsigned*)place = value; }
inline void commit_copies() { kestrel_machine::commit_copies(); }
template <int N>
inline void wait_copies() {
    kestrel_fence();
    kestrel_machine::finish_copies(N);
    kestrel_fence();
}

typedef unsigned long long Gate;

// Low 32 bits: arrivals until the turn is over. High: how many there are of a turn, and a bit that each turn changes.
inline void open_gate(Gate* gate, unsigned arrivals) { *gate = ((Gate)arrivals << 33) | arrivals; }
inline void arrive(Gate* gate) {
    kestrel_fence();
    Gate next = *gate - 1;
    if ((unsigned)next == 0) next = (next ^ ((Gate)1 << 32)) | next >> 33;
    *gate = next;
    kestrel_fence();
}
inline void wait_at(Gate* gate, unsigned turn) {
    while ((*(volatile Gate*)gate >> 32) % 2 == turn % 2) kestrel_machine::let_others_run();
    kestrel_fence();
}
inline void arrive_at(SharedPlace gate) { arrive((Gate*)gate); }
inline void wait_at_place(SharedPlace gate, unsigned turn) { wait_at((Gate*)gate, turn); }

// Kernels follow one another.
inline void wait_for_previous() {}
inline void let_next_start() {}

inline int atomicAdd(int* address, int value) { return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST); }
inline unsigned atomicAdd(unsigned* address, unsigned value) {
    return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);
}
inline unsigned long long atomicAdd(unsigned long long* address, unsigned long long value) {
    return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);
}

// Replaces what is there by `change` of it. Returns what was there.
template <typename T, typename Change>
inline T kestrel_change(T* address, Change change) {
    T before, after;
    __atomic_load(address, &before, __ATOMIC_SEQ_CST);
    do after = change(before);
    while (!__atomic_compare_exchange(address, &before, &after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return before;
}

inline float atomicAdd(float* address, float value) {
    return kestrel_change(address, [value](float before) { return before + value; });
}
// Up to `last`, then from 0 again.
inline unsigned atomicInc(unsigned* address, unsigned last) {
    return kestrel_change(address, [last](unsigned before) { return before >= last ? 0 : before + 1; });
}
inline unsigned count_arrival(unsigned* count, unsigned last) { return atomicInc(count, last); }
inline void wait_until_all(const unsigned* count, KESTREL_PLACE) {
    kestrel_machine::may_wait_for_others({file, line});
    while (__atomic_load_n(count, __ATOMIC_ACQUIRE) != 0) kestrel_machine::wait_for_zero(count, {file, line});
    kestrel_fence();
}
template <typename T>
inline T atomicMax(T* address, T value) {
    return kestrel_change(address, [value](T before) { return before > value ? before : value; });
}
template <typename T>
inline T atomicMin(T* address, T value) {
    return kestrel_change(address, [value](T before) { return before < value ? before : value; });
}
template <typename T>
inline T atomicExch(T* address, T value) {
    return kestrel_change(address, [value](T) { return value; });
}
template <typename T>
inline T atomicCAS(T* address, T expected, T value) {
    __atomic_compare_exchange(address, &expected, &value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expected;
}

// --- numbers ----------------------------------------------------------------------------------------------------------

template <typename To, typename From>
inline To kestrel_bits(From value) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To result;
    memcpy(&result, &value, sizeof result);
    return result;
}

inline unsigned __float_as_uint(float value) { return kestrel_bits<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return kestrel_bits<float>(bits); }
inline int __float_as_int(float value) { return kestrel_bits<int>(value); }
inline float __int_as_float(int bits) { return kestrel_bits<float>(bits); }

// To the nearest, ties to even; what is too large becomes the largest, and what is no number 0.
inline int __float2int_rn(float value) {
    if (isnan(value)) return 0;
    if (value >= 2147483648.0f) return 2147483647;
    return value < -2147483648.0f ? -2147483647 - 1 : (int)rintf(value);
}
inline float __int2float_rn(int value) { return (float)value; }
inline float __uint2float_rn(unsigned value) { return (float)value; }

// By names of its own: the C library has some of these too.
inline float kestrel_rsqrt(float value) { return 1.0f / sqrtf(value); }
#define rsqrtf(value) kestrel_rsqrt(value)
#define __expf(value) expf(value)
#define __logf(value) logf(value)
#define __sinf(value) sinf(value)
#define __cosf(value) cosf(value)
inline float power_of_two(float exponent) { return exp2f(exponent); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float value) { return sqrtf(value); }
inline float __frcp_rn(float value) { return 1.0f / value; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }

#define KESTREL_MIN_MAX(number)                                            \
    constexpr number min(number a, number b) { return b < a ? b : a; }     \
    constexpr number max(number a, number b) { return a < b ? b : a; }
KESTREL_MIN_MAX(int)
KESTREL_MIN_MAX(unsigned)
KESTREL_MIN_MAX(long)
KESTREL_MIN_MAX(unsigned long)
KESTREL_MIN_MAX(long long)
KESTREL_MIN_MAX(unsigned long long)
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __clz(int bits) { return bits ? __builtin_clz((unsigned)bits) : 32; }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

// Each half byte of the selector names one of eight bytes: of `a` first. Its highest bit: the byte's sign instead.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    unsigned long long bytes = (unsigned long long)b << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        unsigned which = selector >> 4 * i & 15, byte = (unsigned)(bytes >> 8 * (which & 7)) & 255;
        if (which & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << 8 * i;
    }
    return result;
}

inline int __dp4a(int a, int b, int sum) {
    unsigned total = (unsigned)sum;  // it wraps
    for (int i = 0; i < 4; ++i)
        total += (unsigned)((signed char)((unsigned)a >> 8 * i) * (signed char)((unsigned)b >> 8 * i));
    return (int)total;
}
inline int dot4(unsigned a, unsigned b, int sum) { return __dp4a((int)a, (int)b, sum); }

inline float half_to_float(unsigned short bits) {
    unsigned sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ffu;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | (fraction ? 0x400000u | fraction << 13 : 0));
    if (exponent == 0) {  // zero or denormal: a multiple of 2^-24
        float magnitude = (float)fraction * 5.9604644775390625e-8f;
        return sign ? -magnitude : magnitude;
    }
    return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
}

// To the nearest, ties to even.
inline unsigned short float_to_half(float value) {
    unsigned bits = __float_as_uint(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (unsigned short)0x7fff;
    if (magnitude >= 0x477ff000u) return (unsigned short)(sign | 0x7c00u);  // 65520 and more round up to infinity
    if (magnitude < 0x38800000u) {                                          // below 2^-14: a multiple of 2^-24
        float scaled = rintf(__uint_as_float(magnitude) * 16777216.0f);
        return (unsigned short)(sign | (unsigned)scaled);
    }
    unsigned odd = magnitude >> 13 & 1;
    return (unsigned short)(sign | (magnitude - 0x38000000u + 0xfffu + odd) >> 13);
}
