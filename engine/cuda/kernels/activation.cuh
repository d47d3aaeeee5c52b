// What goes into a product: rows of numbers, as they are or in 8 bits, or both.
#pragma once

#include "card.cuh"

// Where one row after the other lies. Null pointers: not wanted in that form.
//
// In 8 bits, each block of 32 neighbours x has a scale s = max|x| * (1 / 127), and high = round(x * (127 / max|x|)). With
// a second plane, s = max|x| * (1 / 32258) and low = round((x * (127 / max|x|) - high) * 254): x is nearly s * (254 *
// high + low), some 15 bits. Ties go to even. Where s would be zero or denormal, it and the codes are 0; where something
// is no finite number, the scale is NaN.
//
// Codes lie in the order in which tensor cores take them: of each quarter q = 0 ... 3 of a block, codes 4 q ... 4 q + 3,
// then 16 + 4 q ... 16 + 4 q + 3.
struct Activation {
    float* values;  // (T, K)
    int8* high;     // (T, K)
    int8* low;      // (T, K)
    float* scales;  // (T, K / 32), of one step of the finer plane
    float* sums;    // (T, K / 32): of a block's codes, in such steps; exact
    int32 width;    // K, for 8 bits a multiple of 32
    int32 padding;
};

static const float LARGEST_CODE = 127.0f;
static const int LOW_STEPS = 254;  // of the low plane in one of the high one
static const float SMALLEST_NORMAL = 1.17549435e-38f;

KESTREL_DEVICE bool is_finite(float value) { return fabsf(value) <= 3.4028234e38f; }

KESTREL_DEVICE float not_a_number() { return __uint_as_float(0x7fc00000u); }

// From the bits of magnitudes' largest one, which those of what is no finite number exceed.
KESTREL_DEVICE float finite_magnitude(uint32 bits) {
    return bits > 0x7f7fffffu ? not_a_number() : __uint_as_float(bits);
}

// How numbers that share a scale become codes.
struct CodeScale {
    float scale;    // what a code is to be multiplied with, of the finer plane
    float inverse;  // what a number is to be multiplied with, for the higher plane

    KESTREL_DEVICE CodeScale(float largest, bool finite, bool two_planes) {
        scale = largest * (two_planes ? 1.0f / (LARGEST_CODE * (float)LOW_STEPS) : 1.0f / LARGEST_CODE);
        bool counts = finite && scale >= SMALLEST_NORMAL;
        inverse = counts ? LARGEST_CODE / largest : 0.0f;
        if (!counts) scale = finite ? 0.0f : not_a_number();
    }
};

// NaN where any of a warp's numbers is not finite, else the largest magnitude's 127th part, or 0.
KESTREL_DEVICE float scale_of(float magnitude, bool finite) {
    if (!__all_sync(ALL_LANES, finite)) return not_a_number();
    float scale = magnitude / LARGEST_CODE;
    return scale >= SMALLEST_NORMAL ? scale : 0.0f;
}

// A number that is added to it ends in the last bits of the sum, as a whole one: ties go to even.
static const float ROUNDS_TO_WHOLE = 12582912.0f;  // 1.5 * 2^23

// A number times the inverse of its scale, in codes: in the lowest bytes of these words. Conversions are slow, so there
// are none.
struct RoundedCode {
    uint32 high, low;

    KESTREL_DEVICE explicit RoundedCode(float quotient) {
        float found = quotient + ROUNDS_TO_WHOLE;
        high = __float_as_uint(found);
        low = __float_as_uint((quotient - (found - ROUNDS_TO_WHOLE)) * (float)LOW_STEPS + ROUNDS_TO_WHOLE);
    }
};

// The numbers of 32 neighbours, one a lane, of a row; `column` is this lane's. All lanes have to come here together;
// those beyond the width bring 0.
KESTREL_DEVICE void store_activation(const Activation& to, int64 row, int column, float value) {
    if (to.values != nullptr && column < to.width) to.values[row * to.width + column] = value;
    if (to.high == nullptr) return;
    bool two_planes = to.low != nullptr;
    float largest = finite_magnitude(warp_max_bits(__float_as_uint(fabsf(value))));
    CodeScale by(largest, is_finite(largest), two_planes);
    RoundedCode code(by.inverse > 0.0f ? value * by.inverse : 0.0f);
    int lane = lane_index();
    int64 block = (row * to.width + column) / WARP, at = block * WARP + lane % 16 / 4 * 8 + lane / 16 * 4 + lane % 4;
    to.high[at] = (int8)code.high;
    if (two_planes) to.low[at] = (int8)code.low;
    if (lane == 0) to.scales[block] = by.scale;
    if (to.sums == nullptr) return;
    // What the bits have in common is no part of the codes.
    int32 high = (int32)(code.high - __float_as_uint(ROUNDS_TO_WHOLE));
    int32 low = (int32)(code.low - __float_as_uint(ROUNDS_TO_WHOLE));
    int32 sum = __reduce_add_sync(ALL_LANES, two_planes ? high * LOW_STEPS + low : high);
    if (lane == 0) to.sums[block] = (float)sum;
}

// The lowest bytes of four words.
KESTREL_DEVICE uint32 low_bytes(const uint32 (&words)[4]) {
    return __byte_perm(__byte_perm(words[0], words[1], 0x0040), __byte_perm(words[2], words[3], 0x0040), 0x5410);
}

// A lane's neighbours, four for each of WORDS, of a block that lanes next to each other share.
template <int WORDS>
struct LaneCodes {
    static const int LANES = 8 / WORDS;  // of a block

    uint32 high[WORDS], low[WORDS];  // four codes a word
    float scale;                     // of the block

    KESTREL_DEVICE LaneCodes(const float* values, bool two_planes) {
        uint32 bits = 0;
        for (int i = 0; i < 4 * WORDS; ++i) bits = max(bits, __float_as_uint(fabsf(values[i])));
        for (int distance = 1; distance < LANES; distance *= 2)
            bits = max(bits, __shfl_xor_sync(ALL_LANES, bits, distance));
        float largest = finite_magnitude(bits);
        CodeScale by(largest, is_finite(largest), two_planes);
        scale = by.scale;
        bool counts = by.inverse > 0.0f;
        for (int word = 0; word < WORDS; ++word) {
            uint32 high_words[4], low_words[4];
            for (int i = 0; i < 4; ++i) {
                RoundedCode code(values[4 * word + i] * by.inverse);
                high_words[i] = code.high, low_words[i] = code.low;
            }
            high[word] = counts ? low_bytes(high_words) : 0;
            low[word] = counts ? low_bytes(low_words) : 0;
        }
    }

    // Of the block's codes, in steps of the finer plane. All lanes of a warp have to come here together.
    KESTREL_DEVICE int32 sum(bool two_planes) const {
        const uint32 ones = 0x01010101;
        int32 of_high = 0, of_low = 0;
        for (int word = 0; word < WORDS; ++word)
            of_high = dot4(high[word], ones, of_high), of_low = dot4(low[word], ones, of_low);
        int32 sum = two_planes ? of_high * LOW_STEPS + of_low : of_high;
        for (int distance = 1; distance < LANES; distance *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, distance);
        return sum;
    }

    // Which word of its block (eight a plane) is the lane's first; each further one is 2 further.
    KESTREL_DEVICE static int first_word(int lane) {
        int four = lane % LANES * WORDS;
        return four % 4 * 2 + four / 4;
    }

    // at: of the lane's first neighbour. sum: of the block's codes.
    KESTREL_DEVICE void store(const Activation& to, int64 at, int32 sum) const {
        int64 block = at / WARP, first = block * 8 + first_word(lane_index());
        for (int word = 0; word < WORDS; ++word) {
            ((uint32*)to.high)[first + 2 * word] = high[word];
            if (to.low != nullptr) ((uint32*)to.low)[first + 2 * word] = low[word];
        }
        if (lane_index() % LANES != 0) return;
        to.scales[block] = scale;
        if (to.sums != nullptr) to.sums[block] = (float)sum;
    }
};

typedef LaneCodes<1> FourCodes;
typedef LaneCodes<2> EightCodes;

// Eight neighbours of a row, from a column that is a multiple of 8. All lanes of a warp have to come here together, and
// hold what follows each other; those beyond the width bring zeros.
KESTREL_DEVICE void store_eight(const Activation& to, int64 row, int column, const float* values) {
    int64 at = row * to.width + column;
    if (to.values != nullptr)
        for (int i = 0; i < 8; ++i)
            if (column + i < to.width) to.values[at + i] = values[i];
    if (to.high == nullptr) return;
    EightCodes codes(values, to.low != nullptr);
    int32 sum = to.sums == nullptr ? 0 : codes.sum(to.low != nullptr);
    if (column < to.width) codes.store(to, at, sum);
}

// Four neighbours, likewise. `there`: whether a block's lanes have any.
KESTREL_DEVICE void store_four(const Activation& to, int64 row, int column, bool there, const float (&values)[4]) {
    int64 at = row * to.width + column;
    if (there && to.values != nullptr)
        *(float4*)(to.values + at) = make_float4(values[0], values[1], values[2], values[3]);
    if (to.high == nullptr) return;
    FourCodes codes(values, to.low != nullptr);
    int32 sum = to.sums == nullptr ? 0 : codes.sum(to.low != nullptr);
    if (there) codes.store(to, at, sum);
}

// A row is read in chunks: a warp takes one, eight neighbours a lane.
static const int ROW_CHUNK = 8 * WARP;
static const int MOST_ROW_CHUNKS = 256;  // of a row

// Of a row whose width is a multiple of 8. Beyond it there are zeros.
KESTREL_DEVICE void whole_eight(const float* row, int column, int width, float* values) {
    float4 first = make_float4(0.0f, 0.0f, 0.0f, 0.0f), second = first;
    if (column < width) first = *(const float4*)(row + column), second = *(const float4*)(row + column + 4);
    values[0] = first.x, values[1] = first.y, values[2] = first.z, values[3] = first.w;
    values[4] = second.x, values[5] = second.y, values[6] = second.z, values[7] = second.w;
}

KESTREL_DEVICE void load_eight(const float* row, int column, int width, float* values) {
    if (width % 8 == 0)
        whole_eight(row, column, width, values);
    else
        for (int i = 0; i < 8; ++i) values[i] = column + i < width ? row[column + i] : 0.0f;
}

// Of a chunk's squares, the same bits in every lane.
KESTREL_DEVICE float sum_of_squares(const float* values) {
    float squares = 0.0f;
    for (int i = 0; i < 8; ++i) squares = fmaf(values[i], values[i], squares);
    return warp_sum(squares);
}

// What a row has to be multiplied with, 1 / sqrt(mean of squares + eps), from the sums of all its chunks, however many
// threads made them. Each warp adds them up for itself.
KESTREL_DEVICE float norm_factor(const float* sums, int width, float eps) {
    float total = 0.0f;
    for (int i = lane_index(); i * ROW_CHUNK < width; i += WARP) total += sums[i];
    return rsqrtf(warp_sum(total) * reciprocal((float)width) + eps);
}

// silu(gate) * up
KESTREL_DEVICE float gated(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }
