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

// Eight numbers next to each other, from an index that is a multiple of 8.
template <int KIND>
KESTREL_DEVICE void eight_numbers(const uint8* weights, int64 index, float* numbers) {
    uint32 words[8];
    const int loads = KIND == FLOAT32 ? 2 : 1;
    for (int i = 0; i < loads; ++i) {
        uint4 four = load_streaming(weights + index * (KIND == FLOAT32 ? 4 : 2) + 16 * i);
        words[4 * i] = four.x, words[4 * i + 1] = four.y, words[4 * i + 2] = four.z, words[4 * i + 3] = four.w;
    }
    for (int i = 0; i < 8; ++i) {
        uint16 bits = (uint16)(words[i / 2] >> (16 * (i % 2)));
        numbers[i] = KIND == FLOAT32 ? __uint_as_float(words[i])
                                     : KIND == FLOAT16 ? half_to_float(bits) : bfloat16_to_float(bits);
    }
}

// How a warp's lanes share out a row: eight neighbours each, in turn, where rows are whole eights; else one.
KESTREL_DEVICE int neighbours_of(int width) { return width % 8 == 0 ? 8 : 1; }
