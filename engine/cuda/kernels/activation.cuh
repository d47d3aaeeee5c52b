// What goes into a product: rows of numbers, as they are or in 8 bits, or both.
#pragma once

#include "card.cuh"

// Where one row after the other lies. Null pointers: not wanted in that form.
//
// In 8 bits, each 32 neighbours x share a scale s = max|x| / 127: high = round(x / s). With a second plane
// low = round((x / s - high) * 254), x is nearly s * (high + low / 254): some 15 bits. Ties go to even. A scale that
// would be zero or denormal is 0, and so are its codes; where something is no finite number, the scale is NaN.
struct Activation {
    float* values;  // (T, K)
    int8* high;     // (T, K)
    int8* low;      // (T, K)
    float* scales;  // (T, K / 32)
    int32 width;    // K, for 8 bits a multiple of 32
    int32 padding;
};

static const float LARGEST_CODE = 127.0f;
static const float LOW_STEPS = 254.0f;  // of the low plane in one of the high one
static const float SMALLEST_NORMAL = 1.17549435e-38f;

// NaN where any of a warp's numbers is not finite, else the largest magnitude's 127th part, or 0.
KESTREL_DEVICE float scale_of(float magnitude, bool finite) {
    if (!__all_sync(ALL_LANES, finite)) return __uint_as_float(0x7fc00000u);
    float scale = magnitude / LARGEST_CODE;
    return scale >= SMALLEST_NORMAL ? scale : 0.0f;
}

KESTREL_DEVICE bool is_finite(float value) { return fabsf(value) <= 3.4028234e38f; }

// The numbers of 32 neighbours, one a lane, of a row; `column` is this lane's. All lanes have to come here together;
// those beyond the width bring 0.
KESTREL_DEVICE void store_activation(const Activation& to, int64 row, int column, float value) {
    int64 index = row * to.width + column;
    if (to.values != nullptr && column < to.width) to.values[index] = value;
    if (to.high == nullptr) return;
    float scale = scale_of(warp_max(fabsf(value)), is_finite(value));
    float quotient = scale > 0.0f ? value / scale : 0.0f;
    float high = rintf(quotient);
    to.high[index] = (int8)high;
    if (to.low != nullptr) to.low[index] = (int8)rintf((quotient - high) * LOW_STEPS);
    if (lane_index() == 0) to.scales[index / WARP] = scale;
}
