// One head of a token on its way from the QKV product to attention, by one warp: norm, rotary position embedding, and
// codes of a row of keys or values. Tokens and prompts come through here alike. Of heads up to 128 wide a warp can have
// two, half of its LANES each, with the same bits.
#pragma once

#include "activation.cuh"

static const int WIDEST_HEAD = 512;
static const int PIECE = 4 * WARP;  // features that a warp has at once, four neighbours a lane

// The first of a lane's features in a piece.
template <int LANES>
KESTREL_DEVICE int head_feature(int piece) {
    return 4 * (LANES * piece + lane_index() % LANES);
}

KESTREL_DEVICE void unpack(const float4& from, float (&to)[4]) {
    to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
}

// Where a token's features turn. Feature i < R / 2 turns with feature i + R / 2, those from R on with none.
struct Rotation {
    const float* cosines;  // (R / 2), at the token's position
    const float* sines;    // (R / 2)
    int32 half;            // R / 2, of each head's D; 0: none

    KESTREL_DEVICE Rotation(const float* cosines, const float* sines, int32 rotated, int64 position)
        : cosines(cosines + position * (rotated / 2)), sines(sines + position * (rotated / 2)), half(rotated / 2) {}

    // Whether four neighbours turn with four neighbours.
    KESTREL_DEVICE bool in_fours() const { return half % 4 == 0; }

    KESTREL_DEVICE bool turns(int feature) const { return feature < 2 * half; }

    // With what a feature turns that does.
    KESTREL_DEVICE int partner(int feature) const { return feature < half ? feature + half : feature - half; }
};

// By what a head's features, and those with which they turn, are multiplied: weights of the norm and turns. Beyond the
// width these are zeros. D is a multiple of 4.
template <int PIECES, int LANES = WARP>
struct HeadFactors {
    float own[PIECES][4], other[PIECES][4];

    // weight (D) or null. IN_FOURS: the rotation is known to be.
    template <bool IN_FOURS = false>
    KESTREL_DEVICE void load(const float* weight, const Rotation& rotation, int width) {
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            int feature = head_feature<LANES>(piece);
            for (int i = 0; i < 4; ++i) own[piece][i] = 1.0f, other[piece][i] = 0.0f;
            if (feature >= width) continue;
            if (weight != nullptr) unpack(*(const float4*)(weight + feature), own[piece]);
            if (!rotation.turns(feature)) continue;
            if (IN_FOURS || rotation.in_fours()) {
                int partner = rotation.partner(feature), angle = min(feature, partner);
                float cosines[4], sines[4];
                unpack(*(const float4*)(rotation.cosines + angle), cosines);
                unpack(*(const float4*)(rotation.sines + angle), sines);
                for (int i = 0; i < 4; ++i) other[piece][i] = 1.0f;
                if (weight != nullptr) unpack(*(const float4*)(weight + partner), other[piece]);
                for (int i = 0; i < 4; ++i) turn(piece, i, cosines[i], feature < partner ? -sines[i] : sines[i]);
            } else {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    if (!rotation.turns(feature + i)) continue;
                    int partner = rotation.partner(feature + i), angle = min(feature + i, partner);
                    float sine = rotation.sines[angle];
                    other[piece][i] = weight != nullptr ? weight[partner] : 1.0f;
                    turn(piece, i, rotation.cosines[angle], feature + i < partner ? -sine : sine);
                }
            }
        }
    }

    KESTREL_DEVICE void turn(int piece, int i, float cosine, float sine) {
        own[piece][i] *= cosine;
        other[piece][i] *= sine;
    }
};

// Codes are round(value / scale), the quotient rounded first, as divisions are: with its remainder the product with the
// reciprocal becomes that. What is small is enlarged, lest remainders are denormal.
struct Divisor {
    float scale, inverse, enlarged;

    KESTREL_DEVICE Divisor(float scale) : enlarged(scale < 1e-18f ? 18446744073709551616.0f : 1.0f) {
        this->scale = scale * enlarged;
        inverse = 1.0f / this->scale;
    }

    KESTREL_DEVICE float quotient(float value) const {
        value *= enlarged;
        float found = value * inverse;
        found = fmaf(fmaf(-found, scale, value), inverse, found);
        return fmaf(fmaf(-found, scale, value), inverse, found);
    }
};

// largest / 127, rounded as divisions are where it is no denormal. A division of what may be NaN would always take the
// long way that divisions have.
KESTREL_DEVICE float code_scale(float largest) {
    const float part = 1.0f / LARGEST_CODE;
    float found = largest * part;
    return fmaf(fmaf(-found, LARGEST_CODE, largest), part, found);
}

// A head (D) in registers; D is a multiple of 4.
template <int PIECES, int LANES = WARP>
struct HeadRow {
    static_assert(LANES == WARP || (LANES == WARP / 2 && PIECES == 2), "lanes of a head");

    float of[PIECES][4];  // see `head_feature`; zeros beyond the width

    KESTREL_DEVICE void load(const float* x, int width) {
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            int feature = head_feature<LANES>(piece);
            float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (feature < width) four = *(const float4*)(x + feature);
            unpack(four, of[piece]);
        }
    }

    KESTREL_DEVICE void store(float* to, int width) const {
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            int feature = head_feature<LANES>(piece);
            const float(&four)[4] = of[piece];
            if (feature < width) *(float4*)(to + feature) = make_float4(four[0], four[1], four[2], four[3]);
        }
    }

    // Of each feature that with which it turns. IN_FOURS: as above.
    template <bool IN_FOURS = false>
    KESTREL_DEVICE void load_partners(const float* x, const Rotation& rotation) {
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            int feature = head_feature<LANES>(piece);
            for (int i = 0; i < 4; ++i) of[piece][i] = 0.0f;
            if (!rotation.turns(feature)) continue;
            if (IN_FOURS || rotation.in_fours()) {
                unpack(*(const float4*)(x + rotation.partner(feature)), of[piece]);
            } else {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if (rotation.turns(feature + i)) of[piece][i] = x[rotation.partner(feature + i)];
            }
        }
    }

    // 1 / sqrt(mean of squares + eps)
    KESTREL_DEVICE float norm_factor(int width, float eps) const {
        float squares[2] = {};  // of half a warp's lanes: also what the other half's would have
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            float& sum = squares[LANES < WARP ? piece : 0];
            for (int i = 0; i < 4; ++i) sum = fmaf(of[piece][i], of[piece][i], sum);
        }
        if (LANES < WARP) squares[0] += squares[1];
        return rsqrtf(warp_sum<LANES>(squares[0]) * __fdividef(1.0f, (float)width) + eps);
    }

    KESTREL_DEVICE void change(const HeadRow& partners, const HeadFactors<PIECES, LANES>& by, float factor) {
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece)
            for (int i = 0; i < 4; ++i)
                of[piece][i] =
                    fmaf(partners.of[piece][i], by.other[piece][i], of[piece][i] * by.own[piece][i]) * factor;
    }

    // The largest magnitude, in every lane; NaN where something is no finite number. Magnitudes are as large as their
    // bits say.
    KESTREL_DEVICE float magnitude() const {
        uint32 largest = 0;
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece)
            for (int i = 0; i < 4; ++i) largest = max(largest, __float_as_uint(fabsf(of[piece][i])));
        bool upper = LANES < WARP && lane_index() >= LANES;
        uint32 bits = warp_max_bits(upper ? 0 : largest);
        if (LANES < WARP) {
            uint32 of_upper = warp_max_bits(upper ? largest : 0);
            if (upper) bits = of_upper;
        }
        return finite_magnitude(bits);
    }

    // As a row of a page (D). Returns its scale.
    KESTREL_DEVICE float store_codes(int width, uint8* row) const {
        float scale = code_scale(magnitude());
        if (scale < SMALLEST_NORMAL) scale = 0.0f;
        bool counts = scale > 0.0f;
        Divisor by(counts ? scale : 1.0f);
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            int feature = head_feature<LANES>(piece);
            uint32 codes[4];
            for (int i = 0; i < 4; ++i)
                codes[i] = counts ? __float_as_uint(by.quotient(of[piece][i]) + ROUNDS_TO_WHOLE) : 0;
            if (feature < width) *(uint32*)(row + feature) = low_bytes(codes);
        }
        return scale;
    }
};
