// Matrices of numbers as they are stored.
#pragma once

#include "card.cuh"

enum NumberKind { FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2 };

template <int KIND>
KESTREL_DEVICE float number_at(const uint8* weights, int64 index) {
    if (KIND == FLOAT32) return ((const float*)weights)[index];
    uint16 bits = ((const uint16*)weights)[index];
    return KIND == FLOAT16 ? half_to_float(bits) : bfloat16_to_float(bits);
}

// Eight numbers next to each other, as they are stored.
template <int KIND>
struct EightNumbers {
    static const int PIECES = KIND == FLOAT32 ? 2 : 1;  // of 16 bytes
    uint32 words[4 * PIECES];

    KESTREL_DEVICE void take(int piece, const uint4& four) {
        uint32* to = words + 4 * piece;
        to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    }

    KESTREL_DEVICE float number(int i) const {
        if (KIND == FLOAT32) return __uint_as_float(words[i]);
        uint16 bits = (uint16)(words[i / 2] >> (16 * (i % 2)));
        return KIND == FLOAT16 ? half_to_float(bits) : bfloat16_to_float(bits);
    }
};

// From an index that is a multiple of 8.
template <int KIND>
KESTREL_DEVICE EightNumbers<KIND> eight_numbers(const uint8* weights, int64 index) {
    EightNumbers<KIND> eight;
    for (int i = 0; i < EightNumbers<KIND>::PIECES; ++i)
        eight.take(i, load_streaming(weights + index * (KIND == FLOAT32 ? 4 : 2) + 16 * i));
    return eight;
}

// Eight products' sum. A row's sum is of these, so what follows each other is short and many of them may be made at once.
template <int KIND>
KESTREL_DEVICE float product_of_eight(const float* values, const EightNumbers<KIND>& weights) {
    float sum = 0.0f;
    for (int i = 0; i < 8; ++i) sum = fmaf(values[i], weights.number(i), sum);
    return sum;
}

// How a warp's lanes share out a row: eight neighbours each, in turn, where rows are whole eights; else one.
KESTREL_DEVICE int neighbours_of(int width) { return width % 8 == 0 ? 8 : 1; }
