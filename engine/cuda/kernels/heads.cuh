// One head of a token on its way from the QKV product to attention, by one warp: norm, rotary position embedding, and
// codes of a row of keys or values. Tokens and prompts come through here alike.
#pragma once

#include "activation.cuh"

static const int WIDEST_HEAD = 512;

struct Rotation {
    const float* cosines;  // (R / 2), at the token's position
    const float* sines;    // (R / 2)
    int32 half;            // R / 2, of each head's D; 0: none

    KESTREL_DEVICE Rotation(const float* cosines, const float* sines, int32 rotated, int64 position)
        : cosines(cosines + position * (rotated / 2)), sines(sines + position * (rotated / 2)), half(rotated / 2) {}
};

// values (D): of shared memory, this warp's own; x (D) behind the norm with weight (D), or null, and behind rotation.
KESTREL_DEVICE void prepare_head(
    float* values, const float* x, int width, const float* weight, float eps, const Rotation& rotation
) {
    for (int i = lane_index(); i < width; i += WARP) values[i] = x[i];
    if (weight != nullptr) {
        float squares = 0.0f;
        for (int i = lane_index(); i < width; i += WARP) squares = fmaf(values[i], values[i], squares);
        float factor = 1.0f / sqrtf(warp_sum(squares) / width + eps);
        for (int i = lane_index(); i < width; i += WARP) values[i] = values[i] * factor * weight[i];
    }
    __syncwarp();
    for (int i = lane_index(); i < rotation.half; i += WARP) {
        float first = values[i], second = values[i + rotation.half];
        values[i] = first * rotation.cosines[i] - second * rotation.sines[i];
        values[i + rotation.half] = second * rotation.cosines[i] + first * rotation.sines[i];
    }
    __syncwarp();
}

// The largest magnitude of a row, in every lane; NaN where something in it is no finite number.
KESTREL_DEVICE float magnitude_of(const float* values, int width) {
    float largest = 0.0f;
    bool finite = true;
    for (int i = lane_index(); i < width; i += WARP) {
        largest = fmaxf(largest, fabsf(values[i]));
        finite = finite && is_finite(values[i]);
    }
    return __all_sync(ALL_LANES, finite) ? warp_max(largest) : __uint_as_float(0x7fc00000u);
}

// A row of a page: codes (D), which `store` takes one by one. Returns its scale.
template <typename Store>
KESTREL_DEVICE float row_codes(const float* values, int width, Store store) {
    float scale = magnitude_of(values, width) / LARGEST_CODE;
    if (scale < SMALLEST_NORMAL) scale = 0.0f;
    for (int i = lane_index(); i < width; i += WARP) store(i, scale > 0.0f ? (int8)rintf(values[i] / scale) : (int8)0);
    return scale;
}
