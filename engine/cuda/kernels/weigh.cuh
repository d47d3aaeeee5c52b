// What a token weighs in a draw, and the random number that decides: the functions of engine/sampling.py and
// engine/philox.py, bit for bit. Weights are whole numbers, so that no sum of them depends on its order.
#pragma once

#include "card.cuh"

static const int WEIGHT_BITS = 42;  // of the best token's
static const int UNIFORM_BITS = 53;
static const uint32 NO_KEY = 0xffffffffu;  // behind all others

// A score is at most 0. Its key: the better, the smaller; equal for equal scores alone.
KESTREL_DEVICE uint32 key_of(float score) { return __float_as_uint(score) & 0x7fffffffu; }

// exp(score) * 2^42, rounded down. Products and sums are each rounded once.
KESTREL_DEVICE uint64 weight_of(uint32 key) {
    float x = fmaxf(-__uint_as_float(key), -30.0f);
    float exponent = rintf(x * 0x1.715476p+0f);
    x = x - exponent * 0x1.63p-1f;
    x = x - exponent * -0x1.bd0106p-13f;
    float result = x * 0x1.a0d2cep-13f;
    result = (result + 0x1.6e879cp-10f) * x;
    result = (result + 0x1.11121p-7f) * x;
    result = (result + 0x1.555382p-5f) * x;
    result = (result + 0x1.555554p-3f) * x;
    result = (result + 0x1p-1f) * x;
    result = result * x + x + 1.0f;
    return (uint64)(result * __uint_as_float((uint32)((int)exponent + WEIGHT_BITS + 127) << 23));
}

// Philox4x32-10: the first two words for this counter, as a number below 2^53.
KESTREL_DEVICE uint64 uniform_bits(uint64 seed, uint64 index) {
    uint32 a = (uint32)index, b = (uint32)(index >> 32), c = 0, d = 0;
    uint32 first = (uint32)seed, second = (uint32)(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        uint64 left = (uint64)0xd2511f53u * a, right = (uint64)0xcd9e8d57u * c;
        a = (uint32)(right >> 32) ^ b ^ first;
        c = (uint32)(left >> 32) ^ d ^ second;
        b = (uint32)right;
        d = (uint32)left;
        first += 0x9e3779b9u;
        second += 0xbb67ae85u;
    }
    return ((uint64)b << 32 | a) >> (64 - UNIFORM_BITS);
}
